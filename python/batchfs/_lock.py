"""A lock for objects that threads share and processes copy."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class Locked:
    """The base class of objects with a lock.

    In a forked process the lock is free, even if another thread held it during the fork. A copy of the object gets its own lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _all.add(self)

    def begin_in_child(self) -> None:
        """Is called in a forked process before anything else."""
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Locked.__init__(self)


_all: weakref.WeakSet[Locked] = weakref.WeakSet()


def _begin_in_child() -> None:
    for locked in _all:
        locked.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
