"""Compares `batchfs prepare` with Python programs that write Megatron-LM's files: make compare-prepare

    compare_prepare.py BATCHFS LLAMA3_TOKENIZER_JSON [ANOTHER_BATCHFS]

Each program reads the same JSON lines on one core, and writes train.bin and train.idx. The
programs take turns. Speed and memory are medians, and so are ratios, of the ratios of each round.
tokenizers, which is slow, reads every eighth line, and only in the first round. Needs gigatoken,
tokenizers and NumPy.
"""

import base64
import filecmp
import itertools
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 9
SIZE = 96 << 20  # bytes of JSON lines
LIBRARIES = ["gigatoken", "gigatoken.encode_files", "tokenizers"]
SLOW = "tokenizers"


def main(batchfs, llama3, *another):
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        lines = directory / "texts.jsonl"
        write_lines(lines)
        eighth = directory / "eighth.jsonl"
        with open(lines, "rb") as every, open(eighth, "wb") as out:
            out.writelines(itertools.islice(every, 0, None, 8))
        gpt2 = directory / "gpt2.json"
        write_gpt2(batchfs, directory, gpt2)
        for name, by, tokenizer, eot in [("GPT-2", "gpt2", gpt2, 50256), ("Llama 3", llama3, llama3, 128001)]:
            programs = {"batchfs": Prepare(batchfs, lines, by)}
            if another:
                programs["another batchfs"] = Prepare(another[0], lines, by)
            for library in LIBRARIES:
                programs[library] = Megatron(library, tokenizer, eot, eighth if library == SLOW else lines)
            compare(name, programs, directory)


@dataclass
class Prepare:
    program: str
    lines: Path
    by: str

    def command(self, out):
        return [self.program, "prepare", self.lines, "--by", self.by, "--format", "megatron", "--val", "0", "--out", out]


@dataclass
class Megatron:
    library: str
    tokenizer: Path
    eot: int
    lines: Path

    def command(self, out):
        return [sys.executable, __file__, self.library, self.tokenizer, str(self.eot), self.lines, out]


def compare(name, programs, directory):
    """Prints speed and memory of the programs. The files that they write must be equal."""
    speed = {program: [] for program in programs}  # MB of JSON lines in a second of one core
    memory = {program: [] for program in programs}  # MiB
    for round in range(ROUNDS):
        turns = [program for program in programs if round == 0 or program != SLOW]
        if round % 2:
            turns.reverse()
        for program in turns:
            out = directory / program
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            usage = run(programs[program].command(out))
            speed[program].append(programs[program].lines.stat().st_size / 1e6 / (usage.ru_utime + usage.ru_stime))
            memory[program].append(usage.ru_maxrss / 1024)
        for program in turns:
            for file in ("train.bin", "train.idx"):
                if program != SLOW and not filecmp.cmp(directory / program / file, directory / "batchfs" / file, shallow=False):
                    sys.exit(f"{name}: {program} and batchfs wrote different bytes to {file}")
    for program in programs:
        ratios = sorted(ours / theirs for ours, theirs in zip(speed["batchfs"], speed[program]))
        print(f"{name}, {program}: {statistics.median(speed[program]):.1f} MB/s a core, at most {statistics.median(memory[program]):.0f} MiB; "
              f"batchfs is {statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def run(command):
    """Runs command on one core, and returns the resources that it used."""
    environment = os.environ | {"GOMAXPROCS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(f"{command}: {process.returncode}\n{log.read().decode()}")
    return usage


def write_lines(path):
    """Writes the texts of this machine, half of them source code, that have no names of special tokens."""
    goroot = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip()
    with open(path, "w") as out:
        for top in ("/usr/share", f"{goroot}/src"):
            left = SIZE // 2
            for file in (Path(root, name) for root, _, names in sorted(os.walk(top)) for name in sorted(names)):
                try:
                    text = file.read_text() if file.is_file() and file.stat().st_size < SIZE // 8 else ""
                except (UnicodeDecodeError, OSError):
                    continue
                if not text or "<|" in text:
                    continue
                line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
                left -= len(line.encode())
                if left < 0:
                    break
                out.write(line)


def write_gpt2(batchfs, directory, path):
    """Writes GPT-2's tokenizer.json from the vocabulary that batchfs has."""
    import gigatoken
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    text, out = directory / "text.jsonl", directory / "gpt2"
    text.write_text('{"text": "a"}\n')
    run(Prepare(batchfs, text, "gpt2").command(out))
    tokens = json.loads((out / "vocab.json").read_text())["token_bytes"][:50256]
    ranks = directory / "r50k_base.tiktoken"
    ranks.write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(tokens)))
    # ByteLevel writes printable bytes as themselves, and the others as characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(sorted(set(range(256)) - set(printable)))}

    def spell(token):
        return "".join(letters[byte] for byte in token)

    vocabulary = {spell(base64.b64decode(token)): rank for rank, token in enumerate(tokens)}
    merges = [(spell(left), spell(right)) for left, right in gigatoken.Tokenizer.from_tiktoken(ranks).merges]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    tokenizer.save(str(path))


def encode(library, path, lines):
    """Yields arrays of token ids of consecutive documents, and the lengths of these documents."""
    import numpy as np

    if library == "tokenizers":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
    else:
        import awkward
        import gigatoken

        tokenizer = gigatoken.Tokenizer(path)
    if library == "gigatoken.encode_files":
        documents = tokenizer.encode_files(gigatoken.JsonlFileSource([lines]), parallel=False)
        yield awkward.flatten(documents).to_numpy(), awkward.num(documents).to_numpy()
        return
    with open(lines, encoding="utf-8") as file:
        while batch := file.readlines(4 << 20):
            texts = [json.loads(line)["text"] for line in batch]
            if library == "gigatoken":
                documents = tokenizer.encode_batch(texts, parallel=False)
                yield awkward.flatten(documents).to_numpy(), awkward.num(documents).to_numpy()
            else:
                documents = [document.ids for document in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
                yield np.concatenate(documents), np.array([len(document) for document in documents])


def write_megatron(library, path, eot, lines, out):
    """Encodes the texts and writes Megatron-LM's files, in which each document ends with eot."""
    import numpy as np

    dtype, code = (np.uint16, 8) if int(eot) < 65500 else (np.int32, 4)
    sizes = []
    with open(f"{out}/train.bin", "wb") as file:
        for tokens, lengths in encode(library, path, lines):
            np.insert(tokens.astype(dtype), np.cumsum(lengths), int(eot)).tofile(file)
            sizes.append(lengths + 1)
    sizes = np.concatenate(sizes).astype(np.int32)
    offsets = (np.cumsum(sizes, dtype=np.int64) - sizes) * np.dtype(dtype).itemsize
    with open(f"{out}/train.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1))
        for array in (sizes, offsets, np.arange(len(sizes) + 1, dtype=np.int64)):
            array.tofile(file)


if __name__ == "__main__":
    if sys.argv[1] in LIBRARIES:
        write_megatron(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
