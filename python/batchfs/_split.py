"""A split of batches: a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

from ._batch import Array, Batch, BatchBuffer, layouts
from ._errors import ArgumentError
from ._meter import Meter, clock
from ._settings import integer
from ._state import MAX_BATCHES
from ._steps import Steps

if TYPE_CHECKING:
    import torch

    from ._torch import TorchSteps


class Reader(Protocol):
    """A source of batches: `FileReader` or `PipeReader`. It can be pickled, and used after a fork."""

    def fill(self, k: int, buffers: list[memoryview]) -> None:
        """Reads batch k into `BatchBuffer.buffers`. Raises ReadError."""
        ...

    def refresh(self, k: int) -> None:
        """Updates the info of the split, if it can and if a restart of the mount changed what follows batch k - 1."""
        ...

    def close(self) -> None:
        """Closes files and processes. The next fill opens them again."""
        ...


class Split(Sequence[Batch[Array]]):
    """The sequence of batches of a split: ``train[k]`` is batch k, and ``len(train)`` is the setting ``steps``, one epoch by default.

    It can be pickled and used in other processes, forked or spawned.

    Attributes:
        info: the content of info.json: tokens, shapes, order, seed, files and more.
        names: the names of a batch's arrays, the main arrays first.
    """

    def __init__(self, info: dict[str, Any], reader: Reader, owner: object = None) -> None:
        self.info = info
        self.names: list[str] = [a["name"] for a in info["arrays"]]
        self.layouts = layouts(info)
        self.reader = reader
        self.meter = Meter(info)
        self._owner = owner  # keeps the mount alive while its splits are in use

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the tokens, 32 hexadecimal digits. A restart that adds a source changes it."""
        return self.info["fingerprint"]

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
            raise IndexError(f"batch {k} of {len(self)}; steps() and read() go on beyond the length")
        return self.read(k % len(self))

    def read(self, k: SupportsIndex) -> Batch[Array]:
        """Returns batch k, even beyond the first epoch. In a mount, k must be below ``info["max_steps"]``.

        Raises:
            ArgumentError: k is not an integer, or is out of range.
            ReadError: the batch cannot be read, or is beyond the end of the mount's sequence.
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
        device: torch.device | str | int | None = None,
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
        self.reader.refresh(self.meter.last + 1)
        return self.meter.take()

    def close(self) -> None:
        """Closes open files. Reading opens them again."""
        # This compares the open file with the mount, so it comes first.
        self.reader.refresh(self.meter.last + 1)
        self.reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __repr__(self) -> str:
        return f"<batchfs split {self.info['sequence']}, {len(self)} batches>"
