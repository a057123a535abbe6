"""Batches recomputed from DESIGN.md ("One idea", "Orders") with nothing but NumPy.

    reference.py SETTINGS.json K...            one line per batch number K:
    reference.py SETTINGS.json --count N       `<k> <sha256 of the raw batch> <start of every row>`
    reference.py --selftest

A start is an index into the concatenation of all files, also where windows do not cross files.
This is the yardstick for the Go code: never port from there to here.
"""

import hashlib
import json
import sys
from bisect import bisect_right
from itertools import accumulate

import numpy as np

DEFAULTS = {
    "files": [], "join": False, "token_dtype": "uint16", "split": "train",
    "batch_size": 12, "block_size": 1024, "dtype": "uint16", "layout": "xy",
    "order": "random", "seed": 1337, "rank": 0, "world": 1,
}
TYPES = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
U64 = 2**64


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % U64
    return h


def philox(key, counter, blocks=1):
    """The four words of each of the blocks of Philox4x64-10 from counter on.

    key and counter are integers whose lowest 64 bits are word 0. NumPy increments the counter before its
    first block, hence the -1.
    """
    generator = np.random.Philox(key=key, counter=(counter - 1) % 2**256)
    return generator.random_raw(4 * blocks).reshape(blocks, 4).tolist()


def uniform(n, key, s, words):
    """Row s's start in [0, n) by Lemire's method; words are the block of counter (s, 0, 0, 0)."""
    attempt = 0
    while True:
        for w in words:
            if w * n % U64 >= U64 % n:
                return w * n >> 64
        attempt += 1
        [words] = philox(key, s + attempt * U64)


class Sequence:
    def __init__(self, **settings):
        if unknown := settings.keys() - DEFAULTS.keys():
            raise ValueError(f"unknown settings: {sorted(unknown)}")
        self.__dict__.update(DEFAULTS | settings)
        if self.order not in ("random", "sequential") or self.layout not in ("xy", "tokens"):
            raise ValueError(f"no reference for order {self.order}, layout {self.layout}")

        files = [np.memmap(f, TYPES[self.token_dtype], mode="r") for f in self.files]
        self.tokens = files[0] if len(files) == 1 else np.concatenate(files)
        lengths = [len(self.tokens)] if self.join else [len(f) for f in files]
        if min(lengths) <= self.block_size:
            raise ValueError("a file needs at least block_size + 1 tokens")
        self.type = np.dtype(TYPES[self.token_dtype if self.dtype == "native" else self.dtype])
        if self.tokens.dtype.itemsize > 2 and self.tokens.max() > np.iinfo(self.type).max:
            raise ValueError(f"token {self.tokens.max()} does not fit {self.type}")

        self.key = self.seed % U64 + U64 * fnv1a(self.split.encode())
        # What an order draws from: positions or windows of each file, summed up; and where each file begins.
        if self.order == "random":
            choices = [n - self.block_size for n in lengths]
        else:
            choices = [(n - 1) // self.block_size for n in lengths]
        self.choices = [0, *accumulate(choices)]
        self.begins = [0, *accumulate(lengths)]

    def starts(self, k):
        """Where the rows of batch k begin."""
        first = (k * self.world + self.rank) * self.batch_size
        rows = range(first, first + self.batch_size)
        if rows.stop > U64:
            raise ValueError("a row's number needs more than 64 bits")
        n = self.choices[-1]
        if self.order == "random":
            blocks = philox(self.key, first, self.batch_size)
            return [self.locate(uniform(n, self.key, s, words), 1) for s, words in zip(rows, blocks)]
        return [self.locate(s % n, self.block_size) for s in rows]

    def locate(self, choice, step):
        """The position that a choice means; neighbouring choices in a file are step tokens apart."""
        f = bisect_right(self.choices, choice) - 1
        return self.begins[f] + (choice - self.choices[f]) * step

    def batch(self, k):
        """Batch k's starts and its raw bytes."""
        starts = self.starts(k)
        window = np.arange(self.block_size + 1)
        rows = self.tokens[np.array(starts)[:, None] + window].astype(self.type)
        if self.layout == "tokens":
            return starts, rows.tobytes()
        return starts, rows[:, :-1].tobytes() + rows[:, 1:].tobytes()


def selftest():
    # Random123's published answers (kat_vectors, "philox4x64 10").
    assert philox(0, 0) == [[0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]]
    assert philox(2**128 - 1, 2**256 - 1) == [
        [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]]
    # A block is the same alone and in a run.
    assert philox(7, 0, 3) == [philox(7, c)[0] for c in range(3)]
    # FNV's own test vectors.
    assert fnv1a(b"") == 0xCBF29CE484222325 and fnv1a(b"foobar") == 0x85944171F73967E8
    # Lemire: of n = 2^63 + 1 nearly half of all words are rejected, so some rows need a second block.
    n, second = 2**63 + 1, 0
    for s in range(200):
        words = philox(5, s)[0] + philox(5, s + U64)[0] + philox(5, s + 2 * U64)[0] + philox(5, s + 3 * U64)[0]
        accepted = [i for i, w in enumerate(words) if w * n % U64 >= U64 % n]
        assert uniform(n, 5, s, words[:4]) == words[accepted[0]] * n >> 64
        second += accepted[0] >= 4
    assert second > 0


def main(args):
    if args == ["--selftest"]:
        selftest()
        print("ok")
        return
    if len(args) < 2:
        sys.exit("usage: reference.py SETTINGS.json K... | SETTINGS.json --count N | --selftest")
    with open(args[0]) as f:
        sequence = Sequence(**json.load(f))
    numbers = range(int(args[2])) if args[1] == "--count" else map(int, args[1:])
    for k in numbers:
        starts, raw = sequence.batch(k)
        print(k, hashlib.sha256(raw).hexdigest(), ",".join(map(str, starts)))


if __name__ == "__main__":
    main(sys.argv[1:])
