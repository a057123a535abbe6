"""Memory shared by the copies of an object in forked and spawned processes."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

_LAYOUT = "3q"


class Shared:
    """Numbers that an iterator shares with its copies in the workers of a DataLoader.

    A copy made in any other way, such as with pickle, has its own numbers.
    """

    def __init__(self, numbers: Sequence[int] = (0, 0, 0), fd: int = -1) -> None:
        self._fd = fd
        if fd < 0:
            self._fd = os.memfd_create("batchfs-steps")
            os.pwrite(self._fd, struct.pack(_LAYOUT, *numbers), 0)
        self._numbers = memoryview(mmap.mmap(self._fd, struct.calcsize(_LAYOUT))).cast("q")

    @property
    def begun(self) -> int:
        """The number of times that a worker has begun to read."""
        return self._numbers[0]

    @property
    def loaded(self) -> int:
        """The number of times that a state was loaded outside workers."""
        return self._numbers[1]

    @property
    def step(self) -> int:
        """The step in the state that was loaded last."""
        return self._numbers[2]

    def begin(self) -> None:
        self._numbers[0] += 1

    def load(self, step: int) -> None:
        self._numbers[2] = step
        self._numbers[1] += 1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        # Imported here, because only programs with workers need it.
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None:
            return Shared, (self._numbers.tolist(),)
        return _attach, (DupFd(self._fd),)


def _attach(duplicate: Any) -> Shared:
    return Shared(fd=duplicate.detach())
