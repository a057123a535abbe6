"""What a process has read from a split, and how long that took."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable
from time import perf_counter as clock
from typing import Any

import numpy as np

from ._batch import BatchBuffer
from ._errors import Error
from ._lock import Locked
from ._shared import Shared, worker_info

_HELD = 1 << 16  # bytes of arrays "source" that a counter holds before it counts their rows


class Counter(Locked):
    """Counts the batches that its owner reads, and the seconds that this takes. The owner is an iterator, or the meter for all other reads.

    Whoever calls `add` holds a lock of the owner. Taking another lock for each batch would take as long as counting the batch.

    Attributes:
        owner: a weak reference to the owner.
    """

    def __init__(self, meter: Meter, owner: object) -> None:
        super().__init__()
        # Weak, so that a split that is dropped closes its descriptors at once.
        self._meter: Meter = weakref.proxy(meter)
        # _HELD as a number of batches. A row's source takes two bytes.
        self._max_held = max(1, _HELD // (2 * meter.batch_size))
        self.owner = weakref.ref(owner)
        self._reset()

    def _reset(self) -> None:
        self._seconds, self._batches = 0.0, 0  # since the counter was made
        self._taken = (0.0, 0)  # the values of both when take was called last
        # The number of rows of each source since take was called last. The lock guards it.
        self._rows: collections.Counter[int] = collections.Counter()
        self._sources = bytearray()  # the arrays "source" of the batches that are not in _rows yet

    def add(self, k: int, begun: float, memory: BatchBuffer) -> None:
        """Counts batch k, whose reading began at a time of the clock and ends now."""
        if not self._batches % self._max_held:
            self._meter.begin(begun)
            with self.lock:
                self._count_rows()
        self._batches += 1
        self._meter.last = k
        if memory.source is not None:
            self._sources.extend(memory.source)
        self._seconds += clock() - begun

    def _count_rows(self) -> None:
        sources = bytes(self._sources)  # a copy, because another thread may append to it
        counts: list[int] = np.bincount(np.frombuffer(sources, np.int16)).tolist()
        self._rows.update(dict(enumerate(counts)))
        del self._sources[: len(sources)]

    def take(self) -> tuple[float, int, collections.Counter[int]]:
        """Returns the seconds, the batches and the rows by source since the last call. The caller holds the meter's lock."""
        with self.lock:
            self._count_rows()
            rows, self._rows = self._rows, collections.Counter()
        seconds, batches = self._taken
        self._taken = self._seconds, self._batches
        return self._taken[0] - seconds, self._taken[1] - batches, rows

    def begin_in_child(self) -> None:
        super().begin_in_child()
        self._reset()


