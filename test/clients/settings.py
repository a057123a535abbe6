"""Reads directories with random settings until standard input ends: settings.py SPLIT

The split must be in sequential order, and each token must be its own position. Prints `ready`,
checks every batch, and at the end prints the first ten errors.
"""
import array
import os
import random
import sys
import threading

split = sys.argv[1]
ended = threading.Event()
errors = []


def look(size, block):
    names = [f"batch_size={size}", f"block_size={block}"]
    if random.random() < 0.5:
        names.reverse()
    path = os.path.join(split, random.choice([",".join(names), "/".join(names)]))
    what = random.choice(["stat", "list", "cursor", "batch"])
    if what == "stat":
        os.stat(path)
    elif what == "list":
        os.listdir(path)
    elif what == "cursor":
        with open(path + "/cursor") as f:
            assert (got := f.read()) == "0\n", f"{path}/cursor: got {got!r}, want 0"
    else:
        k = random.randrange(3)
        starts = [row * block for row in range(k * size, (k + 1) * size)]
        want = [token for first in (0, 1) for start in starts for token in range(start + first, start + first + block)]
        with open(f"{path}/batch/{k}", "rb") as f:
            assert f.read() == array.array("H", want).tobytes(), f"{path}/batch/{k}: wrong tokens"


def run():
    while not ended.is_set():
        try:
            look(random.randint(1, 28), random.randint(1, 28))
        except (OSError, AssertionError) as e:
            errors.append(repr(e))


threads = [threading.Thread(target=run) for _ in range(4)]
for t in threads:
    t.start()
print("ready", flush=True)
sys.stdin.read()
ended.set()
for t in threads:
    t.join()
print("\n".join(errors[:10]))
