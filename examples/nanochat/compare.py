#!/usr/bin/env python3
"""Compare nanochat's data loader with dataloader.py next to this file, in one process on two cores.

    make compare-nanochat NANOCHAT=clone    an unmodified clone of nanochat, whose requirements are installed

It makes documents from the source of Python's library, trains nanochat's tokenizer on them, and prints a table. CPU time is that
of the trainer and the mount.
"""
import importlib.util
import itertools
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from glob import glob
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch

import batchfs

B, T, VOCAB = 32, 2048, 32768
# Lengths in tokens, lognormal. With this deviation, nanochat's loader crops about as much as its
# authors report.
DOCUMENTS, MEAN, SIGMA = 24_000, 938, 1.5
ROUNDS = 10  # in each, the loaders take turns


def compare(base):
    tokenizer, documents, prepare_cpu = make_data(base)
    from nanochat.dataloader import tokenizing_distributed_data_loader_with_state_bos_bestfit as own

    spec = importlib.util.spec_from_file_location("drop_in", Path(__file__).with_name("dataloader.py"))
    drop_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drop_in)
    ours = drop_in.tokenizing_distributed_data_loader_with_state_bos_bestfit

    settings = {"rows": "packed", "bos": tokenizer.get_bos_token_id(), "mask_targets": True, "ignore_index": -1, "dtype": "int32"}
    with batchfs.mount(f"{base}/data", **settings) as mount:
        os.environ["NANOCHAT_BATCHES"] = mount.mountpoint
        own_tokens = Counted(tokenizer)
        loaders = [own(own_tokens, B, T, "train", device="cpu"), ours(tokenizer, B, T, "train", device="cpu")]
        for _, _, state in loaders[0]:  # its buffer slowly fills with long documents
            if state["epoch"] > 3:
                break
        next(loaders[1])
        taken = own_tokens.count - buffered(loaders[0])
        waits, cpu = [0.0, 0.0], [0.0, 0.0]
        counts = [10, 100]  # micro-batches in a round
        for _ in range(ROUNDS):
            for i, loader in enumerate(loaders):
                begun = time.perf_counter(), cpu_time()
                for _ in itertools.islice(loader, counts[i]):
                    pass
                waits[i] += time.perf_counter() - begun[0]
                cpu[i] += cpu_time() - begun[1]
        for i, count in enumerate(counts):
            waits[i] *= 1000 / (ROUNDS * count)
            cpu[i] *= 1000 / (ROUNDS * count)

        own_used = ROUNDS * counts[0] * B * (T + 1) / (own_tokens.count - buffered(loaders[0]) - taken)
        info = batchfs.split(f"{mount.mountpoint}/train", batch_size=B, block_size=T).info
        epoch = itertools.islice(ours(tokenizer, B, T, "train", device="cpu"), info["batches_per_epoch"])
        targets = torch.cat([y for _, y, _ in epoch])[: info["rows_per_epoch"]]
        our_used = int((targets != -1).sum()) / (info["tokens"] - documents)
        same = [resumed_rows(loader, tokenizer) for loader in (own, ours)]

    print(f"| B={B}, T={T}, {documents:,} documents, {info['tokens']:,} tokens | nanochat's loader | batchfs | ratio |\n|---|---|---|---|")
    print(f"| mean wait for a micro-batch | {waits[0]:.1f} ms | {waits[1]:.2f} ms | {waits[0] / waits[1]:.0f} |")
    print(f"| CPU time of a micro-batch | {cpu[0]:.1f} ms | {cpu[1]:.2f} ms | {cpu[0] / cpu[1]:.0f} |")
    for epochs in 1, 2, 4:
        both = cpu[1] + prepare_cpu * 1000 / info["batches_per_epoch"] / epochs
        print(f"| ... with that of prepare, in {epochs} epoch{'s'[: epochs - 1]} | {cpu[0]:.1f} ms | {both:.2f} ms | {cpu[0] / both:.0f} |")
    print(f"| tokens that reach a row | {own_used:.1%} | {our_used:.1%} | |")
    print(f"| rows of the next 20 batches that are the same after a resume | {same[0]} | {same[1]} | |")


def make_data(base):
    """Writes Parquet shards and token files. Returns a tokenizer, the number of training documents, and prepare's CPU time in seconds."""
    from nanochat.tokenizer import RustBPETokenizer

    sources = sorted(glob(sysconfig.get_path("stdlib") + "/**/*.py", recursive=True))
    text = "".join(Path(path).read_text(errors="ignore") for path in sources if "site-packages" not in path)
    tokenizer = RustBPETokenizer.train_from_iterator((text[i : i + 10_000] for i in range(0, len(text), 10_000)), VOCAB)
    tokenizer.save(f"{base}/tokenizer")
    ratio = 1_000_000 / len(tokenizer.encode(text[:1_000_000]))  # characters of a token
    draw = random.Random(1)
    sizes = [int(ratio * MEAN * draw.lognormvariate(-SIGMA * SIGMA / 2, SIGMA)) + 1 for _ in range(DOCUMENTS)]
    starts = [draw.randrange(len(text) - size) for size in sizes]
    documents = [text[start : start + size] for start, size in zip(starts, sizes)]
    shards = f"{base}/base_data_climbmix"
    os.mkdir(shards)
    for i in range(8):
        table = pyarrow.table({"text": documents[i * DOCUMENTS // 8 : (i + 1) * DOCUMENTS // 8]})
        pyarrow.parquet.write_table(table, f"{shards}/shard_{i:05d}.parquet", row_group_size=256)
    batchfs.save_tokenizer(tokenizer.enc, f"{base}/tokenizer.json")
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = ["--by", f"{base}/tokenizer.json", "--eot", "begin", "--eot-token", "<|bos|>", "--val-files", "shard_00007.parquet"]
    subprocess.run([sys.executable, "-m", "batchfs", "prepare", shards, *begin, "--out", f"{base}/data"], check=True, capture_output=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return tokenizer, DOCUMENTS // 8 * 7, ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


class Counted:
    """A tokenizer that counts the tokens that it makes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.count = tokenizer, 0

    def encode(self, *args, **kwargs):
        encoded = self.tokenizer.encode(*args, **kwargs)
        self.count += sum(map(len, encoded))
        return encoded

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


def buffered(loader):
    """Returns the number of tokens in the buffer of nanochat's loader."""
    return sum(map(len, loader.gi_frame.f_locals["doc_buffer"]))


def take(loader, count):
    return [(torch.cat((x, y), 1).clone(), state) for x, y, state in itertools.islice(loader, count)]


def resumed_rows(loader, tokenizer):
    """Resumes with the state of batch 10, and returns how many rows of 20 batches are those of the run that went on."""
    want = take(loader(tokenizer, B, T, "train", device="cpu"), 30)[10:]
    got = take(loader(tokenizer, B, T, "train", device="cpu", resume_state_dict=want[0][1]), 20)
    same = sum(int((a == b).all(1).sum()) for (a, _), (b, _) in zip(want, got))
    return f"{same} of {20 * B}"


def cpu_time():
    """Returns the CPU time of this process and the mount, in seconds."""
    parents = {}
    for stat in glob("/proc/[0-9]*/stat"):
        try:
            parents[int(stat.split("/")[2])] = int(Path(stat).read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process ended
            pass
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return time.process_time() + sum(
        int(Path(stat).read_text().split()[0]) / 1e9 for pid in mine - {os.getpid()} for stat in glob(f"/proc/{pid}/task/*/schedstat")
    )


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as directory:
        os.environ["NANOCHAT_BASE_DIR"] = directory
        compare(directory)
