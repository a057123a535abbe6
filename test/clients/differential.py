"""Compares random reads of a mount with reference.py: differential.py SEQUENCES.json SEED READS

SEQUENCES.json is a list of [directory in the mount, settings for reference.py]. At the first wrong
byte, the program prints `MISMATCH FILE ...` and exits with status 1.
"""

import io
import json
import mmap
import os
import random
import sys
from functools import lru_cache

import numpy as np

from readers import copy_of, drop_cache, read_range
from reference import TYPES, Sequence

HEADER = 4096
TENSOR_TYPES = {name: "BF16" if name == "bfloat16" else "BOOL" if name == "bool" else name[0].upper() + name.lstrip("ufloatin") for name in TYPES}
with open(sys.argv[1]) as f:
    described = json.load(f)
chance = random.Random(int(sys.argv[2]))


def check(file, want, got, offset=0):
    """Ends the program if got, read from a file at an offset, differs from want."""
    want, got = bytes(want), bytes(got)
    if got == want:
        return
    wrong = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    print(f"MISMATCH {file} at byte {offset + wrong}: got {got[wrong:][:8].hex()}... ({len(got)} bytes from {offset}), "
          f"want {want[wrong:][:8].hex()}... ({len(want)} bytes)", flush=True)
    os._exit(1)


