"""Compares a mount with reference.py, in random reads of every kind of file: differential.py SEQUENCES.json SEED

SEQUENCES.json is a list of [directory in the mount, settings for reference.py]. Prints `ready`, reads until standard input ends, and
prints `reads N`, `failed ERRNO N`, and `number DIRECTORY K N`: N batches of next there were number K. A wrong byte is a line
`MISMATCH FILE ...` and exit status 1.
"""

import errno
import io
import json
import mmap
import os
import random
import select
import sys
from collections import Counter
from functools import lru_cache

import numpy as np

from readers import copy_of, forget, until
from reference import Sequence

HEADER = 4096
with open(sys.argv[1]) as f:
    described = json.load(f)
chance = random.Random(int(sys.argv[2]))
numbers, failed, reads = Counter(), Counter(), 0


def check(file, want, got, at=0):
    """Exits unless the bytes of a file from one on are those that they should be."""
    want, got = bytes(want), bytes(got)
    if got == want:
        return
    wrong = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    print(f"MISMATCH {file} at byte {at + wrong}: {len(got)} bytes from {at} on, {got[wrong:][:8].hex()}... instead of "
          f"{len(want)}, {want[wrong:][:8].hex()}...", flush=True)
    os._exit(1)


class Directory:
    def __init__(self, path, settings):
        self.path, self.sequence = path, Sequence(**settings)
        with open(f"{path}/info.json") as f:
            info = json.load(f)
        self.size, self.steps = info["batch_bytes"], info["steps"]
        self.batch = lru_cache(64)(self.sequence.batch)
        s = self.sequence
        tokens = s.layout == "tokens"
        self.shape = (s.batch_size, s.block_size + 1) if tokens else (2, s.batch_size, s.block_size)
        self.names = ["tokens"] if tokens else ["x", "y"]
        self.kept = None

    def raw(self, k):
        return self.batch(k)[1]

    def span(self, at, size):
        """What batches.bin holds from byte at on."""
        first, last = at // self.size, -(-(at + size) // self.size)
        return b"".join(self.raw(k) for k in range(first, last))[at - first * self.size:][:size]

    def content(self, name, data):
        """The raw bytes of the batch in a file of that name, whose header must say what it holds."""
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(data))
            check(f"{self.path}/{name}", repr((self.shape, self.sequence.type.str)).encode(), repr((array.shape, array.dtype.str)).encode())
            return array.tobytes()
        if name.endswith(".safetensors"):
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            check(f"{self.path}/{name}", " ".join(self.names).encode(), " ".join(n for n in header if n != "__metadata__").encode())
            begin = 8 + int.from_bytes(data[:8], "little")
            return b"".join(data[begin + header[n]["data_offsets"][0]:begin + header[n]["data_offsets"][1]] for n in self.names)
        return data

    def cursor(self):
        with open(f"{self.path}/cursor") as f:
            return int(f.read())

    def took(self, name, data, low, high):
        """Counts a batch of next, whose number is about from low to high: only of a seek or of failed reads it is not within."""
        data = self.content(name, bytes(data))
        for k in (*range(low, high + 1), *range(low - 1, max(low - 64, -1), -1), *range(high + 1, high + 64)):
            if self.raw(k) == data:
                numbers[self.path, k] += 1
                return
        check(f"{self.path}/{name}, of number {low} to {high}", self.raw(low), data)

    def next(self):
        name = chance.choice(["next", "next.npy", "next.safetensors"])
        low = self.cursor()
        fd = os.open(f"{self.path}/{name}", os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            data = bytearray(size)
            cuts = sorted({0, size, *(chance.randrange(size) for _ in range(chance.choice([0, 0, 1, 5, 40])))})
            pieces = list(zip(cuts, cuts[1:]))
            if chance.random() < 0.5:
                chance.shuffle(pieces)
            for begin, end in pieces:
                piece = until(fd, begin, end - begin)
                if len(piece) != end - begin:
                    check(f"{self.path}/{name}", bytes(end - begin), piece, begin)
                data[begin:end] = piece
        finally:
            os.close(fd)
        self.took(name, data, low, self.cursor())

    def next_kept(self):
        if self.kept is None:
            self.kept = os.open(f"{self.path}/next", os.O_RDONLY)
        low = self.cursor()
        try:
            data = until(self.kept, 0, self.size)
        except OSError:
            os.close(self.kept)
            self.kept = None
            raise
        self.took("next", data, low, self.cursor())

    def numbered(self):
        far = 3000 if self.sequence.order.startswith("torch") else 2**40
        k = chance.choice([chance.randrange(20), chance.randrange(3000), chance.randrange(far)])
        name = f"batch/{k}" + chance.choice(["", ".npy", ".safetensors"])
        with open(f"{self.path}/{name}", "rb", buffering=0) as f:
            if chance.random() < 0.3:
                forget(f.fileno())
            data = until(f.fileno(), 0, 1 << 30)
        check(f"{self.path}/{name}", self.raw(k), self.content(name, bytes(data)))

    def origins(self):
        k = chance.randrange(3000)
        with open(f"{self.path}/batch/{k}.json") as f:
            rows = json.load(f)["rows"]
        begins, begin = {}, 0
        for file in self.sequence.paths:
            begins[file] = begin
            begin += os.path.getsize(file) // self.sequence.tokens.itemsize
        got = [begins[row["file"]] + row["start"] for row in rows]
        check(f"{self.path}/batch/{k}.json", repr(list(self.batch(k)[0])).encode(), repr(got).encode())

    def batches(self):
        name = chance.choice(["batches.bin", "batches.npy"])
        header = HEADER if name.endswith("npy") else 0
        at = chance.randrange(self.steps * self.size)
        size = min(chance.choice([1, 100, 5000, self.size, 3 * self.size]), self.steps * self.size - at)
        fd = os.open(f"{self.path}/{name}", os.O_RDONLY)
        try:
            check(f"{self.path}/{name}: size", b"%d" % (header + self.steps * self.size), b"%d" % os.fstat(fd).st_size)
            forget(fd)
            if chance.random() < 0.5:
                data = until(fd, header + at, size)
            else:
                with mmap.mmap(fd, 0, flags=chance.choice([mmap.MAP_SHARED, mmap.MAP_PRIVATE]), prot=mmap.PROT_READ) as view:
                    with memoryview(view) as whole, whole[header + at:][:size] as part:
                        data = copy_of(part)
        finally:
            os.close(fd)
        check(f"{self.path}/{name}", self.span(at, size), data, header + at)


directories = [Directory(path, settings) for path, settings in described]
ways = [Directory.next, Directory.next_kept, Directory.numbered, Directory.origins, Directory.batches]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        chance.choice(ways)(chance.choice(directories))
    except OSError as e:
        failed[errno.errorcode[e.errno]] += 1
    reads += 1
sys.stdout.writelines(f"number {path} {k} {n}\n" for (path, k), n in numbers.items())
sys.stdout.writelines(f"failed {name} {n}\n" for name, n in failed.items())
print(f"reads {reads}")
