"""Batches from files in a mount."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._batch import parts, layouts
from ._program import Error, ReadError, parse_info, run
from ._split import read_rest
from ._state import differences

_NPY_HEADER = 4096
_DESCRIBE_LIMIT = 10.0  # seconds

_GONE = "the supervisor of the mount is gone. Mount again: batches are the same by number"
_HINTS = {
    errno.ENOTCONN: _GONE,
    errno.ECONNABORTED: _GONE,
    errno.ENOENT: "is a batchfs mounted there?",
    errno.EACCES: "only the user that mounted can read, unless mount.allow_other is set",
    errno.ESTALE: "the token files changed: unmount and mount again, or, with on_change=follow, read again",
    errno.ETIMEDOUT: "the token files did not answer within mount.timeout: look at their disk or store",
    errno.ESHUTDOWN: "the mount is ending",
}


class FileReader:
    """Reads batches from files in a mount: batches.bin, and batches.NAME.npy for each array other than x and y."""

    def __init__(self, path: str, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        main, *others = parts(layouts(info))
        # For each file: its name, the size of its header, and the size of a batch, in bytes.
        self.files = [("batches.bin", 0, main.end)]
        self.files += [(f"batches.{p.name}.npy", _NPY_HEADER, p.end - p.start) for p in others]
        # A file holds as many batches as possible, because a run may read beyond the first epoch.
        self.steps: int = info["max_steps"]
        self.open: list[_File] = []

    def fill(self, k: int, buffers: list[list[memoryview]]) -> None:
        if k >= self.steps:
            try:
                os.close(os.open(f"{self.path}/batch/{k}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError as e:
                raise ReadError(self._describe(k, e)) from e
            raise ReadError(f"there is no batch {k}: a file can hold {self.steps} batches of this size. If the sequence has become longer, call split() again")
        try:
            for file in self.open or self._open(k):
                to, at = buffers[file.index], file.header + k * file.size
                done = os.preadv(file.fd, to, at)
                if done != file.size:  # a read of more than a mebibyte may return a part
                    read_rest(lambda to, done, fd=file.fd, at=at: os.preadv(fd, to, at + done), to, done, file.size)
        except OSError as e:
            self.close()  # after a takeover or with new tokens, files must be opened again
            raise ReadError(self._describe(k, e)) from e

    def refresh(self, k: int) -> None:
        """Updates info, if the mount has changed what follows batch k - 1."""
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._compare(directory, k)
        finally:
            os.close(directory)

    def _open(self, k: int) -> list[_File]:
        # All files are opened through one descriptor, because something else may be mounted at the
        # path at any time.
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._compare(directory, k + 1)
            self.open = [_File(i, name, directory, self.steps, header, size) for i, (name, header, size) in enumerate(self.files)]
        finally:
            os.close(directory)
        return self.open

    def _compare(self, directory: int, batches: int) -> None:
        """Raises ReadError unless the directory, an open descriptor, has the first batches of the sequence that info describes."""
        with open("info.json", "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as file:
            text = file.read()
        try:
            now = parse_info(self.path, text)
            changes = differences(self.info, now, batches)
        except Error as e:
            raise ReadError(str(e)) from e
        if changes:
            raise ReadError(f"another sequence is mounted at {self.path}: {changes}. To continue with it on purpose, call split() again")
        self.info.update(now)  # later stages may be others
        self.steps = now["max_steps"]

    def close(self) -> None:
        self.open = []  # a thread that is reading a file keeps it open

    def _describe(self, k: int, e: OSError) -> str:
        """Explains a failed read."""
        words = f"batch {k} of {self.path}: {e.strerror}"
        if e.errno == errno.EINVAL and (why := reason(f"{self.path}/steps={self.steps}")):
            return f"{words}: {why}"
        if (why := self._last_error()) and _HINTS.get(e.errno or 0) != _GONE:
            words += f": {why}"
            if e.errno in (errno.ESTALE, errno.ENODATA):  # the error says what to do
                return words
        return f"{words}; {hint(e.errno)}"

    def _last_error(self) -> str:
        """Returns the last error of these settings in status.json, or an empty string."""
        path = Path(self.path, f"steps={self.steps}")
        for root in path.parents:
            try:
                sequences: dict[str, Any] = json.loads((root / "status.json").read_text())["sequences"]
            except (OSError, ValueError):
                continue
            settings = _settings(path.relative_to(root).parts)
            failed = {name: _settings(name.split("/")) for name in sequences if sequences[name]["last_error"]}
            mine = [name for name in failed if failed[name] <= settings]
            return sequences[max(mine, key=lambda name: len(failed[name]))]["last_error"] if mine else ""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "open": []}


class _File:
    """An open file, which is closed when it is garbage-collected."""

    def __init__(self, index: int, name: str, directory: int, steps: int, header: int, size: int) -> None:
        self.index, self.header, self.size = index, header, size
        self.fd = -1
        self.fd = os.open(f"steps={steps}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        if os.fstat(self.fd).st_size != header + steps * size:
            raise OSError(errno.ESTALE, f"{name} has another size than info.json says")

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def reason(path: str) -> str:
    """Returns the program's explanation of why a split cannot be opened, or an empty string if it can.

    The program uses the settings of the mount without touching the mount, which may hang.
    """
    _, why = run("cat", path, "--format", "info", timeout=_DESCRIBE_LIMIT)
    return why


def hint(number: int | None) -> str:
    """Suggests what to do about an errno of a mount."""
    return _HINTS.get(number or 0, "`batchfs doctor` says more")


def _settings(parts: Iterable[str]) -> frozenset[str]:
    return frozenset(setting for part in parts for setting in part.split(","))
