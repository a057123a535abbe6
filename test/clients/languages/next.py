"""next.py WAY PATH N SIZE: reads PATH N times and writes what it got."""

import array
import mmap
import os
import pathlib
import sys

import numpy as np

path, n, size = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def read():
    with open(path, "rb") as f:
        return f.read()


def os_read():
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def readinto():
    with open(path, "rb") as f:
        batch = bytearray(size)
        return batch[:f.readinto(batch)]


def array_fromfile():
    batch = array.array("H")
    with open(path, "rb") as f:
        batch.fromfile(f, size // 2)
    return batch


def fromfile():
    return np.fromfile(path, np.uint16)


def fromfile_count():
    return np.fromfile(path, np.uint16, count=size // 2).reshape(2, size // 4)


def fromfile_halves():
    with open(path, "rb") as f:
        x = np.fromfile(f, np.uint16, size // 4).reshape(size // 4)
        y = np.fromfile(f, np.uint16, size // 4).reshape(size // 4)
    return np.stack([x, y])


def load():
    return np.load(path)


def path_read_bytes():
    return pathlib.Path(path).read_bytes()


def mapped():
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), size, access=mmap.ACCESS_READ)[:]


def memmap():
    return np.memmap(path, np.uint16, mode="r")


def load_mmap():
    return np.load(path, mmap_mode="r")


class seek:
    """Keeps the file open between reads."""

    def __init__(self):
        self.file = open(path, "rb", buffering=0)

    def __call__(self):
        self.file.seek(0)
        return self.file.read(size)


class pread:
    def __init__(self):
        self.fd = os.open(path, os.O_RDONLY)

    def __call__(self):
        return os.pread(self.fd, size, 0)


way = globals()[sys.argv[1]]
if isinstance(way, type):
    way = way()
for _ in range(n):
    os.write(1, way())
