"""Times Split.steps, Split.torch and Writer.add beside the same work by hand, and the counting of Split.metrics beside the reading of what it
counts, in one run: python3 python/tests/speed.py [BATCH_SIZE BLOCK_SIZE]

They take turns. The kernel does not have "new" batches yet, as in training, but has "cached" ones. Only the fastest sixteenth of the
rounds of reading and the fastest round of writing count, because other processes use the machine.
"""

import importlib.util
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import batchfs
from batchfs._batch import BatchBuffer
from batchfs._meter import clock

STEPS, ROUNDS = 100, 160
unread = itertools.count(STEPS, STEPS)  # batches that the kernel has not cached


def timed(read: Callable[[int], None], first: int) -> float:
    begun = time.perf_counter()
    read(first)
    return (time.perf_counter() - begun) / STEPS * 1e6


def times_of(what: str, *reads: Callable[[int], None]) -> list[float]:
    """Returns the microseconds that a batch takes each function, which take turns."""
    took: list[list[float]] = [[] for _ in reads]
    for _ in range(ROUNDS):
        for read, times in zip(reads, took):
            first = next(unread) if what == "new" else 0
            times.append(timed(read, first))
    return [sum(sorted(times)[: ROUNDS // 16]) / (ROUNDS // 16) for times in took]


def compare(name: str, by_hand: Callable[[int], None], ours: Callable[[int], None]) -> None:
    for what in ("new", "cached"):
        hand, own = times_of(what, by_hand, ours)
        print(f"{name}, {what}: by hand {hand:.1f} us a batch, ours {own:.1f}: {own / hand:.2f}")


def compare_counting(name: str, train: batchfs.Split) -> None:
    """Times what Split.metrics adds to a read, and the read without it: by hand, with the package's buffers."""
    memory = BatchBuffer(train.layouts)
    memory.raw[:] = 0
    counter = train.meter.counter(memory)

    def count(first: int) -> None:
        for k in range(first, first + STEPS):
            begun = clock()
            counter.add(k, begun, memory)

    def read(first: int) -> None:
        for k in range(first, first + STEPS):
            train.reader.fill(k, memory.buffers)

    for what in ("new", "cached"):
        counting, reading = times_of(what, count, read)
        print(f"{name} metrics, {what}: a read {reading:.1f} us, counting it {counting:.2f}: {counting / reading:.4f}")


def compare_writing() -> None:
    """Times documents of 1,000 ids. In each round, the writer writes what it holds in memory to its files at least once."""
    documents, rounds = [[(i * k) % 50_257 for k in range(1000)] for i in range(100)] * 50, 20
    with tempfile.TemporaryDirectory() as data, open(f"{data}/by-hand", "wb") as file, batchfs.writer(f"{data}/ours", vocab_size=50_257) as out:
        best = [float("inf"), float("inf")]
        for _ in range(rounds):
            begun = time.perf_counter()
            for ids in documents:
                np.asarray(ids, np.uint16).tofile(file)
            between = time.perf_counter()
            for ids in documents:
                out.add(ids)
            best = [min(best[0], between - begun), min(best[1], time.perf_counter() - between)]
    hand, ours = (seconds / len(documents) * 1e6 for seconds in best)
    print(f"writer: by hand {hand:.1f} us a document, ours {ours:.1f}: {ours / hand:.2f}")


def main(batch_size: int, block_size: int) -> None:
    compare_writing()
    with tempfile.TemporaryDirectory() as data:
        np.arange(32 << 20, dtype=np.uint16).tofile(f"{data}/train.bin")
        sources = "[" + ", ".join(f"{{name = '{name}', tokens = '{data}/train.bin', weight = {weight}}}" for name, weight in (("a", 3), ("b", 2))) + "]"
        with batchfs.mount(data, batch_size=batch_size, block_size=block_size, set={"memory.access": "pread", "splits.mixture.sources": sources}) as m:
            train = m.split("train")
            fd = os.open(f"{m.mountpoint}/train/sequence.bin", os.O_RDONLY)
            buffer = np.empty((2, batch_size, block_size), np.uint16)

            def read(k: int) -> Any:
                if os.preadv(fd, [buffer.data], k * buffer.nbytes) != buffer.nbytes:
                    raise OSError("short read")
                return buffer

            def arrays(first: int) -> None:
                for k in range(first, first + STEPS):
                    _x, _y = read(k)

            def steps(first: int) -> None:
                for _, batch in train.steps(first, first + STEPS):
                    _x, _y = batch.x, batch.y

            compare(f"{batch_size}x{block_size} steps", arrays, steps)
            compare_counting(f"{batch_size}x{block_size}", train)
            compare_counting(f"{batch_size}x{block_size} mixture", m.split("mixture"))
            if importlib.util.find_spec("torch") is None:
                print("there is no torch to compare tensors with")
                return
            import torch

            def tensors(first: int) -> None:
                for k in range(first, first + STEPS):
                    _x, _y = torch.as_tensor(read(k).astype(np.int64))

            def torch_steps(first: int) -> None:
                for _, batch in train.torch("cpu", first, first + STEPS):
                    _x, _y = batch.x, batch.y

            compare(f"{batch_size}x{block_size} torch", tensors, torch_steps)
            os.close(fd)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (12, 1024)))