def header_of(data):
    """Returns the shape in the header of a .npy file."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    return np.lib.format.read_array_header_1_0(file)[0]


class Directory:
    """A split or settings directory in the mount, with the sequence that the reference computes."""

    def __init__(self, path, settings):
        self.path, self.sequence = path, Sequence(**settings)
        with open(f"{path}/info.json") as f:
            info = json.load(f)
        self.size, self.steps = info["batch_bytes"], info["steps"]
        self.arrays_of = lru_cache(64)(self.sequence.arrays_of)
        arrays = self.arrays_of(0)[1]
        self.main = [name for name in ("x", "y", "tokens", "rows") if name in arrays]
        self.aligned = [name for name in arrays if name not in self.main]
        self.shape = (*[2] * (len(self.main) - 1), *arrays[self.main[0]].shape)
        # NumPy has no bfloat16, so a .npy file stores it as uint16; a .safetensors file names it.
        s = self.sequence
        stored = {b["name"]: b.get("dtype", "uint16") for b in (s.sources or [{"arrays": s.arrays}])[0].get("arrays", [])}
        stored |= dict.fromkeys(self.main, s.token_dtype if s.dtype == "native" else s.dtype)
        self.tensor_types = {name: TENSOR_TYPES.get(stored.get(name)) or TENSOR_TYPES[arrays[name].dtype.name] for name in arrays}
        self.next_fd = None

    def raw(self, k, name=None):
        """Returns the bytes of the main arrays of batch k, or of the named array."""
        arrays = self.arrays_of(k)[1]
        return b"".join(arrays[n].tobytes() for n in ([name] if name else self.main))

    def tensors(self, k):
        """Returns the bytes of all arrays of batch k, sorted by name."""
        return b"".join(self.raw(k, name) for name in sorted(self.tensor_types))

    def span(self, offset, size, name=None):
        """Returns bytes of batches.bin, or of batches.<name>.npy after its header."""
        one = len(self.raw(0, name))
        first, last = offset // one, -(-(offset + size) // one)
        return b"".join(self.raw(k, name) for k in range(first, last))[offset - first * one:][:size]

    def content(self, name, data):
        """Checks the header of a file, and returns the bytes of its arrays."""
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(data))
            one = name.split(".")[1]
            like = self.arrays_of(0)[1][one] if one in self.aligned else np.empty(self.shape, self.sequence.type)
            check(f"{self.path}/{name}", repr((like.shape, like.dtype.str)).encode(), repr((array.shape, array.dtype.str)).encode())
            return array.tobytes()
        if name.endswith(".safetensors"):
            begin, arrays = 8 + int.from_bytes(data[:8], "little"), self.arrays_of(0)[1]
            header = {n: (t["dtype"], t["shape"], t["data_offsets"]) for n, t in json.loads(data[8:begin]).items() if n != "__metadata__"}
            want = {n: (self.tensor_types[n], list(arrays[n].shape)) for n in arrays}
            check(f"{self.path}/{name}", repr(sorted(want.items())).encode(), repr(sorted((n, t[:2]) for n, t in header.items())).encode())
            ends = sorted(t[2] for t in header.values())
            check(f"{self.path}/{name}: gaps", repr([0, *(e for _, e in ends)]).encode(), repr([*(b for b, _ in ends), len(data) - begin]).encode())
            return b"".join(data[begin + b:begin + e] for _, (_, _, (b, e)) in sorted(header.items()))
        return data

    def cursor(self):
        with open(f"{self.path}/cursor") as f:
            return int(f.read())

    def check_next(self, name, data, low, high):
        """Checks that data, read from next, is a batch with a number of about low to high.

        After a seek or a failed read, the number may be outside of that range.
        """
        expected, data = self.tensors if name.endswith("safetensors") else self.raw, self.content(name, bytes(data))
        for k in (*range(low, high + 1), *range(low - 1, max(low - 64, -1), -1), *range(high + 1, high + 64)):
            if expected(k) == data:
                return
        check(f"{self.path}/{name}, batch {low} to {high}", expected(low), data)

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
                piece = read_range(fd, begin, end - begin)
                if len(piece) != end - begin:
                    check(f"{self.path}/{name}", bytes(end - begin), piece, begin)
                data[begin:end] = piece
        finally:
            os.close(fd)
        self.check_next(name, data, low, self.cursor())

    def next_kept_open(self):
        if self.next_fd is None:
            self.next_fd = os.open(f"{self.path}/next", os.O_RDONLY)
        low = self.cursor()
        try:
            data = read_range(self.next_fd, 0, self.size)
        except OSError:
            os.close(self.next_fd)
            self.next_fd = None
            raise
        self.check_next("next", data, low, self.cursor())

    def numbered(self):
        far = 3000 if self.sequence.order.startswith("torch") else 2**40
        k = chance.choice([chance.randrange(20), chance.randrange(3000), chance.randrange(far)])
        array = chance.choice([None, *self.aligned])
        if array and k < 2**36:
            name, want = f"batch/{k}.{array}.npy", self.raw(k, array)
        else:
            name = f"batch/{k}" + chance.choice(["", ".npy", ".safetensors"])
            want = self.tensors(k) if name.endswith("safetensors") else self.raw(k)
        with open(f"{self.path}/{name}", "rb", buffering=0) as f:
            if chance.random() < 0.3:
                drop_cache(f.fileno())
            data = read_range(f.fileno(), 0, 1 << 30)
            check(f"{self.path}/{name}", want, self.content(name, bytes(data)))
            offset = chance.randrange(len(data))
            check(f"{self.path}/{name}", data[offset:offset + 1000], read_range(f.fileno(), offset, 1000), offset)

    def origins(self):
        k = chance.randrange(3000)
        with open(f"{self.path}/batch/{k}.json") as f:
            rows = json.load(f)["rows"]
        begins, begin = {}, 0
        for file in self.sequence.main_paths:
            begins[file] = begin
            begin += os.path.getsize(file) // self.sequence.tokens[0].nbytes
        got = [begins[row["file"]] + row["start"] for row in rows]
        check(f"{self.path}/batch/{k}.json", repr(list(self.arrays_of(k)[0])).encode(), repr(got).encode())

    def batches(self):
        array = chance.choice([None, *self.aligned])
        name = f"batches.{array}.npy" if array else chance.choice(["batches.bin", "batches.npy"])
        header = HEADER if name.endswith("npy") else 0
        one = len(self.raw(0, array))
        offset = chance.randrange(self.steps * one)
        size = min(chance.choice([1, 100, 5000, one, 3 * one]), self.steps * one - offset)
        fd = os.open(f"{self.path}/{name}", os.O_RDONLY)
        try:
            if header:
                shape = self.arrays_of(0)[1][array].shape if array else self.shape
                check(f"{self.path}/{name}: shape", repr((self.steps, *shape)).encode(), repr(header_of(read_range(fd, 0, HEADER))).encode())
            check(f"{self.path}/{name}: size", b"%d" % (header + self.steps * one), b"%d" % os.fstat(fd).st_size)
            drop_cache(fd)
            if chance.random() < 0.5:
                data = read_range(fd, header + offset, size)
            else:
                with mmap.mmap(fd, 0, flags=chance.choice([mmap.MAP_SHARED, mmap.MAP_PRIVATE]), prot=mmap.PROT_READ) as view:
                    with memoryview(view) as whole, whole[header + offset:][:size] as part:
                        data = copy_of(part)
        finally:
            os.close(fd)
        check(f"{self.path}/{name}", self.span(offset, size, array), data, header + offset)


directories = [Directory(path, settings) for path, settings in described]
ways = [Directory.next, Directory.next_kept_open, Directory.numbered, Directory.origins, Directory.batches]
for _ in range(int(sys.argv[3])):
    chance.choice(ways)(chance.choice(directories))
