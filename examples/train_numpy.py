#!/usr/bin/env python3
"""Train a character language model in plain NumPy on batches that are files.

    python3 examples/train_numpy.py MOUNTPOINT VOCAB.json [--seconds 30]

The model is the MLP of Bengio et al. (2003): embed the last C characters, hidden layers,
softmax over the next one. Unless it beats a table of bigram counts by 10 %, exit status 1.
"""
import argparse
import json
import sys
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("mountpoint")
parser.add_argument("vocab", help="the vocab.json that batchfs prepare wrote")
parser.add_argument("--seconds", type=float, default=30, help="how long to train (default: 30), and for 600 steps or more")
args = parser.parse_args()

info = json.load(open(f"{args.mountpoint}/train/info.json"))
tokens = json.load(open(args.vocab))["tokens"]
B, T, V = info["batch_size"], info["block_size"], len(tokens)
C = min(10, T)  # characters of context
L = T - C + 1   # positions with their whole context in the window: t = C-1 .. T-1
D, H = 24, 192  # width of an embedding, of a hidden layer
lr_max, warmup, beta1, beta2 = 5e-3, 100, 0.9, 0.99
rng = np.random.default_rng(1337)


def get_batch(split):
    with open(f"{args.mountpoint}/{split}/next", "rb") as f:  # every open is a fresh batch
        x, y = np.frombuffer(f.read(), info["dtype"]).reshape(2, B, T).astype(int)
    return x, y[:, C - 1:].ravel()  # (B, T), (B*L,)


def normal(*shape, std):
    return rng.normal(0, std, shape).astype(np.float32)


sizes = [C * D, H, H, V]
wte = normal(V, D, std=1)
W = [normal(n, m, std=(2 / n) ** 0.5) for n, m in zip(sizes, sizes[1:])]
b = [np.zeros(m, np.float32) for m in sizes[1:]]
W[-1] *= 0.1  # so that the first guess is close to uniform
params = [wte, *W, *b]


def forward(x):
    context = np.lib.stride_tricks.sliding_window_view(x, C, axis=1)  # (B, L, C)
    acts = [wte[context].reshape(-1, C * D)]  # what goes into each layer: (B*L, its width)
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
    onehot = np.eye(V, dtype=np.float32)[x.ravel()]  # (B*T, V), for np.add.at is slow
    return [onehot.T @ dx.reshape(-1, D), *dW, *db]


def cross_entropy(p, y):
    return -np.log(p[np.arange(len(y)), y] + 1e-30).mean()


val = [get_batch("val") for _ in range(1 + 20_000 // (B * T))]


def val_loss(predict):
    return np.mean([cross_entropy(predict(x), y) for x, y in val])


# what to beat: how often each character comes, and how often after the one before it
counts = np.zeros((V, V))
for _ in range(1 + 400_000 // (B * T)):
    x, y = get_batch("train")
    np.add.at(counts, (x[:, C - 1:].ravel(), y), 1)
unigram = (counts.sum(0) + 1) / (counts.sum() + V)  # (V,)
bigram = (counts + 8 * unigram) / (counts.sum(1, keepdims=True) + 8)  # (V, V)
unigram_loss = val_loss(lambda x: np.tile(unigram, (B * L, 1)))
bigram_loss = val_loss(lambda x: bigram[x[:, C - 1:].ravel()])
print(f"{info['tokens']:,} characters of {V} kinds, batches of (B={B}, T={T}), "
      f"a model of {sum(w.size for w in params):,} weights")
print(f"val loss in nats/char: unigram {unigram_loss:.3f}, bigram {bigram_loss:.3f}", flush=True)

m = [np.zeros_like(w) for w in params]
v = [np.zeros_like(w) for w in params]
least = 600  # steps, which take longer on a busy machine
step, done = 0, 0.0  # done: the share of the training that is over, which the learning rate follows
losses, waits = [], []
start = reported = time.perf_counter()
while done < 1:
    before = time.perf_counter()
    x, y = get_batch("train")
    waits.append(time.perf_counter() - before)
    acts, p = forward(x)
    losses.append(cross_entropy(p, y))
    step += 1
    lr = lr_max * min(step / warmup, 1 - done)
    for w, g, m1, m2 in zip(params, backward(x, y, acts, p), m, v):  # Adam
        m1 += (1 - beta1) * (g - m1)
        m2 += (1 - beta2) * (g * g - m2)
        w -= lr * m1 / (1 - beta1 ** step) / (np.sqrt(m2 / (1 - beta2 ** step)) + 1e-8)
    now = time.perf_counter()
    done = min((now - start) / args.seconds, step / least)
    if now - reported > 3 or done >= 1:
        loss = val_loss(lambda x: forward(x)[1])
        print(f"step {step}: train loss {np.mean(losses):.3f}, val loss {loss:.3f}, "
              f"{1e3 * (now - reported) / len(losses):.1f} ms per step, "
              f"{1e6 * np.mean(waits):.0f} µs of it waiting for data", flush=True)
        losses, waits, reported = [], [], time.perf_counter()

print(f"val loss {loss:.3f}: unigram {unigram_loss:.3f}, bigram {bigram_loss:.3f}", flush=True)
if loss > 0.9 * bigram_loss:
    sys.exit(f"not 10 % below the bigram table after {step} steps: more --seconds?")

text = list(val[0][0][0, :C])
for _ in range(400):
    p = forward(np.array([text[-C:]]))[1][0] ** 1.25  # temperature 0.8
    text.append(rng.choice(V, p=p / p.sum()))
print("a sample:", "".join(tokens[i] for i in text), sep="\n")
