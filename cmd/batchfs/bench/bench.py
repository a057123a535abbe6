"""The trainer of `batchfs bench`. Each line of standard input is a command in JSON; the reply is a
line with the wait for each batch, in microseconds. Each way to read is a generator of (x, y), both
int64 of shape (B, T)."""
import json
import os
import sys
import warnings
from itertools import count
from time import perf_counter

import numpy as np

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
    tensor, stack = torch.from_numpy, torch.stack

    def randint(high, n):
        return torch.randint(high, (n,))
except ImportError:
    torch, Dataset = None, object
    tensor, stack = np.asarray, np.stack

    def randint(high, n):
        return np.random.randint(high, size=n)


def nanogpt(path, B, T):
    """nanoGPT's get_batch, which maps the file for every batch."""
    while True:
        data = np.memmap(path, np.uint16, "r")
        ix = randint(len(data) - T, B)
        x = stack([tensor(data[i:i + T].astype(np.int64)) for i in ix])
        y = stack([tensor(data[i + 1:i + 1 + T].astype(np.int64)) for i in ix])
        yield x, y


def pread_rows(path, B, T):
    """One system call per row and one conversion per batch: the fastest loader in the trainer."""
    rows = np.empty((B, T + 1), np.uint16)
    rng = np.random.default_rng()
    with open(path, "rb", 0) as f:
        fd = f.fileno()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        while True:
            for row, i in zip(rows, rng.integers(os.fstat(fd).st_size // 2 - T, size=B).tolist()):
                os.preadv(fd, [row], 2 * i)
            t = tensor(rows.astype(np.int64))
            yield t[:, :-1], t[:, 1:]


class Rows(Dataset):
    def __init__(self, path, T):
        self.data, self.T = np.memmap(path, np.uint16, "r"), T

    def __len__(self):
        return len(self.data) - self.T

    def __getitem__(self, i):
        row = torch.from_numpy(self.data[i:i + self.T + 1].astype(np.int64))
        return row[:-1], row[1:]


def dataloader(path, B, T):
    rows = Rows(path, T)
    # Without replacement, RandomSampler would first compute a permutation of all starts.
    draw = RandomSampler(rows, replacement=True, num_samples=1 << 40)
    # With fork, workers inherit the memmap. Pickling it would copy it.
    yield from DataLoader(rows, B, sampler=draw, num_workers=2, multiprocessing_context="fork")


def split(batch):
    x, y = tensor(batch.astype(np.int64))
    return x, y


def batches_bin(path, B, T):
    batch = np.empty((2, B, T), np.uint16)
    with open(path + "/batches.bin", "rb", 0) as f:
        for k in count():
            assert os.preadv(f.fileno(), [batch], k * batch.nbytes) == batch.nbytes
            yield split(batch)


def next_kept(path, B, T):
    batch = np.empty((2, B, T), np.uint16)
    with open(path + "/next", "rb", 0) as f:
        while True:
            assert os.preadv(f.fileno(), [batch], 0) == batch.nbytes
            yield split(batch)


def next_opened(path, B, T):
    while True:
        with open(path + "/next", "rb") as f:
            data = f.read()
        yield split(np.frombuffer(data, np.uint16).reshape(2, B, T))


def compute(seconds, a=np.ones((96, 96), np.float32)):
    end = perf_counter() + seconds
    while perf_counter() < end:
        a @ a


def check(c, x, y):
    for t in x, y:
        assert tuple(t.shape) == (c["batch"], c["block"]) and str(t.dtype).endswith("int64"), (t.shape, t.dtype)
    assert (x[:, 1:] == y[:, :-1]).all(), "y is not x shifted by one"


def run(c, batches):
    check(c, *next(batches))
    waits = []
    for step in range(-c["lead"], c["steps"]):
        if c["compute"]:
            compute(c["compute"])
        start = perf_counter()
        batch = next(batches)
        now = perf_counter()
        if step < 0:
            continue
        if step == 0:
            end = start + c["seconds"]
        waits.append((now - start) * 1e6)
        if now > end:
            break
    check(c, *batch)
    return waits


hello = {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch.__version__ if torch else ""}
print(json.dumps(hello), flush=True)
for line in sys.stdin:
    c = json.loads(line)
    batches = globals()[c["kind"]](c["path"], c["batch"], c["block"])
    waits = run(c, batches)
    batches.close()  # a remaining mapping would keep a cold file in the page cache
    print(json.dumps(waits), flush=True)
