"""The steps of a split in order, and their state."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from ._batch import Array, Batch, BufferPool
from ._errors import Error
from ._lock import Locked
from ._meter import clock
from ._settings import integer
from ._shared import Shared, loop_number, worker_info
from ._state import MAX_BATCHES, state_at, step_of

if TYPE_CHECKING:
    from ._split import Split

S = TypeVar("S", bound="StepIterator")


class NoLengthError(TypeError, AttributeError):
    """Steps have no length: len raises an error, and hasattr(steps, "__len__") is false, because libraries ask both."""


class StepIterator(Locked):
    """The base class of iterators over the steps of a split: their position and its state.

    Threads may share an iterator: its lock gives each number, in order, to one of them.

    Each loop continues where the previous one stopped. After the last step of a range, the next loop begins at the start again. The
    workers of a DataLoader read ahead, so their loops always begin at the start, except the first one and one after a loaded state.

    ``state_dict()`` returns plain ints and strings, the same on all ranks: "step", the number of the next batch; "row", the global
    number of its first row on rank 0; and everything that decides which rows follow, such as "seed" and "fingerprint".
    """

    def __init__(self, split: Split, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        self._loops = 0  # the number of loops that this worker has begun; a fork reads it
        super().__init__()
        self.split = split
        self.start: int = integer("start", start, 0, MAX_BATCHES)
        self.stop = MAX_BATCHES if stop is None else integer("stop", stop, 0, MAX_BATCHES)
        self.step: int = self.start
        self.worker, self.workers = 0, 1
        self.shared = Shared()
        self.counter = split.meter.counter(self)
        self._begun = self._loaded = 0  # the values in shared that this process has seen last
        self._iterated = -1  # the step at the last call of iter
        # The step of the loaded state; -1 if there is none or its loop has ended.
        self._resumed = -1
        self._is_again = False  # whether this worker's loop begins again at the start
        self._limit = self.stop  # 0 in a worker, and in any copy, until its loop returns a batch
        if torch := sys.modules.get("torch"):
            torch.utils.data.IterableDataset.register(StepIterator)  # DataLoader calls isinstance

    def __iter__(self: S) -> S:
        """Returns the iterator itself. In one of n workers of PyTorch's DataLoader, it then returns every n-th batch."""
        with self.lock:
            self._begin(worker_info())
        return self

    def _begin(self, worker: Any) -> None:
        """Begins a loop, in a worker of a DataLoader or, with None, elsewhere. The caller holds the lock."""
        if worker is None:
            self.worker, self.workers = 0, 1
            self._begun = self.shared.numbers.begun
        else:
            self._begin_in(worker)
        if self._is_again or (self.step >= self.stop and self.step != self._resumed):
            self.step = self.start
        self._iterated = self.step

    def _begin_in(self, worker: Any) -> None:
        """Begins a loop in a worker."""
        from multiprocessing import current_process  # only programs with workers need it

        self.worker, self.workers = worker.id, worker.num_workers
        shared = self.shared.numbers
        if self._loaded != shared.loaded:  # while this worker was running
            self.step = self._resumed = shared.step
            self._loaded = shared.loaded
        self._loops += 1
        process: Any = current_process()
        # If a library other than PyTorch has started the workers, their process numbers are
        # probably consecutive.
        loop = loop_number(process, self._loops) or (process._identity[-1] - worker.id) << 24 | self._loops
        shared.loop = shared.loop or loop
        self._is_again = shared.loop != loop
        self._limit = 0
        shared.begun += 1

    def _at_limit(self, k: int) -> int:
        """Raises StopIteration at the end of the range. Before it, returns the number of the next batch, k, or of this worker's first.

        A worker also calls it before the first batch of each loop. If that loop begins at the start again although the previous one did
        not end, this method warns or raises Error. `__iter__` cannot, because a StatefulDataLoader loads a state after calling it.
        """
        # A dataset around these steps may call only next in its workers, which must share the
        # numbers then, too.
        if not self._limit and not self._loops and (worker := worker_info()):
            self._begin(worker)
            k = self.step + self.worker
        shared = self.shared.numbers
        if self._is_again and self._limit != self.stop:
            if self.stop == MAX_BATCHES:
                raise Error(
                    f"steps({self.start}) has no end, and with workers of a DataLoader, another loop begins again at batch {self.start}, which repeats "
                    f"batches: keep one iterator, batches = iter(loader); or pass a range, such as steps({self.start}, {self.start + 1000}); or use torchdata's "
                    "StatefulDataLoader and call loader.load_state_dict(loader.state_dict()) before the next loop"
                )
            if self.worker == 0 and shared.is_reading and not shared.has_warned:
                shared.has_warned = 1
                warnings.warn(
                    f"a loop over steps({self.start}, {self.stop}) did not end, and the next one begins again at batch {self.start}, because the workers of "
                    "a DataLoader read ahead; to continue instead, use torchdata's StatefulDataLoader and call "
                    "loader.load_state_dict(loader.state_dict()) before the next loop",
                    RuntimeWarning,
                )
        self._limit = self.stop
        if self.worker == 0:
            shared.is_reading = k < self.stop
        if k >= self.stop:
            self._resumed = -1
            raise StopIteration
        return k

    def begin_in_child(self) -> None:
        super().begin_in_child()
        self._begin_copy()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "counter"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.counter = self.split.meter.counter(self)
        self._begin_copy()

    def _begin_copy(self) -> None:
        if not self._loops:
            self._limit = 0  # this may be a worker

    @property
    def __len__(self) -> Any:
        """Raises NoLengthError. Without it, a DataLoader would not say why it rejects steps made before torch was imported."""
        raise NoLengthError(
            "steps have no length: count the batches of an epoch with len(split), or those of a range with stop - start; to pass steps to a "
            "DataLoader, import torch before you call steps()"
        )

    def __bool__(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to save. The batch that was returned last counts as completed.

        Raises:
            Error: the workers of a DataLoader read the batches, so this process does not know the step.
        """
        if self._begun != self.shared.numbers.begun and worker_info() is None:
            raise Error(
                "the workers of a DataLoader read these steps, and this process does not know how far they are: use torchdata's StatefulDataLoader "
                "and save its state_dict(), or save the number of the last batch that the loop got and resume with steps(number + 1)"
            )
        self.split.reader.refresh(self.step)
        return state_at(self.split.info, self.step)

    def metrics(self) -> dict[str, float]:
        """Returns `Split.metrics` of the split."""
        return self.split.metrics()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a saved state with exactly the rows that follow, on this mount or another mount of the same tokens.

        batch_size, world and rank may differ, except with the torch orders, if a batch begins at the state's row. With shuffle_block,
        the number of hosts must be the same.

        Raises:
            ArgumentError: a key of the state is missing or malformed.
            Error: other rows would follow. The text names the settings that differ.
        """
        worker = worker_info()
        step = step_of(self.split.info, state_dict, worker.num_workers if worker else 0)
        with self.lock:
            if worker is None:
                # A StatefulDataLoader without workers calls iter first. If the state was saved
                # after a loop had ended, it calls iter once more, and the range begins again.
                self._resumed = step if self.step != self._iterated else -1
                self._iterated = -1
                shared = self.shared.numbers
                shared.step, shared.loop = step, 0
                shared.loaded += 1
                self._begun, self._loaded = shared.begun, shared.loaded
            self._is_again = False
            self.step = step


class Steps(StepIterator, Iterator[tuple[int, Batch[Array]]]):
    """An iterator over (step, batch): see `Split.steps`."""

    def __init__(self, split: Split, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        super().__init__(split, start, stop)
        self._pool = BufferPool(split.layouts)

    def __next__(self) -> tuple[int, Batch[Array]]:
        begun = clock()
        # Calling acquire takes 0.1 microseconds less, but a signal handler may raise an exception
        # between acquire and try, and the lock would never be released.
        with self.lock:
            k = self.step + self.worker
            if k >= self._limit:
                k = self._at_limit(k)
            memory = self._pool.memory()
            self.split.reader.fill(k, memory.buffers)
            batch = memory.batch()
            self.step += self.workers
            self.counter.add(k, begun, memory)
            return k, batch
