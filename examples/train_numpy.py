#!/usr/bin/env python3
"""Train a character language model in plain NumPy on batches that are files.

    python3 examples/train_numpy.py MOUNTPOINT VOCAB.json [--seconds 30]

On a machine that cannot mount, a directory of token files takes the place of MOUNTPOINT.
The model is the MLP of Bengio et al. (2003): embed the last C characters, hidden layers,
softmax over the next one. The exit status is 1 unless it beats a table of bigram counts by 10%.
"""
import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# One core multiplies matrices this small as fast as several. OpenBLAS would use all cores,
# including the one that computes batches.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("mountpoint", help="or, to read a pipe instead of files, a directory of token files")
parser.add_argument("vocab", help="the vocab.json that batchfs prepare wrote")
parser.add_argument("--seconds", type=float, default=30, help="how long to train (default: 30), and for 600 steps or more")
args = parser.parse_args()
sys.stdout.reconfigure(errors="replace")  # the locale's encoding may lack the bars
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback

mounted = os.path.exists(f"{args.mountpoint}/status.json")
if mounted:
    info = json.load(open(f"{args.mountpoint}/train/info.json"))
else:  # without a mount, the batches come from a pipe
    import batchfs
    pipes = {name: batchfs.open(args.mountpoint, block_size=32).split(name).steps() for name in ("train", "val")}
    info = pipes["train"].split.info
tokens = json.load(open(args.vocab)).get("tokens")
if not tokens:
    sys.exit(f"{args.vocab} has no characters: this model counts pairs of them, so prepare the text with --by char")
B, T, V = info["batch_size"], info["block_size"], info["vocab_size"]
C = min(10, T)  # characters of context
L = T - C + 1   # positions with their whole context in the window: t = C-1 .. T-1
D, H = 24, 192  # width of an embedding, of a hidden layer
lr_max, warmup, beta1, beta2 = 5e-3, 100, 0.9, 0.99
rng = np.random.default_rng(1337)


def load(split):
    if mounted:
        return np.load(f"{args.mountpoint}/{split}/next.npy")  # each open is another batch
    step, batch = next(pipes[split])
    return np.stack([batch.x, batch.y])


def get_batch(split):
    x, y = load(split).astype(int)
    return x, y[:, C - 1:].ravel()  # (B, T), (B*L,)


def normal(*shape, std):
    return rng.normal(0, std, shape).astype(np.float32)


sizes = [C * D, H, H, V]
wte = normal(V, D, std=1)
W = [normal(n, m, std=(2 / n) ** 0.5) for n, m in zip(sizes, sizes[1:])]
b = [np.zeros(m, np.float32) for m in sizes[1:]]
W[-1] *= 0.1  # makes the first guess close to uniform
params = [wte, *W, *b]


def forward(x):
    context = np.lib.stride_tricks.sliding_window_view(x, C, axis=1)  # (B, L, C)
    acts = [wte[context].reshape(-1, C * D)]  # input of each layer: (B*L, its width)
    for i in range(len(W) - 1):
        acts.append(np.maximum(acts[i] @ W[i] + b[i], 0))
    logits = acts[-1] @ W[-1] + b[-1]  # (B*L, V)
    p = np.exp(logits - logits.max(1, keepdims=True))
    return acts, p / p.sum(1, keepdims=True)


def backward(x, y, acts, p):
    d = p.copy()
    d[np.arange(len(y)), y] -= 1
    d /= len(y)  # d loss / d logits: (B*L, V)
    dW, db = [None] * len(W), [None] * len(W)
    for i in reversed(range(len(W))):
        dW[i], db[i] = acts[i].T @ d, d.sum(0)
        d = d @ W[i].T
        if i > 0:
            d *= acts[i] > 0
    d = d.reshape(B, L, C, D)
    dx = np.zeros((B, T, D), np.float32)
    for c in range(C):  # a character is in up to C contexts
        dx[:, c:c + L] += d[:, :, c]
    onehot = np.eye(V, dtype=np.float32)[x.ravel()]  # (B*T, V), because np.add.at is slow
    return [onehot.T @ dx.reshape(-1, D), *dW, *db]


def cross_entropy(p, y):
    return -np.log(p[np.arange(len(y)), y] + 1e-30).mean()


