"""Trains a small model the way nanoGPT's train.py does: nanogpt.py (DATA STATE GET_BATCH)...

Each group of three arguments is one run, which prints hashes of its batches, and its losses. It
writes the state that PyTorch's generator has before the first batch to the file STATE. GET_BATCH is
Python code that may replace get_batch(split).
"""

import hashlib
import sys

import numpy as np
import torch
from torch.nn import functional

B, T, V = 6, 16, 300
steps, micro_steps, eval_every, eval_iters = 10, 2, 4, 4


def run(data, state, code):
    torch.manual_seed(1337)
    model = torch.nn.Sequential(torch.nn.Embedding(V, 8), torch.nn.Linear(8, V))

    def own_batch(split):
        tokens = np.memmap(f"{data}/{split}.bin", np.uint16, mode="r")
        starts = torch.randint(len(tokens) - T, (B,))
        rows = torch.from_numpy(np.stack([tokens[i:i + T + 1] for i in starts]).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    torch.get_rng_state().numpy().tofile(state)
    defined = globals() | {"get_batch": own_batch}
    exec(code, defined)

    def next_batch(split):
        """Prints the hash of the next batch and returns the batch."""
        x, y = defined["get_batch"](split)
        assert x.shape == y.shape == (B, T)
        print(split, *(hashlib.sha256(a.contiguous().numpy()).hexdigest() for a in (x, y)))
        return x, y

    def loss(batch):
        x, y = batch
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    batch = next_batch("train")
    for step in range(steps):
        if step % eval_every == 0:
            with torch.no_grad():
                for split in ("train", "val"):
                    print(step, split, sum(loss(next_batch(split)).item() for _ in range(eval_iters)))
        for _ in range(micro_steps):
            last = loss(batch)
            batch = next_batch("train")  # nanoGPT reads it while the GPU computes
            last.backward()
        with torch.no_grad():
            # Importing PyTorch's optimizers would take longer than the rest of this program.
            for weight in model.parameters():
                weight -= 1e-2 * weight.grad
                weight.grad = None
        print(step, last.item())


for data, state, code in zip(*[iter(sys.argv[1:])] * 3):
    run(data, state, code)