class Meter(Locked):
    """Counts the batches that are read from a split, and the seconds that this takes. Threads may share it.

    A copy in another process begins at 0.

    Attributes:
        batch_size: the rows of a batch.
        last: the number of the batch that was read last, or -1.
    """

    def __init__(self, info: dict[str, Any], shared: Shared | None = None) -> None:
        super().__init__()
        self._info = info
        self._shared = shared or Shared()
        # What the number was when this process got the meter. Any other value means that a worker
        # has read.
        self._begun_before = self._shared.memory.begun
        self.batch_size: int = info["batch_size"]
        self._own = Counter(self, self)
        self._counters: list[Counter] = [self._own]
        # When take was called last or, until then, when the first read began.
        self._began: float | None = None
        self.last = -1
        self._reset()

    def _reset(self) -> None:
        # What the counters have counted and take has not returned yet.
        self._seconds, self._batches = 0.0, 0
        self._rows: collections.Counter[int] = collections.Counter()

    def counter(self, owner: object) -> Counter:
        """Returns a counter for batches of the split that owner reads."""
        counter = Counter(self, owner)
        with self.lock:
            self._collect()  # so that the counters of many short iterators do not pile up
            self._counters.append(counter)
        return counter

    def add(self, k: int, begun: float, memory: BatchBuffer) -> None:
        """Counts a batch that no iterator has read: see `Counter.add`."""
        with self.lock:
            self._own.add(k, begun, memory)

    def begin(self, begun: float) -> None:
        """Records that a read began at a time of the clock. Counters call it for their first read and some later ones."""
        if self._began is None:
            self._began = begun
        if worker_info() is not None:
            self._shared.numbers.begun += 1

    def _collect(self) -> None:
        """Collects what has been counted, and drops the counters whose owners are gone. The caller holds the lock."""
        counters = self._counters
        self._counters = [counter for counter in counters if counter.owner() is not None]
        for counter in counters:
            seconds, batches, rows = counter.take()
            self._seconds += seconds
            self._batches += batches
            self._rows.update(rows)

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call: see `Split.metrics`. Raises Error if workers of a DataLoader have read."""
        if self._shared.numbers.begun != self._begun_before and worker_info() is None:
            raise Error(
                "the workers of a DataLoader read this split, so this process does not know how long its loop waits: time the loader instead, "
                "begun = time.perf_counter(); batch = next(batches); waited += time.perf_counter() - begun, where batches = iter(loader)"
            )
        with self.lock:
            self._collect()
            now = clock()
            interval = now - self._began if self._began is not None else 0.0
            seconds, batches, rows, last = self._seconds, self._batches, self._rows, self.last
            if self._began is not None:
                self._began = now
            self._reset()
        info = self._info
        if any(array["name"] == "source" for array in info["arrays"]):
            # Another thread may have counted a batch and not its rows yet.
            batches = sum(rows.values()) // self.batch_size
        else:
            rows = collections.Counter({0: batches * self.batch_size})
        found: dict[str, float] = {"wait_seconds": seconds, "wait_fraction": seconds / interval if interval else 0.0, "batches": batches}
        unit, size = ("rows", 1) if info["layout"] == "rows" else ("tokens", info["block_size"])
        found[unit] = batches * self.batch_size * size
        for source, name in _drawn(info):
            found[f"{unit}_{name}"] = rows[source] * size
        if last >= 0:
            found.update(_position(info, last))
        return {f"batchfs/{key}": value for key, value in found.items()}

    def begin_in_child(self) -> None:
        super().begin_in_child()
        self._begun_before = self._shared.memory.begun
        self._began = None
        self.last = -1
        self._reset()

    def __reduce__(self) -> tuple[Any, ...]:
        return Meter, (self._info, self._shared)


def _drawn(info: dict[str, Any]) -> Iterable[tuple[int, str]]:
    """Returns the numbers and names of a mixture's sources that some row comes from."""
    for i, source in enumerate(info.get("sources", [])):
        if source["rows"] or any(stage["rows"][source["name"]] for stage in info.get("stages", [])):
            yield i, source["name"]


def _position(info: dict[str, Any], k: int) -> dict[str, float]:
    """Returns the epochs that all ranks have read after batch k, and its stage."""
    hosts = info["world"] // info["local_world"] if info.get("shuffle_block") else 1
    rows = (k + 1) * info["batch_size"] * info["world"] // hosts  # that share the epochs
    if "sources" not in info:
        return {"epoch": rows / info["rows_per_epoch"]}
    found: dict[str, float] = {}
    n = max((i for i, stage in enumerate(info.get("stages", [])) if stage["batch"] <= k), default=None)
    for i, name in _drawn(info):
        source = info["sources"][i]
        if n is None:
            drawn = rows * source["rows"] / source["of"]
        else:
            stage = info["stages"][n]
            before = stage["tokens"][name] // info["block_size"] // hosts
            drawn = before + (rows - stage["row"] // hosts) * stage["rows"][name] / stage["of"]
        found[f"epoch_{name}"] = drawn / source["rows_per_epoch"]
    if n is not None:
        found["stage"] = n
    return found