val = [get_batch("val") for _ in range(1 + 20_000 // (B * T))]


def val_loss(predict):
    return np.mean([cross_entropy(predict(x), y) for x, y in val])


def resident():
    """Returns the resident memory of the process that serves the mount, in MB."""
    if not mounted:
        return 0
    with open(f"{args.mountpoint}/status.json") as f:
        return json.load(f)["resident_bytes"] / 1e6


# The model to beat counts how often each character follows another. It reads 100 MB of batches.bin,
# one megabyte at a time.
some = 1_000_000 // info["batch_bytes"]
counts = np.zeros(V * V)
memory = []
with open(f"{args.mountpoint}/train/steps={100 * some}/batches.bin" if mounted else os.devnull, "rb") as f:
    for _ in range(100):
        xy = np.frombuffer(f.read(some * info["batch_bytes"]), info["dtype"]) if mounted else np.stack([load("train") for _ in range(some)])
        xy = xy.reshape(some, 2, B * T).astype(int)
        counts += np.bincount((xy[:, 0] * V + xy[:, 1]).ravel(), minlength=V * V)
        memory.append(resident())
counts = counts.reshape(V, V)
unigram = (counts.sum(0) + 1) / (counts.sum() + V)  # (V,)
bigram = (counts + 8 * unigram) / (counts.sum(1, keepdims=True) + 8)  # (V, V)
bigram_loss = val_loss(lambda x: bigram[x[:, C - 1:].ravel()])

width, height, lowest, row_height = 48, 6, 1, 0.5  # chart: columns, rows, lowest loss, loss per row
sums, numbers = np.zeros(width), np.zeros(width)   # losses of each column
live = sys.stdout.isatty()


def draw(done):
    """Draws the loss: repeatedly in a terminal, in place; otherwise once, at the end."""
    if not live and done < 1:
        return
    if live and drawn > start:
        print(f"\x1b[{height + 1}A", end="")  # up to the first row
    loss = sums / np.maximum(numbers, 1)
    for i in reversed(range(height)):
        bottom = lowest + i * row_height
        eighths = 8 * np.clip((loss - bottom) / row_height, 0, 1)
        row = "".join(" ▁▂▃▄▅▆▇█"[round(n)] for n in eighths)
        if bottom <= bigram_loss < bottom + row_height:
            row = row.replace(" ", "·") + f" {bigram_loss:.2f} counting pairs"
        print(f"{'loss' if i == height - 1 else '':7} {bottom:.1f} {row}")
    print(f"   step {step:4}: {1e3 * (now - start) / step:4.1f} ms each, {100 * waited / (now - start):3.1f}% of it waiting for a batch", flush=True)


m = [np.zeros_like(w) for w in params]
v = [np.zeros_like(w) for w in params]
least = 600  # steps, even if they take longer than --seconds
step, done, waited = 0, 0.0, 0.0  # done: completed fraction of the training, for the learning rate
reader = ThreadPoolExecutor(1)    # reads the next batch during a step, as GPU trainers do
following = reader.submit(get_batch, "train")
start = drawn = time.perf_counter()
while done < 1:
    before = time.perf_counter()
    x, y = following.result()
    waited += time.perf_counter() - before
    following = reader.submit(get_batch, "train")
    acts, p = forward(x)
    column = int(done * width)
    sums[column] += cross_entropy(p, y)
    numbers[column] += 1
    step += 1
    lr = lr_max * min(step / warmup, 1 - done)
    for w, g, m1, m2 in zip(params, backward(x, y, acts, p), m, v):  # Adam
        m1 += (1 - beta1) * (g - m1)
        m2 += (1 - beta2) * (g * g - m2)
        w -= lr * m1 / (1 - beta1 ** step) / (np.sqrt(m2 / (1 - beta2 ** step)) + 1e-8)
    now = time.perf_counter()
    done = min((now - start) / args.seconds, step / least)
    if now - drawn > 0.5 or done >= 1:
        draw(done)
        drawn = now

read = (100 * some + len(val) + step) * info["batch_bytes"] / 1e6
if mounted:
    print(f"   memory of batchfs: {memory[9]:.0f} MB after 10 MB of batches, {resident():.0f} MB after {read:.0f} MB")
loss = val_loss(lambda x: forward(x)[1])
if loss > 0.9 * bigram_loss:
    sys.exit(f"val loss {loss:.3f} is not 10 % below that of counting pairs, {bigram_loss:.3f}, after {step} steps: more --seconds?")

text = list(val[0][0][0, :C])
for _ in range(300):
    p = forward(np.array([text[-C:]]))[1][0] ** 1.25  # temperature 0.8
    text.append(rng.choice(V, p=p / p.sum()))
lines = "".join(tokens[i] for i in text).expandtabs(4).splitlines()
print(f"   val loss {loss:.2f} (counting pairs of characters: {bigram_loss:.2f}); the model writes:")
print(*[f"       {line[:72]}" for line in lines if len(line) > 20][:2], sep="\n")
