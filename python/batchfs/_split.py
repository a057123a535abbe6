"""A split of batches: a sequence, its steps in order, and their state."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeVar, overload

from ._batch import Array, Batch, BatchBuffer, BufferPool, layouts
from ._errors import ArgumentError, Error, ReadError
from ._lock import Locked
from ._meter import Meter, clock
from ._settings import integer
from ._shared import Shared, worker_info
from ._state import MAX_BATCHES, state_at, step_of

if TYPE_CHECKING:
    import torch

    from ._torch import TorchSteps

S = TypeVar("S", bound="StepIterator")


class Reader(Protocol):
    """A source of batches. It can be pickled, and used after a fork."""

    def fill(self, k: int, buffers: list[memoryview]) -> None:
        """Reads batch k into `BatchBuffer.buffers`. Raises ReadError."""
        ...

    def refresh(self, k: int) -> None:
        """Updates the info of the split, if a restart of the mount changed what follows batch k - 1. Raises ReadError or OSError."""
        ...

    def close(self) -> None:
        """Closes files and processes. The next fill opens them again."""
        ...


class Split(Sequence[Batch[Array]]):
    """The sequence of batches of a split: ``train[k]`` is batch k, and ``len(train)`` is the setting ``steps``, one epoch by default.

    It can be pickled and used in other processes, forked or spawned.

    Attributes:
        info: the content of info.json: tokens, shapes, order, seed, files and more.
        names: the names of a batch's arrays, x and y first.
        fingerprint: the fingerprint of the tokens, 32 hexadecimal digits.
    """

    def __init__(self, info: dict[str, Any], reader: Reader, owner: object = None) -> None:
        self.info = info
        self.names: list[str] = [a["name"] for a in info["arrays"]]
        self.fingerprint: str = info["fingerprint"]
        self.layouts = layouts(info)
        self.reader = reader
        self.meter = Meter(info)
        self._owner = owner  # keeps the mount alive while its splits are in use

    def __len__(self) -> int:
        return int(self.info["steps"])

    @overload
    def __getitem__(self, index: SupportsIndex) -> Batch[Array]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch[Array]]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Batch[Array] | list[Batch[Array]]:
        """Returns a batch by number, from 0 to len - 1, or a list of batches. `steps` and `read` continue to further epochs.

        Raises:
            IndexError: the number is out of range.
            ReadError: a batch cannot be read.
        """
        if isinstance(index, slice):
            return [self.read(k) for k in range(*index.indices(len(self)))]
        k = integer("index", index)
        if not -len(self) <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}; steps() continues with the next epoch")
        return self.read(k % len(self))

    def read(self, k: SupportsIndex) -> Batch[Array]:
        """Returns batch k, for any k from 0 to 2**40 - 1, even beyond the first epoch.

        Raises:
            ArgumentError: k is not an integer, or is out of range.
            ReadError: the batch cannot be read.
        """
        begun = clock()
        k = integer("k", k, 0, MAX_BATCHES - 1)
        memory = BatchBuffer(self.layouts)
        self.reader.fill(k, memory.buffers)
        batch = memory.batch()
        self.meter.add(k, begun, memory)
        return batch

    def steps(self, start: SupportsIndex = 0, stop: SupportsIndex | None = None, *, row: SupportsIndex | None = None) -> Steps:
        """Returns an iterator over (step, batch), from batch start up to but not including batch stop, or without end.

        A loop over a range that was read to its end begins it again. With row, the iterator begins with the batch whose first row, over
        all ranks, is that global row. It has ``state_dict()`` and ``load_state_dict()``. The caller may keep or change its batches.

        Raises:
            ArgumentError: a number is wrong, or no batch begins at the row.
        """
        return Steps(self, self._start(start, row), stop)

    def _start(self, start: SupportsIndex, row: SupportsIndex | None) -> SupportsIndex:
        if row is None:
            return start
        rows = self.info["batch_size"] * self.info["world"]
        k, rest = divmod(integer("row", row, 0, MAX_BATCHES * rows), rows)
        if rest or integer("start", start):
            raise ArgumentError(f"row: must be a multiple of batch_size times world, {rows}, without start (got row={row}, start={start})")
        return k

    def torch(
        self,
        device: torch.device | str | None = None,
        start: SupportsIndex = 0,
        stop: SupportsIndex | None = None,
        *,
        row: SupportsIndex | None = None,
    ) -> TorchSteps:
        """Returns `steps` whose batches are tensors on a device (default: cuda if there is one, else cpu).

        x, y and tokens are int64; other arrays keep their dtype. For CUDA, the next batch is read into pinned memory, sent to the GPU
        and converted there while the GPU works on the current one.
        """
        from . import _torch

        return _torch.steps(self, device, self._start(start, row), stop)

    def metrics(self) -> dict[str, float]:
        """Returns what this process has read since the last call, as a flat dict of numbers: ``wandb.log(train.metrics(), step=step)``.

        A split and its iterators count together, whichever of them is called. A forked or spawned process counts what it reads itself.

        =========================  =========================================================================================================
        batchfs/wait_seconds       time inside `read` and the iterators, summed over threads
        batchfs/wait_fraction      the same, divided by the time since the last call or, in the first call, since the first read began
        batchfs/batches            the batches of this rank
        batchfs/tokens             their elements of x, including padding; with ``layout="rows"``, batchfs/rows instead
        batchfs/tokens_NAME        for a mixture, those from source NAME; with ``layout="rows"``, batchfs/rows_NAME instead
        batchfs/epoch              how often all ranks have read the split's data after the batch that was read last; for a mixture,
                                   batchfs/epoch_NAME for each source instead, to within one row
        batchfs/stage              the stage of that batch, from 0, if the split has stages or max_epochs
        =========================  =========================================================================================================

        Raises:
            Error: the workers of a DataLoader have read from the split, so this process does not know how long its loop waits.
        """
        if "stages" in self.info:
            with contextlib.suppress(ReadError, OSError):
                self.reader.refresh(self.meter.last + 1)
        return self.meter.take()

    def close(self) -> None:
        """Closes open files. Reading opens them again."""
        self.reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __repr__(self) -> str:
        return f"<batchfs split {self.info['sequence']}, {len(self)} batches an epoch>"


class StepIterator(Locked):
    """The base class of iterators over the steps of a split: their position and its state.

    Threads may share an iterator: its lock gives each number, in order, to one of them.

    Each loop continues where the previous one stopped. After the last step of a range, the next loop begins at the start again. The
    workers of a DataLoader read ahead, so their loops always begin at the start, except the first one and one after a loaded state.

    ``state_dict()`` returns plain ints and strings, the same on all ranks: "step", the number of the next batch; "row", the global
    number of its first row on rank 0; and everything that decides which rows follow, such as "seed" and "fingerprint".
    """

    def __init__(self, split: Split, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        super().__init__()
        self.split = split
        self.start: int = integer("start", start, 0, MAX_BATCHES)
        self.stop = MAX_BATCHES if stop is None else integer("stop", stop, 0, MAX_BATCHES)
        self.step: int = self.start
        self.worker, self.workers = 0, 1
        self.shared = Shared()
        self.counter = split.meter.counter(self)
        self._begun = self._loaded = 0  # values of shared that this process saw last
        self._iterated = -1  # the step at the last call of iter
        self._resumed = -1  # the step of a loaded state, until its loop has ended
        self._loops = 0  # the number of loops that this worker has begun
        self._is_again = False  # whether the loop of this worker begins at the start again
        self._limit = self.stop  # is 0 until a worker's loop returns its first batch
        if torch := sys.modules.get("torch"):
            torch.utils.data.IterableDataset.register(StepIterator)  # DataLoader calls isinstance

    def __iter__(self: S) -> S:
        """Returns the iterator itself. In one of n workers of PyTorch's DataLoader, it then returns every n-th batch."""
        worker = worker_info()
        with self.lock:
            if worker is None:
                self.worker, self.workers = 0, 1
                self._begun = self.shared.numbers.begun
            else:
                self._begin_in(worker)
            if self._is_again or (self.step >= self.stop and self.step != self._resumed):
                self.step = self.start
            self._iterated = self.step
        return self

    def _begin_in(self, worker: Any) -> None:
        """Begins a loop in a worker."""
        from multiprocessing import current_process  # only programs with workers need it

        self.worker, self.workers = worker.id, worker.num_workers
        shared = self.shared.numbers
        if self._loaded != shared.loaded:  # while this worker was running
            self.step = self._resumed = shared.step
            self._loaded = shared.loaded
        # The workers of one loop need a number that other loops do not have, and PyTorch provides
        # none. Their process numbers are consecutive, so each can compute that of worker 0.
        self._loops += 1
        first = current_process()._identity[-1] - worker.id  # pyright: ignore
        loop = first << 32 | self._loops
        shared.loop = shared.loop or loop
        self._is_again = shared.loop != loop
        self._limit = 0
        shared.begun += 1

    def _at_limit(self, k: int) -> None:
        """Raises StopIteration at the end of the range.

        A worker also calls it before the first batch of each loop. If that loop begins at the start again although the previous one did
        not end, this method warns or raises Error. `__iter__` cannot, because a StatefulDataLoader loads a state after calling it.
        """
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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "counter"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.counter = self.split.meter.counter(self)

    def __len__(self) -> int:
        """Raises TypeError. Without this method, a DataLoader would not say why it rejects steps made before torch was imported."""
        raise TypeError("steps have no length; to pass them to a DataLoader, import torch before you call steps()")

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
        if "stages" in self.split.info:
            # A state can be saved after the mount has ended.
            with contextlib.suppress(ReadError, OSError):
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
        lock = self.lock
        lock.acquire()  # a with statement takes 0.1 microseconds longer
        try:
            k = self.step + self.worker
            if k >= self._limit:
                self._at_limit(k)
            memory = self._pool.memory()
            self.split.reader.fill(k, memory.buffers)
            self.step += self.workers
            batch = memory.batch()
            self.counter.add(k, begun, memory)
            return k, batch
        finally:
            lock.release()
