"""What a process has read from a split, and how long that took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter as clock
from typing import Any

import numpy as np

from ._batch import layouts, parts
from ._errors import Error
from ._lock import Locked
from ._shared import Shared, worker_info

_HELD = 1 << 16  # bytes of arrays "source" that are held before their rows are counted


class Meter(Locked):
    """Counts the batches that are read from a split, and the seconds that this takes. Threads may share it.

    A copy in another process begins at 0.

    Attributes:
        last: the number of the batch that was read last, or -1.
    """

    def __init__(self, info: dict[str, Any], shared: Shared | None = None) -> None:
        super().__init__()
        self._info = info
        self._shared = shared or Shared()
        names = [p.name for p in parts(layouts(info))]
        # None if all rows come from the same source.
        self._source = names.index("source") if "source" in names else None
        self._began: float | None = None
        self.last = -1
        self._reset()

    def _reset(self) -> None:
        self._seconds, self._batches = 0.0, 0
        self._rows: dict[int, int] = {}  # by number of the source
        self._sources = bytearray()  # the arrays of batches that are not in _rows yet

    def add(self, k: int, begun: float, buffers: Sequence[memoryview]) -> None:
        """Counts batch k, whose reading began at a time of the clock and ends now. buffers are those of its `BatchBuffer`."""
        lock = self.lock
        lock.acquire()  # a with statement takes longer
        try:
            if not self._batches:
                self._begin(begun)
            self._batches += 1
            self.last = k
            if self._source is not None:
                self._sources += buffers[self._source]
                if len(self._sources) >= _HELD:
                    self._count_rows()
            self._seconds += clock() - begun
        finally:
            lock.release()

    def _begin(self, begun: float) -> None:
        self._began = self._began or begun
        if worker_info() is not None:
            self._shared.numbers.begun += 1

    def _count_rows(self) -> None:
        for source, rows in enumerate(np.bincount(np.frombuffer(self._sources, np.int16)).tolist()):
            self._rows[source] = self._rows.get(source, 0) + rows
        self._sources = bytearray()

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call: see `Split.metrics`. Raises Error if workers of a DataLoader have read."""
        if self._shared.numbers.begun and worker_info() is None:
            raise Error(
                "the workers of a DataLoader read this split, so this process does not know how long its loop waits: time the loader instead, "
                "begun = time.perf_counter(); batch = next(batches); waited += time.perf_counter() - begun, where batches = iter(loader)"
            )
        with self.lock:
            self._count_rows()
            now = clock()
            interval = now - self._began if self._began is not None else 0.0
            seconds, batches, rows, last = self._seconds, self._batches, self._rows, self.last
            self._began = now if self._began is not None else None
            self._reset()
        info = self._info
        found: dict[str, float] = {"wait_seconds": seconds, "wait_fraction": seconds / interval if interval else 0.0, "batches": batches}
        unit, size = ("rows", 1) if info["layout"] == "rows" else ("tokens", info["block_size"])
        all_rows = batches * info["batch_size"]
        found[unit] = all_rows * size
        if self._source is None:
            rows = {0: all_rows}
        for source, name in _drawn(info):
            found[f"{unit}_{name}"] = rows.get(source, 0) * size
        if last >= 0:
            found.update(_position(info, last))
        return {f"batchfs/{key}": value for key, value in found.items()}

    def begin_in_child(self) -> None:
        super().begin_in_child()
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
