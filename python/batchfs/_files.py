"""Batches from files in a mount."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._program import ReadError
from ._split import MAX_BATCHES, fill_rest, sizes

_HEADER = 4096  # of .npy files

_GONE = "the process that kept the mount is gone. Mount again: batches are the same by number"
_HINTS = {
    errno.ENOTCONN: _GONE,
    errno.ECONNABORTED: _GONE,
    errno.ENOENT: "is a batchfs mounted there?",
    errno.EACCES: "only the user that mounted can read, unless mount.allow_other is set",
    errno.ESTALE: "token files changed. Put them back, or mount again. With on_change=follow, read again",
    errno.ETIMEDOUT: "the token files did not answer within mount.timeout: look at their disk or store",
    errno.ESHUTDOWN: "the mount is ending",
}


class Files:
    """Reads batches from files in a mount: batches.bin, and batches.NAME.npy of each array beside x and y."""

    def __init__(self, path: str, info: dict[str, Any]) -> None:
        self.path = path
        size = sizes(info)
        main = 2 if info["arrays"][0]["name"] == "x" else 1
        # Of each file its name, the bytes of its header and of a batch, and which arrays of a batch it has.
        self.files = [("bin", 0, sum(size[:main]), slice(0, main))]
        for i in range(main, len(size)):
            self.files.append((f"{info['arrays'][i]['name']}.npy", _HEADER, size[i], slice(i, i + 1)))
        # They are those of all numbers, not of one epoch, as far as the kernel can hold their lengths.
        self.steps = min(MAX_BATCHES, 2**62 // max(size for _, _, size, _ in self.files))
        self.open: list[tuple[int, int, int, slice]] = []  # the same, with a descriptor instead of the name
        files.add(self)

    def fill(self, k: int, arrays: list[Any]) -> None:
        try:
            if not self.open:
                self._open()
            for fd, header, size, which in self.open:
                offset = header + k * size
                done = os.preadv(fd, arrays[which], offset)
                if done != size:  # above a mebibyte it may come in parts
                    fill_rest(lambda to, done, fd=fd, offset=offset: os.preadv(fd, to, offset + done), arrays[which], done, size)
        except OSError as e:
            self.close()  # a worker that took over, or new tokens, need it
            raise ReadError(self._describe(k, e)) from e

    def _open(self) -> None:
        for name, header, size, which in self.files:
            fd = os.open(f"{self.path}/steps={self.steps}/batches.{name}", os.O_RDONLY | os.O_CLOEXEC)
            self.open.append((fd, header, size, which))
            if os.fstat(fd).st_size != header + self.steps * size:
                raise OSError(errno.ESTALE, f"batches.{name} has another size than info.json says")

    def close(self) -> None:
        while self.open:
            os.close(self.open.pop()[0])

    def __del__(self) -> None:
        self.close()

    def _describe(self, k: int, e: OSError) -> str:
        """Returns what is known of a read that failed."""
        words = f"batch {k} of {self.path}: {e.strerror}"
        if (why := self._last_error()) and _HINTS.get(e.errno or 0) != _GONE:
            words += f": {why}"
        return f"{words}; {hint(e.errno)}"

    def _last_error(self) -> str:
        """Returns the last error of these settings in status.json, or an empty string."""
        path = Path(self.path, f"steps={self.steps}")
        for root in path.parents:
            try:
                splits: dict[str, Any] = json.loads((root / "status.json").read_text())["splits"]
            except (OSError, ValueError):
                continue
            settings = _settings(path.relative_to(root).parts)
            failed = {name: _settings(name.split("/")) for name in splits if splits[name]["last_error"]}
            mine = [name for name in failed if failed[name] <= settings]
            return splits[max(mine, key=lambda name: len(failed[name]))]["last_error"] if mine else ""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "open": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        files.add(self)


files: weakref.WeakSet[Files] = weakref.WeakSet()


def hint(number: int | None) -> str:
    return _HINTS.get(number or 0, "`batchfs doctor` says more")


def _settings(parts: Iterable[str]) -> frozenset[str]:
    return frozenset(setting for part in parts for setting in part.split(","))
