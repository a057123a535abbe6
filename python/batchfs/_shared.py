"""The copies of an object in other processes: memory that they share, and whether a DataLoader made them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from typing import Any

from ._descriptor import Descriptor


def worker_info() -> Any:
    """Returns PyTorch's WorkerInfo if this process is a worker of a DataLoader, otherwise None."""
    torch = sys.modules.get("torch")
    return torch.utils.data.get_worker_info() if torch else None


def loop_number(process: Any, loops: int) -> int:
    """Returns a number that all workers of a loop have, and no other loop, or 0 if a process of multiprocessing is not a worker of a DataLoader.

    loops is the number of loops that this worker has begun, including this one.
    """
    from multiprocessing.queues import Queue  # only programs with workers need it

    if getattr(getattr(process, "_target", None), "__name__", "") != "_worker_loop":
        return 0
    # PyTorch has no such number. But the workers of a loop send their batches to one queue, the
    # second of their arguments that is a queue. It is a pipe, whose inode number is used here.
    queues: list[Any] = [arg for arg in process._args if isinstance(arg, Queue)]
    return os.fstat(queues[1]._writer.fileno()).st_ino % 2**32 << 24 | loops if len(queues) > 1 else 0


class Numbers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("begun", "loaded", "step", "loop", "is_reading", "has_warned")]

    begun: int  # how often a worker has begun a loop or, in a Meter, has read
    loaded: int  # how often a state was loaded outside workers
    step: int  # the step in the state that was loaded last
    loop: int  # the first loop of workers since then, or 0
    is_reading: int  # whether worker 0 has begun its last loop and not ended it
    has_warned: int  # whether a worker has warned of a loop that did not end


class Shared(Descriptor):
    """Numbers that an iterator or a split shares with its copies in the workers of a DataLoader.

    A copy made in any other way, such as with pickle or in another forked or spawned process, has its own numbers.
    """

    # The numbers; until `numbers` is read, perhaps those of the process that started this one.
    memory: Numbers

    # The values of the numbers when this process began, while memory may be another process's.
    _inherited = b""

    def __init__(self, content: bytes = b"", fd: int = -1) -> None:
        self.fd = fd
        self._open(content)
        _all.add(self)

    def _open(self, content: bytes) -> None:
        if self.fd < 0:
            self.fd = os.memfd_create("batchfs-shared")
            os.pwrite(self.fd, content.ljust(ctypes.sizeof(Numbers), b"\0"), 0)
        self.memory = Numbers.from_buffer(mmap.mmap(self.fd, ctypes.sizeof(Numbers)))

    @property
    def numbers(self) -> Numbers:
        # worker_info is set only some time after a worker has begun.
        if self._inherited and worker_info() is None and (content := self.__dict__.pop("_inherited", b"")):
            os.close(self.fd)
            self.fd = -1
            self._open(content)
        return self.memory

    def begin_in_child(self) -> None:
        """Is called in a forked or spawned process before anything else."""
        self._inherited = bytes(self.memory)
        _all_inherited.append(weakref.ref(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Imported here, because only programs with workers need it.
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        numbers = self.numbers
        if get_spawning_popen() is None:
            return Shared, (bytes(numbers),)
        return _attach, (DupFd(self.fd),)


def _attach(duplicate: Any) -> Shared:
    shared = Shared(fd=duplicate.detach())
    shared.begin_in_child()
    return shared


_all: weakref.WeakSet[Shared] = weakref.WeakSet()
# Those that this process has got from the one that started it.
_all_inherited: list[weakref.ref[Shared]] = []


def _before_fork() -> None:
    """Makes sure that a worker gets the numbers of the process that starts it."""
    for shared in [found for reference in _all_inherited if (found := reference())]:
        shared.numbers


def _begin_in_child() -> None:
    _all_inherited.clear()
    for shared in _all:
        shared.begin_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_begin_in_child)
