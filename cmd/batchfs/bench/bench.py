"""The trainer of `batchfs bench`, in Python: runs one contender per line of JSON on standard input, and answers each with a
line that has the microseconds it waited for every batch. A contender is a generator of (x, y), int64 of shape (B, T) each."""
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


def get_batch(data, T, B):
    """nanoGPT's."""
    ix = randint(len(data) - T, B)
    x = stack([tensor(data[i:i + T].astype(np.int64)) for i in ix])
    y = stack([tensor(data[i + 1:i + 1 + T].astype(np.int64)) for i in ix])
    return x, y


def nanogpt(c):
    while True:
        yield get_batch(np.memmap(c["path"], np.uint16, "r"), c["block"], c["batch"])


def nanogpt_kept(c):
    data = np.memmap(c["path"], np.uint16, "r")
    while True:
        yield get_batch(data, c["block"], c["batch"])


def shifted(rows):
    """x and y of rows of T+1 tokens, converted at once."""
    t = tensor(rows.astype(np.int64))
    return t[:, :-1], t[:, 1:]


def pread_rows(c):
    """A system call per row: the fastest there is in the trainer, next to slices of a memmap that stays."""
    rows = np.empty((c["batch"], c["block"] + 1), np.uint16)
    into = [[row] for row in rows]
    rng = np.random.default_rng(c["seed"])
    with open(c["path"], "rb", 0) as f:
        fd = f.fileno()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        high = os.fstat(fd).st_size // 2 - c["block"]
        while True:
            for row, i in zip(into, rng.integers(high, size=c["batch"]).tolist()):
                os.preadv(fd, row, 2 * i)
            yield shifted(rows)


def memmap_slices(c):
    rows = np.empty((c["batch"], c["block"] + 1), np.uint16)
    data = np.memmap(c["path"], np.uint16, "r").view(np.ndarray)  # whose slices cost less than a memmap's
    rng = np.random.default_rng(c["seed"])
    while True:
        for j, i in enumerate(rng.integers(len(data) - c["block"], size=c["batch"]).tolist()):
            rows[j] = data[i:i + c["block"] + 1]
        yield shifted(rows)


class Rows(Dataset):
    def __init__(self, path, T):
        self.data, self.T = np.memmap(path, np.uint16, "r"), T

    def __len__(self):
        return len(self.data) - self.T

    def __getitem__(self, i):
        row = torch.from_numpy(self.data[i:i + self.T + 1].astype(np.int64))
        return row[:-1], row[1:]


def dataloader(c):
    rows = Rows(c["path"], c["block"])
    draw = RandomSampler(rows, replacement=True, num_samples=1 << 40)  # without it, a permutation of all starts is made first
    yield from DataLoader(rows, c["batch"], sampler=draw, num_workers=c["workers"],
                          multiprocessing_context="fork" if c["workers"] else None)  # to pickle a memmap is to copy it


def split(batch, layout):
    if layout == "tokens":
        return shifted(batch)
    x, y = tensor(batch.astype(np.int64, copy=False))
    return x, y


def empty(c):
    B, T = c["batch"], c["block"]
    return np.empty((B, T + 1) if c["layout"] == "tokens" else (2, B, T), c["dtype"])


def fill(fd, batch, offset):
    """A read of more than a mebibyte may come in parts."""
    done = os.preadv(fd, [batch], offset)
    while done < batch.nbytes:
        n = os.preadv(fd, [batch.reshape(-1).view(np.uint8)[done:]], offset + done)
        assert n > 0, "the file has ended"
        done += n


def next_read(c):
    shape = empty(c).shape
    while True:
        with open(c["path"] + "/next", "rb") as f:
            data = f.read()
        yield split(np.frombuffer(data, c["dtype"]).reshape(shape), c["layout"])


def next_open(c):
    like = empty(c)
    while True:
        fd = os.open(c["path"] + "/next", os.O_RDONLY)
        data = os.read(fd, like.nbytes)
        while len(data) < like.nbytes:
            data += os.read(fd, like.nbytes - len(data))
        os.close(fd)
        yield split(np.frombuffer(data, c["dtype"]).reshape(like.shape), c["layout"])


def next_kept(c):
    batch = empty(c)
    with open(c["path"] + "/next", "rb", 0) as f:
        while True:
            fill(f.fileno(), batch, 0)
            yield split(batch, c["layout"])


def by_number(c):
    batch = empty(c)
    for k in count(c["first"]):
        fd = os.open(f"{c['path']}/batch/{k}", os.O_RDONLY)
        fill(fd, batch, 0)
        os.close(fd)
        yield split(batch, c["layout"])


def batches_bin(c):
    batch = empty(c)
    with open(c["path"] + "/batches.bin", "rb", 0) as f:
        for k in count(c["first"]):
            fill(f.fileno(), batch, k * batch.nbytes)
            yield split(batch, c["layout"])


def batches_npy(c):
    for batch in np.load(c["path"] + "/batches.npy", mmap_mode="r").view(np.ndarray)[c["first"]:]:
        yield split(batch.copy() if c["dtype"] == "int64" else batch, c["layout"])


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


if __name__ == "__main__":
    hello = {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch.__version__ if torch else ""}
    print(json.dumps(hello), flush=True)
    running = {}
    for line in sys.stdin:
        c = json.loads(line)
        if c["kind"] == "forget":
            while running:
                running.popitem()[1].close()
            waits = []
        else:
            if c["id"] not in running:
                running[c["id"]] = globals()[c["kind"]](c)
            waits = run(c, running[c["id"]])
        print(json.dumps({"waits": waits}), flush=True)
