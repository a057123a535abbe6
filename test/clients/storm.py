"""Reads a split in every way until standard input ends, despite all errors: storm.py SPLIT

The split must be in sequential order. The low 24 bits of each token are its position, and the other
bits are the version of the file; the array "at" has the same values. Every batch is checked. The
first wrong byte ends reading in that way, and the status is 1. At the end, each way prints
`number PLACE N` (it read N batches from next whose place in the epoch is PLACE), `failed ERRNO N`,
`slowest SECONDS`, and `reads N`. Once "ready" is printed, all processes can be sent SIGURG and
SIGPROF.
"""

import errno
import json
import mmap
import multiprocessing
import os
import random
import select
import signal
import sys
import time
from collections import Counter

import numpy as np

from readers import copy_of, drop_cache, read_range

split = sys.argv[1]
with open(f"{split}/info.json") as f:
    info = json.load(f)
B, T, STEPS, SIZE = info["batch_size"], info["block_size"], info["steps"], info["batch_bytes"]
HEADER = 4096
TENSORS = SIZE + B * T * 4  # bytes of all arrays of a batch


def check_batch(data, k=None):
    """Checks a batch, and returns its place in the epoch. If k is given, it must be batch k."""
    x, y = np.frombuffer(data, np.uint32).reshape(2, B, T)
    first = int(x[0, 0])
    position = first % 2**24
    consecutive = (x.ravel() == np.arange(first, first + B * T, dtype=np.uint32)).all() and (y == x + 1).all()
    assert position % (B * T) == 0 and consecutive, "wrong bytes"
    assert k is None or position == k % STEPS * B * T, f"got batch {position // (B * T)}, want batch {k}"
    return position // (B * T)


def check_array(array, k=None):
    """Checks an array "at", and returns the place of its batch. If k is given, it must be batch k."""
    values = np.frombuffer(array, np.uint32)
    first = int(values[0]) % 2**24
    assert len(values) == B * T and (values == np.arange(values[0], values[0] + B * T, dtype=np.uint32)).all(), "wrong bytes"
    assert k is None or first == k % STEPS * B * T, f"got an array of batch {first // (B * T)}, want batch {k}"
    return first // (B * T)


def check_all(data, k=None):
    """Checks that all arrays of a .safetensors file belong to one batch, and returns its place."""
    header = json.loads(data[8:HEADER])
    assert sorted(header) == ["__metadata__", "at", "x", "y"], f"got the header {header}"
    number = int(header["__metadata__"]["batch"])
    assert k is None or k == number, f"got batch {number}, want batch {k}"
    begin, end = header["at"]["data_offsets"]
    found = check_batch(data[HEADER:HEADER + SIZE], number)
    assert check_array(data[HEADER + begin:HEADER + end], number) == found
    return found


def whole(fd, offset, size):
    data = read_range(fd, offset, size)
    assert len(data) == size, f"got {len(data)} bytes, want {size}"
    return data


def opened(name, read):
    fd = os.open(f"{split}/{name}", os.O_RDONLY)
    try:
        return read(fd)
    finally:
        os.close(fd)


def next_open():
    return check_batch(opened("next", lambda fd: whole(fd, 0, SIZE)))


def next_npy():
    return check_batch(opened("next.npy", lambda fd: whole(fd, 0, HEADER + SIZE))[HEADER:])


def next_safetensors():
    return check_all(opened("next.safetensors", lambda fd: whole(fd, 0, HEADER + TENSORS)))


def next_tensors():
    """Reads a .safetensors file in pieces, in random order."""
    def read(fd):
        data, cuts = bytearray(HEADER + TENSORS), sorted({0, HEADER + TENSORS, *random.sample(range(1, TENSORS), 5)})
        for begin, end in random.sample(list(zip(cuts, cuts[1:])), len(cuts) - 1):
            data[begin:end] = whole(fd, begin, end - begin)
        return check_all(bytes(data))
    return opened("next.safetensors", read)


def next_plain():
    with open(f"{split}/next", "rb") as f:
        return check_batch(f.read())


