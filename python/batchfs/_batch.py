"""A batch, and the memory that it is read into."""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
A = TypeVar("A")

_ALIGNMENT = 64  # bytes


class MissingArrayError(KeyError, AttributeError):
    """A batch has no such array."""


class Batch(dict[str, A]):
    """The arrays of one batch by name, which are also attributes: ``batch["x"]`` is ``batch.x``.

    The arrays are those of ``Split.names``. x and y have shape (batch_size, block_size), tokens (batch_size, block_size + 1), rows
    (batch_size, ...); the others what ``Split.info["arrays"]`` says. They are the caller's, to keep or change.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        x: A
        y: A
    else:  # a third of the time that a small batch takes would be a __getattr__'s
        x, y = (property(operator.itemgetter(name), doc=f"batch[{name!r}]") for name in "xy")

    def __getattr__(self, name: str) -> A:
        return self[name]

    def __missing__(self, name: str) -> A:
        raise MissingArrayError(f"this batch has no array {name}; it has {', '.join(self)}")


class ArrayLayout(NamedTuple):
    """Where an array of a batch lies in memory."""

    name: str
    dtype_name: str  # the dtype as info.json names it: NumPy has no bfloat16
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


def layouts(info: dict[str, Any]) -> list[ArrayLayout]:
    """Returns the places of a batch's arrays. y follows x at once, as in a file."""
    found: list[ArrayLayout] = []
    end = 0
    for array in info["arrays"]:
        name, dtype_name, shape = array["name"], array["dtype"], tuple(array["shape"])
        dtype = np.dtype("uint16" if dtype_name == "bfloat16" else dtype_name)
        start = end if name == "y" else -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + math.prod(shape) * dtype.itemsize
        found.append(ArrayLayout(name, dtype_name, dtype, shape, start, end))
    return found


def parts(layouts: list[ArrayLayout]) -> list[ArrayLayout]:
    """Returns what of a batch is read on its own. x and y, which are read at once, are the part of y: it ends where they do."""
    return layouts[1:] if layouts[0].name == "x" else layouts


class BatchBuffer:
    """Bytes for a batch.

    Attributes:
        raw: the bytes. An array that lies there, and every view of one, refers to raw.
        arrays: the name of each array, and the array here.
        references: what sys.getrefcount says of raw while there is no such array but those here: then raw can be filled again.
        buffers: the parts of raw that are read, each in a list for preadv: x and y together, or tokens, or rows; and each other array.
    """

    def __init__(self, layouts: list[ArrayLayout], raw: Array | None = None) -> None:
        self.raw: Array = np.empty(layouts[-1].end, np.uint8) if raw is None else raw
        self.arrays = [(p.name, np.ndarray(p.shape, p.dtype, self.raw, p.start)) for p in layouts]
        main, *others = parts(layouts)
        self.buffers = [[self.raw.data[: main.end]], *([self.raw.data[p.start : p.end]] for p in others)]
        self.references = sys.getrefcount(self.raw)

    def batch(self) -> Batch[Array]:
        """Returns new arrays that lie here."""
        batch: Batch[Array] = Batch()
        for name, array in self.arrays:  # Batch(zip(…)) takes twice the time
            batch[name] = array[...]
        return batch


class BufferPool:
    """Memory for one batch after the other. A loop has dropped the batch before the last by now, and new memory would take a fifth of
    the time.
    """

    def __init__(self, layouts: list[ArrayLayout]) -> None:
        self._places = layouts
        self._older: BatchBuffer | None = None
        self._newer: BatchBuffer | None = None

    def memory(self) -> BatchBuffer:
        """Returns memory that no array refers to."""
        memory = self._older
        if memory is None or sys.getrefcount(memory.raw) != memory.references:
            memory = BatchBuffer(self._places)
        self._older, self._newer = self._newer, memory
        return memory

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, (self._places,)
