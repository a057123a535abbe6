"""Descriptors of files, and who closes them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any


class Descriptor:
    """The owner of a descriptor, which is closed when its owner is garbage-collected."""

    fd = -1  # the descriptor, or -1 if there is none

    # The module os may be gone when Python ends.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)

    def __reduce__(self) -> Any:
        """Raises TypeError, because a copy would close the descriptor a second time, when another file may have it."""
        raise TypeError(f"{type(self).__name__} owns a descriptor, and cannot be copied")


def above_standard(fd: int) -> int:
    """Returns fd, or a duplicate from 3 on in its place.

    In a daemon that has closed its standard streams, a new file may get the number of one of them.
    """
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