def next_nonblocking():
    fd = os.open(f"{split}/next", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return check_batch(whole(fd, 0, SIZE))
    finally:
        os.close(fd)


def rows():
    """Reads the rows of x and y in random order, and some of them twice."""
    fd = os.open(f"{split}/next", os.O_RDONLY)
    size = SIZE // (2 * B)
    order = [0]

    def read():
        nonlocal order
        data = bytearray(SIZE)
        last = order[-1]  # a repeated read gets the same batch
        while order[0] == last:
            order = random.sample(range(2 * B), 2 * B)
        for i in order:
            # After all other rows, a second read of the first row would get the next batch.
            for _ in range(1 if i == order[-1] == 0 else random.choice([1, 1, 2])):
                data[i * size:(i + 1) * size] = whole(fd, i * size, size)
        return check_batch(data)
    return read


def kept(name):
    fd = os.open(f"{split}/{name}", os.O_RDONLY)
    return lambda: check_batch(whole(fd, 0, SIZE))


def numbered():
    k = random.randrange(2 * STEPS)
    end, skip, size, check = random.choice([("", 0, SIZE, check_batch), (".npy", HEADER, SIZE, check_batch), (".at.npy", HEADER, B * T * 4, check_array),
                                            (".safetensors", 0, HEADER + TENSORS, check_all)])
    check(opened(f"batch/{k}{end}", lambda fd: whole(fd, 0, skip + size))[skip:], k)


def batches():
    fd = os.open(f"{split}/batches.bin", os.O_RDONLY)
    size = os.fstat(fd).st_size

    def read():
        k = random.randrange(STEPS)
        drop_cache(fd)
        check_batch(whole(fd, k * SIZE, SIZE), k)
        assert os.fstat(fd).st_size == size
    return read


def arrays():
    fd = os.open(f"{split}/batches.at.npy", os.O_RDONLY)

    def read():
        k = random.randrange(STEPS)
        drop_cache(fd)
        check_array(whole(fd, HEADER + k * B * T * 4, B * T * 4), k)
    return read


def mapped():
    fd = os.open(f"{split}/batches.npy", os.O_RDONLY)
    view = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def read():
        k = random.randrange(STEPS)
        view.madvise(mmap.MADV_DONTNEED)
        drop_cache(fd)
        with memoryview(view) as whole, whole[HEADER + k * SIZE:][:SIZE] as part:
            try:
                batch = copy_of(part)
            except OSError:
                os.pread(fd, SIZE, HEADER + k * SIZE)  # fails with the cause, if that remains
                raise
        check_batch(batch, k)
    return read


def tokens():
    """Reads a part of tokens.bin, once with read and once from a map."""
    n, first = B * T, random.randrange(STEPS) * B * T
    fd = os.open(f"{split}/tokens.bin", os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as view, memoryview(view) as mapping:
            for data in whole(fd, 4 * first, 4 * n), copy_of(mapping[4 * first:][:4 * n]):
                got = np.frombuffer(data, np.uint32)
                assert (got == np.arange(got[0], got[0] + n, dtype=np.uint32)).all() and got[0] % 2**24 == first, "wrong tokens"
    finally:
        os.close(fd)


def texts():
    for name in ["../status.json", "info.json"]:
        json.loads(opened(name, lambda fd: read_range(fd, 0, 1 << 20)))
    int(opened("cursor", lambda fd: read_range(fd, 0, 100)))
    with open(f"{split}/seed={random.randrange(5)}/next", "rb") as f:
        check_batch(f.read())
    assert "README" in os.listdir(f"{split}/..")


ways = {"next": lambda: next_open, "npy": lambda: next_npy, "safetensors": lambda: next_safetensors, "plain": lambda: next_plain,
        "nonblocking": lambda: next_nonblocking, "rows": rows, "tensors": lambda: next_tensors, "arrays": arrays,
        "kept": lambda: kept("next"), "numbered": lambda: numbered, "batches": batches, "mapped": mapped, "tokens": lambda: tokens,
        "texts": lambda: texts}


def storm(way, started, printing):
    """Reads in one way until standard input ends, and prints what it found."""
    try:
        read = ways[way]()
    finally:
        started.wait()
    numbers, failed, slowest, reads = Counter(), Counter(), 0, 0
    while not select.select([stdin], [], [], 0)[0]:
        began = time.monotonic()
        try:
            k = read()
            if k is not None:
                numbers[k] += 1
        except OSError as e:
            failed[errno.errorcode[e.errno]] += 1
            # The file or the mount may have been replaced.
            again = way in ("kept", "batches", "arrays", "mapped") and e.errno != errno.EIO or way == "rows"
            while again:
                time.sleep(0.001)
                try:
                    read, again = ways[way](), False
                except OSError as e:
                    failed[errno.errorcode[e.errno]] += 1
        slowest = max(slowest, time.monotonic() - began)
        reads += 1
    with printing:
        sys.stdout.writelines(f"number {k} {n}\n" for k, n in numbers.items())
        sys.stdout.writelines(f"failed {name} {n}\n" for name, n in failed.items())
        print(f"slowest {slowest:.6f}\nreads {reads}", flush=True)


for number in signal.SIGURG, signal.SIGPROF:
    signal.signal(number, lambda *_: None)  # unlike SIG_IGN, it interrupts system calls

# Each way has a process. Processes that are forked need not import NumPy, which takes longer than
# a short storm.
context = multiprocessing.get_context("fork")
started, printing = context.Barrier(len(ways) + 1), context.Lock()
stdin = os.dup(0)  # multiprocessing closes standard input in the processes
processes = [context.Process(target=storm, args=(way, started, printing)) for way in ways]
for process in processes:
    process.start()
started.wait()
print("ready", flush=True)
for process in processes:
    process.join()
sys.exit(any(process.exitcode for process in processes))
