"""Reads a file of a mount over and over, whatever happens to the mount: storm.py WAY SPLIT

The split's tokens are their own positions, in their low 24 bits, and the version of the file in the others, and so is the array "at"
beside x. Its order is sequential, and a batch has B rows of T tokens. Every batch is checked whole. When standard input ends, prints `number PLACE N`: so many batches of
next were at that place of their epoch; `failed ERRNO N`, reads that did; `slowest SECONDS` and `reads N`. A wrong byte is a traceback
and exit status 1.
"""

import errno
import json
import mmap
import os
import random
import select
import sys
import time
from collections import Counter

import numpy as np

from readers import copy_of, forget, until

split = sys.argv[2]
with open(f"{split}/info.json") as f:
    info = json.load(f)
B, T, STEPS, SIZE = info["batch_size"], info["block_size"], info["steps"], info["batch_bytes"]
HEADER = 4096
TENSORS = SIZE + B * T * 4  # all arrays of a batch


def place(data, k=None):
    """The place in its epoch of a batch, which is k if that is given."""
    x, y = np.frombuffer(data, np.uint32).reshape(2, B, T)
    first = int(x[0, 0])
    at = first % 2**24
    assert at % (B * T) == 0 and (x.ravel() == np.arange(first, first + B * T, dtype=np.uint32)).all() and (y == x + 1).all(), "wrong bytes"
    assert k is None or at == k % STEPS * B * T, f"batch {at // (B * T)} for batch {k}"
    return at // (B * T)


def place_of(array, k=None):
    """The place in its epoch of the batch that the array "at" is of, which is that of batch k if that is given."""
    at = np.frombuffer(array, np.uint32)
    first = int(at[0]) % 2**24
    assert len(at) == B * T and (at == np.arange(at[0], at[0] + B * T, dtype=np.uint32)).all(), "wrong bytes"
    assert k is None or first == k % STEPS * B * T, f"an array of batch {first // (B * T)} for batch {k}"
    return first // (B * T)


def place_of_all(data, k=None):
    """The place of a .safetensors file, whose arrays are all of one batch."""
    header = json.loads(data[8:HEADER])
    assert sorted(header) == ["__metadata__", "at", "x", "y"], header
    number = int(header["__metadata__"]["batch"])
    assert k is None or k == number, f"batch {number} for batch {k}"
    begin, end = header["at"]["data_offsets"]
    at = place(data[HEADER:HEADER + SIZE], number)
    assert place_of(data[HEADER + begin:HEADER + end], number) == at
    return at


def whole(fd, at, size):
    data = until(fd, at, size)
    assert len(data) == size, f"{len(data)} bytes of {size}"
    return data


def opened(name, read):
    fd = os.open(f"{split}/{name}", os.O_RDONLY)
    try:
        return read(fd)
    finally:
        os.close(fd)


def next_open():
    return place(opened("next", lambda fd: whole(fd, 0, SIZE)))


def next_npy():
    return place(opened("next.npy", lambda fd: whole(fd, 0, HEADER + SIZE))[HEADER:])


def next_safetensors():
    return place_of_all(opened("next.safetensors", lambda fd: whole(fd, 0, HEADER + TENSORS)))


def next_tensors():
    """A .safetensors file in pieces, in any order."""
    def read(fd):
        data, cuts = bytearray(HEADER + TENSORS), sorted({0, HEADER + TENSORS, *random.sample(range(1, TENSORS), 5)})
        for begin, end in random.sample(list(zip(cuts, cuts[1:])), len(cuts) - 1):
            data[begin:end] = whole(fd, begin, end - begin)
        return place_of_all(bytes(data))
    return opened("next.safetensors", read)


def next_plain():
    with open(f"{split}/next", "rb") as f:
        return place(f.read())


