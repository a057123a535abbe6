"""Times Split.steps beside the same read by hand, in one run: python3 python/tests/speed.py [BATCH_SIZE BLOCK_SIZE]

They take turns. "new" are batches that the kernel does not have yet, as in training; "cached" it has. The sixteenth of the rounds that
was fastest counts, because other processes use the machine.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import batchfs
from batchfs._files import Files

STEPS, ROUNDS = 100, 160


def timed(read: Callable[[int], None], first: int) -> float:
    begun = time.perf_counter()
    read(first)
    return (time.perf_counter() - begun) / STEPS * 1e6


def main(batch_size: int, block_size: int) -> None:
    with tempfile.TemporaryDirectory() as data:
        np.arange(32 << 20, dtype=np.uint16).tofile(f"{data}/train.bin")
        with batchfs.mount(data, batch_size=batch_size, block_size=block_size, set={"memory.access": "pread"}) as m:
            train = m.split("train")
            assert isinstance(train.reader, Files)
            fd = os.open(f"{m.mountpoint}/train/steps={train.reader.steps}/batches.bin", os.O_RDONLY)
            buffer = np.empty((2, batch_size, block_size), np.uint16)

            def by_hand(first: int) -> None:
                for k in range(first, first + STEPS):
                    if os.preadv(fd, [buffer.data], k * buffer.nbytes) != buffer.nbytes:
                        raise OSError("short read")
                    _x, _y = buffer

            def steps(first: int) -> None:
                for _, batch in train.steps(first, first + STEPS):
                    _x, _y = batch.x, batch.y

            for what in ("new", "cached"):
                took: dict[Callable[[int], None], list[float]] = {by_hand: [], steps: []}
                for turn in range(ROUNDS):
                    for i, read in enumerate(took):
                        first = (2 * turn + i) * STEPS if what == "new" else 0
                        took[read].append(timed(read, first))
                best = [sum(sorted(times)[: ROUNDS // 16]) / (ROUNDS // 16) for times in took.values()]
                print(f"{batch_size}x{block_size} {what}: by hand {best[0]:.1f} us a batch, steps {best[1]:.1f}: {best[1] / best[0]:.2f}")
            os.close(fd)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (12, 1024)))
