"""nanogpt.py DATA STATE [GET_BATCH]: draws weights and batches, and evaluates, in the order of nanoGPT's train.py.

Prints the batches that a small model sees and its losses. The state of the generator before the first batch goes to the file
STATE. GET_BATCH is Python code that defines get_batch(split) in place of the one here.
"""

import hashlib
import sys

import numpy as np
import torch
from torch.nn import functional

data, state = sys.argv[1:3]
B, T, V = 6, 16, 300
steps, micro_steps, eval_every, eval_iters = 10, 2, 4, 4

torch.manual_seed(1337)
model = torch.nn.Sequential(torch.nn.Embedding(V, 8), torch.nn.Linear(8, V))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def get_batch(split):
    tokens = np.memmap(f"{data}/{split}.bin", np.uint16, mode="r")
    starts = torch.randint(len(tokens) - T, (B,))
    rows = torch.from_numpy(np.stack([tokens[i:i + T + 1] for i in starts]).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


def seen(split):
    """A batch, after it was printed."""
    x, y = get_batch(split)
    assert x.shape == y.shape == (B, T)
    print(split, *(hashlib.sha256(a.contiguous().numpy()).hexdigest() for a in (x, y)))
    return x, y


def loss(batch):
    x, y = batch
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


torch.get_rng_state().numpy().tofile(state)
if len(sys.argv) > 3:
    exec(sys.argv[3])

batch = seen("train")
for step in range(steps):
    if step % eval_every == 0:
        with torch.no_grad():
            for split in ("train", "val"):
                print(step, split, sum(loss(seen(split)).item() for _ in range(eval_iters)))
    for _ in range(micro_steps):
        now = loss(batch)
        batch = seen("train")  # while the GPU computes
        now.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, now.item())