def next_nonblocking():
    fd = os.open(f"{split}/next", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return place(whole(fd, 0, SIZE))
    finally:
        os.close(fd)


def rows():
    """The rows of x and y in any order, some of them twice."""
    fd = os.open(f"{split}/next", os.O_RDONLY)
    size = SIZE // (2 * B)
    order = [0]

    def read():
        nonlocal order
        data = bytearray(SIZE)
        last = order[-1]  # which read again would be of the same batch
        while order[0] == last:
            order = random.sample(range(2 * B), 2 * B)
        for i in order:
            # The first row read again when all were delivered would be that of the next batch.
            for _ in range(1 if i == order[-1] == 0 else random.choice([1, 1, 2])):
                data[i * size:(i + 1) * size] = whole(fd, i * size, size)
        return place(data)
    return read


def kept(name):
    fd = os.open(f"{split}/{name}", os.O_RDONLY)
    return lambda: place(whole(fd, 0, SIZE))


def numbered():
    k = random.randrange(2 * STEPS)
    end, skip, size, check = random.choice([("", 0, SIZE, place), (".npy", HEADER, SIZE, place), (".at.npy", HEADER, B * T * 4, place_of),
                                            (".safetensors", 0, HEADER + TENSORS, place_of_all)])
    check(opened(f"batch/{k}{end}", lambda fd: whole(fd, 0, skip + size))[skip:], k)


def batches():
    fd = os.open(f"{split}/batches.bin", os.O_RDONLY)
    size = os.fstat(fd).st_size

    def read():
        k = random.randrange(STEPS)
        forget(fd)
        place(whole(fd, k * SIZE, SIZE), k)
        assert os.fstat(fd).st_size == size
    return read


def arrays():
    fd = os.open(f"{split}/batches.at.npy", os.O_RDONLY)

    def read():
        k = random.randrange(STEPS)
        forget(fd)
        place_of(whole(fd, HEADER + k * B * T * 4, B * T * 4), k)
    return read


def mapped():
    fd = os.open(f"{split}/batches.npy", os.O_RDONLY)
    view = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def read():
        k = random.randrange(STEPS)
        view.madvise(mmap.MADV_DONTNEED)
        forget(fd)
        with memoryview(view) as whole, whole[HEADER + k * SIZE:][:SIZE] as part:
            place(copy_of(part), k)
    return read


def tokens():
    """Some of all tokens, read and mapped."""
    n, first = B * T, random.randrange(STEPS) * B * T
    fd = os.open(f"{split}/tokens.bin", os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as view, memoryview(view) as all:
            for data in whole(fd, 4 * first, 4 * n), copy_of(all[4 * first:][:4 * n]):
                got = np.frombuffer(data, np.uint32)
                assert (got == np.arange(got[0], got[0] + n, dtype=np.uint32)).all() and got[0] % 2**24 == first, "wrong tokens"
    finally:
        os.close(fd)


def texts():
    for name in ["../status.json", "info.json"]:
        json.loads(opened(name, lambda fd: until(fd, 0, 1 << 20)))
    int(opened("cursor", lambda fd: until(fd, 0, 100)))
    looked = f"seed={random.randrange(5)}"
    with open(f"{split}/{looked}/next", "rb") as f:
        place(f.read())
    assert "README" in os.listdir(f"{split}/..")


ways = {"next": lambda: next_open, "npy": lambda: next_npy, "safetensors": lambda: next_safetensors, "plain": lambda: next_plain,
        "nonblocking": lambda: next_nonblocking, "rows": rows, "tensors": lambda: next_tensors, "arrays": arrays,
        "kept": lambda: kept("next"), "numbered": lambda: numbered, "batches": batches, "mapped": mapped, "tokens": lambda: tokens,
        "texts": lambda: texts}
read = ways[sys.argv[1]]()
numbers, failed, slowest, reads = Counter(), Counter(), 0, 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    began = time.monotonic()
    try:
        k = read()
        if k is not None:
            numbers[k] += 1
    except OSError as e:
        failed[errno.errorcode[e.errno]] += 1
        # The file is another one now, or the mount.
        again = sys.argv[1] in ("kept", "batches", "arrays", "mapped") and e.errno != errno.EIO or sys.argv[1] == "rows"
        while again:
            time.sleep(0.001)
            try:
                read, again = ways[sys.argv[1]](), False
            except OSError as e:
                failed[errno.errorcode[e.errno]] += 1
    slowest = max(slowest, time.monotonic() - began)
    reads += 1
sys.stdout.writelines(f"number {k} {n}\n" for k, n in numbers.items())
sys.stdout.writelines(f"failed {name} {n}\n" for name, n in failed.items())
print(f"slowest {slowest:.6f}\nreads {reads}")
