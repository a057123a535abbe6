"""Reads of a batch that the kernel answers in parts."""

from __future__ import annotations

import errno
from collections.abc import Callable


def read_rest(read: Callable[[list[memoryview], int], int], buffers: list[memoryview], done: int, size: int) -> None:
    """Fills the rest of buffers, which have size bytes in total and done of them already, with read(buffers, done).

    read returns the number of bytes that it read.

    Raises:
        OSError: the batch ends early.
    """
    rest = [*buffers]
    last = done
    while done < size:
        if last == 0:
            raise OSError(errno.EIO, f"it ended after {done} of {size} bytes")
        while last >= len(rest[0]):
            last -= len(rest.pop(0))
        rest[0] = rest[0][last:]
        last = read(rest, done)
        done += last
