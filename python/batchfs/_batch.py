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

HEADER = 4096  # bytes before the arrays in .npy and .safetensors files of batches
_ALIGNMENT = 64  # bytes


class MissingArrayError(KeyError, AttributeError):
    """A batch has no such array."""

    __str__ = Exception.__str__  # not a quoted text, as of KeyError


class Batch(dict[str, A]):
    """The arrays of one batch, by name. Names are also attributes: ``batch["x"]`` is ``batch.x``.

    ``Split.names`` lists the arrays. x and y have shape (batch_size, block_size), tokens (batch_size, block_size + 1), and rows
    (batch_size, ...); ``Split.info["arrays"]`` has the shapes of the others. The caller may keep or change the arrays.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        x: A
        y: A
    else:  # __getattr__ would take a third of the time of a small batch
        x, y = (property(operator.itemgetter(name), doc=f"batch[{name!r}]") for name in "xy")

    def __getattr__(self, name: str) -> A:
        return self[name]

    def __missing__(self, name: str) -> A:
        raise MissingArrayError(f"this batch has no array {name}; it has {', '.join(self)}")


class ArrayLayout(NamedTuple):
    """The location of an array of a batch in memory. Offsets are in bytes."""

    name: str
    dtype_name: str  # the dtype as info.json names it: NumPy has no bfloat16
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


def layouts(info: dict[str, Any]) -> list[ArrayLayout]:
    """Returns the layouts of a batch's arrays. y follows x without a gap, as in a file."""
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
    """Returns the layouts of separate parts of the memory. x and y are read together; y's layout stands for both, because they end with it."""
    return layouts[1:] if layouts[0].name == "x" else layouts


class BatchBuffer:
    """Bytes for a batch.

    Attributes:
        raw: the bytes. All arrays in it, and all views of them, refer to raw.
        arrays: the names and arrays.
        references: the sys.getrefcount of raw while nothing else refers to it, so that it can be filled again.
        buffers: the parts of raw for a readv of all arrays, which have no gaps between them in a file: x and y (or tokens, or rows), then each
            other array.
        source: the part of raw that says which source each row comes from, or None.
    """

    def __init__(self, layouts: list[ArrayLayout], raw: Array | None = None) -> None:
        try:
            self.raw: Array = np.empty(layouts[-1].end, np.uint8) if raw is None else raw
        except MemoryError as e:
            raise MemoryError(f"a batch takes {layouts[-1].end / 2**30:.1f} GiB of memory, and there is not as much: reduce batch_size or block_size") from e
        self.arrays = [(p.name, np.ndarray(p.shape, p.dtype, self.raw, p.start)) for p in layouts]
        main, *others = parts(layouts)
        self.buffers = [self.raw.data[: main.end], *(self.raw.data[p.start : p.end] for p in others)]
        self.source = next((self.raw.data[p.start : p.end] for p in layouts if p.name == "source"), None)
        self.references = sys.getrefcount(self.raw)

    def batch(self) -> Batch[Array]:
        """Returns a batch of new arrays that share this memory."""
        batch: Batch[Array] = Batch()
        for name, array in self.arrays:  # Batch(zip(…)) takes twice the time
            batch[name] = array[...]
        return batch


class BufferPool:
    """Memory for consecutive batches. It reuses the memory of the batch before the last, which a loop has usually dropped by then:
    allocating new memory would take a fifth of the time.
    """

    def __init__(self, layouts: list[ArrayLayout]) -> None:
        self._layouts = layouts
        self._older: BatchBuffer | None = None
        self._newer: BatchBuffer | None = None

    def memory(self) -> BatchBuffer:
        """Returns memory to which no array refers."""
        memory = self._older
        if memory is None or sys.getrefcount(memory.raw) != memory.references:
            memory = BatchBuffer(self._layouts)
        self._older, self._newer = self._newer, memory
        return memory

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, (self._layouts,)
