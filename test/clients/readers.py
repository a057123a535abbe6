"""Reads a file one particular way: readers.py METHOD PATH [ARG...]

Prints `<bytes> <sha256>` for every whole content read, as soon as it is read. Methods marked @or_errno
print `errno NAME` when the file refuses them; any other error is a traceback and exit status 1.
"""

import errno
import functools
import hashlib
import mmap
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import numpy as np

METHODS = {}


def method(f):
    METHODS[f.__name__] = f
    return f


def or_errno(f):
    @functools.wraps(f)
    def wrapped(*args):
        try:
            return f(*args)
        except OSError as e:
            return "errno " + errno.errorcode.get(e.errno, str(e.errno))
    return wrapped


@contextmanager
def opened(path):
    """The descriptor and size of a file; os.open because Python's own file objects read ahead."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)


def until_eof(read):
    """Joins what read(offset) returns, called until it returns nothing."""
    data = bytearray()
    while piece := read(len(data)):
        data += piece
    return data


def line(data):
    return f"{memoryview(data).nbytes} {hashlib.sha256(data).hexdigest()}"


# The plain ways.

@method
def read(path):
    with open(path, "rb") as f:
        return line(f.read())


@method
def readinto(path):
    with open(path, "rb", buffering=0) as f:
        data = bytearray(os.fstat(f.fileno()).st_size)
        rest = memoryview(data)
        while rest:
            n = f.readinto(rest)
            assert n, f"end of file {len(rest)} bytes before st_size"
            rest = rest[n:]
        assert f.read(1) == b"", "no end of file at st_size"
    return line(data)


@method
def pread(path):
    with opened(path) as (fd, _):
        return line(until_eof(lambda at: os.pread(fd, 100003, at)))


@method
def head_then_rest(path):
    with opened(path) as (fd, _):
        return line(os.read(fd, 100) + until_eof(lambda at: os.read(fd, 65536)))


@method
def rewind(path):
    """What `file` and every format sniffer do: look at the head, start over."""
    with opened(path) as (fd, _):
        head = os.read(fd, 100)
        os.lseek(fd, 0, os.SEEK_SET)
        data = until_eof(lambda at: os.read(fd, 65536))
    assert data[:100] == head, "other bytes after the rewind"
    return line(data)


# Copies.

@method
@or_errno
def sendfile(path):
    with opened(path) as (fd, size), tempfile.TemporaryFile() as out:
        at = 0
        while n := os.sendfile(out.fileno(), fd, at, max(size - at, 1)):
            at += n
        out.seek(0)
        return line(out.read())


@method
def copyfile(path):
    with tempfile.TemporaryDirectory() as directory:
        return read(shutil.copyfile(path, os.path.join(directory, "copy")))


# Maps.

def mapped(path, flags):
    with opened(path) as (fd, size), mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ) as m:
        return line(m)


@method
@or_errno
def mmap_shared(path):
    return mapped(path, mmap.MAP_SHARED)


@method
@or_errno
def mmap_private(path):
    return mapped(path, mmap.MAP_PRIVATE)


# NumPy. Of an .npy file its array's bytes are hashed: the content without the header.

@method
def fromfile(path):
    return line(np.fromfile(path, np.uint8))


@method
@or_errno
def memmap(path):
    array = np.memmap(path, np.uint8, mode="r")
    digest = hashlib.sha256()
    for at in range(0, array.size, 100003):
        digest.update(array[at:at + 100003])
    return f"{array.nbytes} {digest.hexdigest()}"


@method
def npload(path):
    return line(np.load(path).tobytes())


@method
@or_errno
def npload_mmap(path):
    return line(np.load(path, mmap_mode="r").tobytes())


# Many reads; of `next`, each is another batch.

@method
def pread_kept(path, n):
    """One open, n whole reads."""
    with opened(path) as (fd, size):
        for _ in range(int(n)):
            data = os.pread(fd, size, 0)
            while len(data) < size:
                piece = os.pread(fd, size - len(data), len(data))
                assert piece, f"end of file {size - len(data)} bytes before st_size"
                data += piece
            yield line(data)


@method
def numbers(path, n):
    """n opens with one read each; run by many processes at once."""
    for _ in range(int(n)):
        with opened(path) as (fd, size):
            yield line(os.read(fd, size))


@method
def next_threads(path, threads, n):
    """Threads that share one open file, n reads each."""
    threads, n = int(threads), int(n)
    start = Barrier(threads)
    with opened(path) as (fd, size), ThreadPoolExecutor(threads) as pool:
        def reads(_):
            start.wait()
            return [line(os.pread(fd, size, 0)) for _ in range(n)]
        for lines in pool.map(reads, range(threads)):
            yield from lines


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in METHODS:
        sys.exit(f"usage: readers.py METHOD PATH [ARG...]\nmethods: {' '.join(METHODS)}")
    lines = METHODS[sys.argv[1]](*sys.argv[2:])
    for text in [lines] if isinstance(lines, str) else lines:
        # One write per line, so that processes can share an output.
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
