# A trainer that only loads batches. At each of the given batch counts, it prints the count and
# waits for a line of standard input.
import sys

import numpy as np

how, path, *stops = sys.argv[1:]
B, T = 12, 1024
rng = np.random.default_rng(1337)


def get_batch(data):
    starts = rng.integers(len(data) - T, size=B)
    x = np.stack([data[i:i + T] for i in starts])
    y = np.stack([data[i + 1:i + 1 + T] for i in starts])
    return x, y


def kept():
    return get_batch(data)


def per_batch():
    return get_batch(np.memmap(path, np.uint16, "r"))


def opened():
    with open(path, "rb") as f:
        return np.frombuffer(f.read(), np.uint16).reshape(2, B, T)


if how == "kept":
    data = np.memmap(path, np.uint16, "r")

load, done = globals()[how], 0
for stop in map(int, stops):
    while done < stop:
        load()
        done += 1
    print(done, flush=True)
    if not sys.stdin.readline():
        break
