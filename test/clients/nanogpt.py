"""nanogpt.py (DATA STATE GET_BATCH)...: draws weights and batches, and evaluates, in the order of nanoGPT's train.py, a run for each three.

Prints the batches that a small model sees and its losses. The state of the generator before the first batch goes to the file
STATE. GET_BATCH, unless it is empty, is Python code that defines get_batch(split) in place of the one here.
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

    def seen(split):
        """A batch, after it was printed."""
        x, y = defined["get_batch"](split)
        assert x.shape == y.shape == (B, T)
        print(split, *(hashlib.sha256(a.contiguous().numpy()).hexdigest() for a in (x, y)))
        return x, y

    def loss(batch):
        x, y = batch
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

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
        with torch.no_grad():
            for weight in model.parameters():  # to import PyTorch's optimizers takes as long as all the rest
                weight -= 1e-2 * weight.grad
                weight.grad = None
        print(step, now.item())


for data, state, code in zip(*[iter(sys.argv[1:])] * 3):
    run(data, state, code)
