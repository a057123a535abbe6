"""Drives examples/torchtitan_batchfs.py as the trainer and validator of torchtitan's main branch do,
with stubs for its modules, on packed documents of its own: torchtitan_train.py DIR
"""

import dataclasses
import itertools
import os
import re
import sys
import types

import numpy as np
import torch

import batchfs

T, ROWS = 16, 8  # tokens in a row, and rows in a step


class BaseDataLoader:
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        def build(self, **kwargs):
            return BatchfsDataLoader(config=dataclasses.replace(self), **kwargs)


for name, names in [
    ("components.loss", {"IGNORE_INDEX": -100}),
    ("components.data.loader", {"BaseDataLoader": BaseDataLoader}),
]:
    sys.modules[f"torchtitan.{name}"] = types.SimpleNamespace(**names)
sys.path.insert(0, "../examples")
from torchtitan_batchfs import BatchfsDataLoader

os.chdir(sys.argv[1])
# Each token is its own position, counted from 1. Documents have 1 token to 50 rows.
ends = np.cumsum([i * 7 % 61 + 1 for i in range(300)] + [50 * T] + [1] * 9)
np.arange(1, ends[-1] + 1, dtype=np.uint16).tofile("a.bin")
ends.astype(np.uint64).tofile("a.bin.index")
with open("config.toml", "w") as f:
    f.write("""
        batch = {block_size = 64, dtype = "int32", order = "shuffle", rows = "packed", documents = true, mask_targets = true}
        splits.train.tokens = "a.bin"
        splits.other = {tokens = "a.bin", seed = 7}
        splits.unmasked = {tokens = "a.bin", mask_targets = false}
        splits.minus = {tokens = "a.bin", ignore_index = -1}
        splits.windows = {tokens = "a.bin", rows = "windows", documents = false}
    """)
mount = batchfs.mount(config="config.toml", set={"mount.grace": "1s"})


def loaders(ranks, rows, split="train", block_size=T, **config):
    """Returns the loader of each rank, whose batches have the given number of rows."""
    config = BatchfsDataLoader.Config(split=f"{mount.mountpoint}/{split}", **config)
    sizes = {"max_context_length": block_size, "num_tokens_per_batch": rows * T}
    return [config.build(dp_world_size=ranks, dp_rank=rank, tokenizer=None, **sizes) for rank in range(ranks)]


def batch_of(item):
    input_dict, labels = item
    tensors = [input_dict.pop("input"), input_dict.pop("positions"), labels]
    assert not input_dict and all(t.dtype == torch.int64 and t.ndim == 1 for t in tensors)
    return torch.stack(tensors)  # fails unless all have one shape


def train(ranks, rows, steps, state=None):
    """Returns the data of each step on all ranks, in the order of its rows, and the state after it."""
    all_ranks = loaders(ranks, rows)
    for loader in all_ranks:
        if state:
            assert loader.state_dict().keys() == state.keys()  # a checkpoint is loaded into a state
            loader.load_state_dict(state)
    iterators, found = [iter(loader) for loader in all_ranks], []
    for _ in range(steps):
        data = torch.cat([batch_of(next(it)) for _ in range(ROWS // (ranks * rows)) for it in iterators], 1)
        assert data.shape == (3, ROWS * T)
        states = [loader.state_dict() for loader in all_ranks]
        assert all(each == states[0] for each in states)
        found.append((data, states[0]))
    return found


# Any number of ranks with the same global batch sees the same rows in each step, and continues
# with them.
runs = [(1, 8), (1, 2), (2, 4), (2, 1), (4, 2)]  # ranks, and rows of a batch
want = train(*runs[0], 10)
for run in runs:
    found = train(*run, 10)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, want, strict=True)), run
    for other in runs:
        rest = train(*other, 5, found[4][1])
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(rest, want[5:], strict=True)), (run, other)

# torchtitan 0.3 gets the same rows, each on its own.
sizes = {"seq_len": T, "local_batch_size": ROWS}
released = BatchfsDataLoader.Config(split=f"{mount.mountpoint}/train").build(dp_world_size=1, dp_rank=0, tokenizer=None, snapshot_every_n_steps=None, **sizes)
for (data, _), (x, y) in zip(want, released):
    assert torch.equal(torch.stack([x["input"], x["positions"], y]), data.view(3, ROWS, T))

# The validator takes one epoch. Every token except the first of each document is a target once, and
# positions count from 0 within each document or segment.
validation = dataclasses.replace(BatchfsDataLoader.Config(split=f"{mount.mountpoint}/train/order=sequential"), repeat=False)
loader = validation.build(dp_world_size=1, dp_rank=0, tokenizer=None, max_context_length=T, num_tokens_per_batch=T)
epoch = [batch_of(item) for item in loader]
loader.close()
x, positions, y = torch.stack(epoch, 1)
learned = y != -100
assert torch.equal(y[learned], x[learned] + 1)
times = np.bincount(y[learned], minlength=ends[-1] + 1)
times[0] = 1
assert np.array_equal(np.flatnonzero(times == 0), [1, *ends[:-1] + 1]) and times.max() == 1
assert not positions[:, 0].any()
inside = (positions[:, 1:] > 0) & (x[:, 1:] > 0)  # 0 is padding
assert torch.equal((x - positions)[:, 1:][inside], (x - positions)[:, :-1][inside])
assert torch.equal(inside[x[:, 1:] > 0], learned[:, :-1][x[:, 1:] > 0])
lengths = {sum(1 for _ in loader) for end in ("repeat", "infinite") for loader in loaders(4, 2, **{end: False})}
assert len(lengths) == 1, lengths


def refused(kind, words, call):
    try:
        call()
    except kind as e:
        assert re.search(words, str(e)), e
    else:
        raise AssertionError(f"not refused: {words}")


[trainer] = loaders(1, 8)
state = trainer.state_dict()
refused(batchfs.MountError, 'no split "none"; there are', lambda: loaders(1, 8, "none"))
refused(ValueError, r"multiple of max_context_length.* \(got 128 and 24\)", lambda: loaders(1, 8, block_size=24))
for split in "unmasked", "minus", "windows":
    refused(ValueError, f"{split}: torchtitan needs .* mount it with", lambda: loaders(1, 8, split))
refused(batchfs.Error, "seed was 1337 and is 7", lambda: loaders(1, 8, "other")[0].load_state_dict(state))
refused(batchfs.Error, "block_size was 16 and is 32", lambda: loaders(1, 4, block_size=32)[0].load_state_dict(state))
batches = iter(trainer)
next(batches)
mount.close()
# The kernel may have cached the next batches.
refused(batchfs.ReadError, r"batch \d+ .*mount", lambda: [*batches])
