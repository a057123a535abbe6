#!/usr/bin/env python3
"""Read all rows of a large matrix once, in random order, with np.memmap and with batchfs, and compare the memory.

    head -c 1G /dev/urandom >matrix.bin
    batchfs mount -d --set splits.train.tokens=matrix.bin --set splits.train.layout=rows --set splits.train.token_dtype=uint8 \\
        --set 'splits.train.shape=[4096]' --set batch.order=shuffle --set batch.batch_size=64 MOUNTPOINT
    python3 examples/matrix_numpy.py matrix.bin MOUNTPOINT

With np.memmap, the process grows to the size of the file, and is killed in a container with less memory. With the mount, it holds one batch.
"""
import json
import sys

import numpy as np

path, mountpoint = sys.argv[1:]
with open(f"{mountpoint}/train/info.json") as f:
    info = json.load(f)
B, N, row = info["batch_size"], info["rows_per_epoch"], tuple(info["shape"][1:])


def resident():
    """Returns the resident memory of this process, in MiB."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def from_memmap():
    matrix = np.memmap(path, info["dtype"], "r").reshape(-1, *row)
    order = np.random.default_rng(1337).permutation(N)
    for begin in range(0, N, B):
        yield matrix[order[begin:begin + B]]


def from_mount():
    batch = np.empty((B, *row), info["dtype"])
    with open(f"{mountpoint}/train/batches.bin", "rb", buffering=0) as f:
        for begin in range(0, N, B):
            view, have = memoryview(batch).cast("B"), 0
            while have < batch.nbytes:  # a read of more than a mebibyte may come in parts
                n = f.readinto(view[have:])
                if n == 0:
                    sys.exit("batches.bin ends too early")
                have += n
            yield batch[:N - begin]  # the last batch may begin the next epoch


sums = []
for name, batches in ("the mount", from_mount), ("np.memmap", from_memmap):
    before, rows, total = resident(), 0, 0
    for batch in batches():
        rows += len(batch)
        total = total + batch.sum(0, dtype=np.float64)  # stands for a training step
        if rows == N:
            grown = resident() - before
    sums.append(total)
    print(f"{name}: {rows} rows once each, memory grew by {grown:.0f} MiB", flush=True)
if not np.allclose(*sums):
    sys.exit("the sums of all rows differ")
