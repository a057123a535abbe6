"""Batches from files in a mount."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._batch import parts, places
from ._program import ReadError, run
from ._split import fill_rest

_NPY_HEADER = 4096
_DESCRIBE_LIMIT = 10.0  # seconds

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
        main, *others = parts(places(info))
        # Of each file its name, the bytes of its header, and those of a batch.
        self.files = [("batches.bin", 0, main.end)]
        self.files += [(f"batches.{p.name}.npy", _NPY_HEADER, p.end - p.start) for p in others]
        self.steps: int = info["max_steps"]  # beyond any number of epochs
        self.open: list[_File] = []

    def fill(self, k: int, buffers: list[list[memoryview]]) -> None:
        if k >= self.steps:
            raise ReadError(f"there is no batch {k}: a file can hold {self.steps} batches of this size")
        try:
            for file in self.open or self._open():
                to, at = buffers[file.index], file.header + k * file.size
                done = os.preadv(file.fd, to, at)
                if done != file.size:  # above a mebibyte a read may return a part
                    fill_rest(lambda to, done, fd=file.fd, at=at: os.preadv(fd, to, at + done), to, done, file.size)
        except OSError as e:
            self.close()  # a worker that took over, or new tokens, need it
            raise ReadError(self._describe(k, e)) from e

    def _open(self) -> list[_File]:
        directory = f"{self.path}/steps={self.steps}"
        self.open = [_File(i, f"{directory}/{name}", self.steps, header, size) for i, (name, header, size) in enumerate(self.files)]
        return self.open

    def close(self) -> None:
        self.open = []  # a thread that reads one has it until it has read

    def _describe(self, k: int, e: OSError) -> str:
        """Returns what is known of a read that failed."""
        words = f"batch {k} of {self.path}: {e.strerror}"
        if e.errno == errno.EINVAL and (why := reason(f"{self.path}/steps={self.steps}")):
            return f"{words}: {why}"
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


class _File:
    """An open file, until it is garbage."""

    def __init__(self, index: int, path: str, steps: int, header: int, size: int) -> None:
        self.index, self.header, self.size = index, header, size
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self.fd).st_size != header + steps * size:
            raise OSError(errno.ESTALE, f"{os.path.basename(path)} has another size than info.json says")

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def reason(path: str) -> str:
    """Returns the program's account of why a split cannot be opened, or an empty string if it can.

    The program uses the settings of the mount without touching the mount, which may hang.
    """
    _, why = run("cat", path, "--format", "info", timeout=_DESCRIBE_LIMIT)
    return why


def hint(number: int | None) -> str:
    """Returns what to do about an errno of a mount."""
    return _HINTS.get(number or 0, "`batchfs doctor` says more")


def _settings(parts: Iterable[str]) -> frozenset[str]:
    return frozenset(setting for part in parts for setting in part.split(","))
