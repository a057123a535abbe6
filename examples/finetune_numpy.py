#!/usr/bin/env python3
"""Fine-tune a small model in plain NumPy with a loss mask: it learns the answers and nothing of the prompts.

    python3 examples/finetune_numpy.py --write DIR       writes examples to learn from, and a config.toml
    batchfs mount -d -c DIR/config.toml MOUNTPOINT
    python3 examples/finetune_numpy.py MOUNTPOINT

An example is a line such as "qwert>trewq\\n": a prompt of random letters, and the same letters backwards. The mask beside the tokens
is 1 where a token is to be learnt. Exit status 1 unless the model knows the answers, and has not learnt to guess at prompts.
"""
import argparse
import json
import os
import sys

import numpy as np

LETTERS = 5
T = 2 * LETTERS + 2  # the tokens of an example
SYMBOLS = "abcdefghijklmnopqrstuvwxyz>\n"
V = len(SYMBOLS)

CONFIG = """\
[batch]
batch_size = 64
block_size = {T}    # the length of an example, so that each row is one
order = "shuffle"
token_dtype = "uint8"

[splits.train]
tokens = "train.bin"
[[splits.train.arrays]]
name = "mask"
files = "train.mask"
dtype = "uint8"

[splits.val]
tokens = "val.bin"
[[splits.val.arrays]]
name = "mask"
files = "val.mask"
dtype = "uint8"
"""


def write(directory):
    rng = np.random.default_rng(1337)
    os.makedirs(directory, exist_ok=True)
    for split, n in ("train", 20_000), ("val", 1_000):
        prompt = rng.integers(26, size=(n, LETTERS))
        end = np.full((n, 1), SYMBOLS.index("\n"))
        tokens = np.hstack([prompt, np.full((n, 1), SYMBOLS.index(">")), prompt[:, ::-1], end])
        mask = np.zeros((n, T))
        mask[:, LETTERS + 1:] = 1  # the answer and its end
        # One token more, for the y of the last row.
        np.append(tokens, 0).astype(np.uint8).tofile(f"{directory}/{split}.bin")
        np.append(mask, 0).astype(np.uint8).tofile(f"{directory}/{split}.mask")
    with open(f"{directory}/config.toml", "w") as f:
        f.write(CONFIG.format(T=T))


def get_batch(path):
    """The tensors of a .safetensors file: of one batch, all of them."""
    with open(path, "rb") as f:
        data = f.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    read = {name: np.frombuffer(data, np.uint8, offset=begin + header[name]["data_offsets"][0], count=np.prod(header[name]["shape"]))
            for name in ("x", "y", "mask")}
    return (read[name].reshape(header[name]["shape"]) for name in ("x", "y", "mask"))


# For each position a table of how much each token at or before it speaks for each next token: enough to copy letters.
W = np.zeros((T, T * V, V))


def forward(x):
    seen = np.eye(V)[x].reshape(len(x), T * V)
    seen = np.stack([seen * (np.arange(T * V) < (t + 1) * V) for t in range(T)])  # (T, B, T*V)
    logits = seen @ W
    p = np.exp(logits - logits.max(2, keepdims=True))
    return seen, (p / p.sum(2, keepdims=True)).swapaxes(0, 1)  # (B, T, V)


def losses(p, y):
    return -np.log(np.take_along_axis(p, y[:, :, None].astype(int), 2)[:, :, 0] + 1e-30)  # (B, T)


def train(mountpoint, steps=200, rate=30):
    for step in range(steps):
        x, y, mask = get_batch(f"{mountpoint}/train/batch/{step}.safetensors")
        seen, p = forward(x)
        loss = (losses(p, y) * mask).sum() / mask.sum()
        d = (p - np.eye(V)[y]) * mask[:, :, None] / mask.sum()  # nothing where the mask is 0
        W[:] -= rate * (seen.swapaxes(1, 2) @ d.swapaxes(0, 1))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss of answers {loss:.4f}", flush=True)

    x, y, mask = map(np.concatenate, zip(*(get_batch(f"{mountpoint}/val/batch/{k}.safetensors") for k in range(10))))
    _, p = forward(x)
    right = (p.argmax(2) == y)[mask == 1].mean()
    prompts = losses(p, y)[:, :LETTERS - 1]  # what comes next in a prompt
    print(f"of {x.shape[0]} new prompts, {100 * right:.1f} % of the answers' tokens are right; "
          f"loss of prompts {prompts.mean():.4f}, of a model that knows nothing {np.log(V):.4f}")
    if right < 0.99 or not np.allclose(prompts, np.log(V)):
        sys.exit("the model learnt too little of the answers, or something of the prompts")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("mountpoint", nargs="?")
parser.add_argument("--write", metavar="DIR", help="write the examples there instead")
args = parser.parse_args()
if args.write:
    write(args.write)
elif args.mountpoint:
    train(args.mountpoint)
else:
    parser.error("name a mountpoint, or --write DIR")
