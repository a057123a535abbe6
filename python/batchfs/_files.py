"""Batches from files in a mount."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._batch import layouts
from ._descriptor import Descriptor
from ._errors import Error, MountError, ReadError
from ._program import Report, run
from ._read import read_rest
from ._state import differences, parse_info

_DESCRIBE_LIMIT = 10.0  # seconds
_OPEN_TRIES = 3

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
    """Reads batches from sequence.bin in a mount."""

    def __init__(self, path: str, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info  # the dict of the split, which is kept up to date
        self.size = sum(p.end - p.start for p in layouts(info))
        self.max_steps: int = info["max_steps"]
        self.file: _File | None = None
        _readers[id(self)] = self

    def fill(self, k: int, buffers: list[memoryview]) -> None:
        if k >= self.max_steps:
            try:
                os.close(os.open(f"{self.path}/batch/{k}", os.O_RDONLY | os.O_CLOEXEC))
                self._update(k)  # a restart may have made the sequence longer
            except OSError as e:
                raise ReadError(self._describe(k, e)) from e
            if k >= self.max_steps:
                raise ReadError(f"batch {k} of {self.path} is beyond the end of sequence.bin, which can hold {self.max_steps} batches of this size: read batch/{k}")
        try:
            file, at = self.file or self._open(k), k * self.size
            done = os.preadv(file.fd, buffers, at)
            if done != self.size:  # a read of more than a mebibyte may return a part
                read_rest(lambda to, done: os.preadv(file.fd, to, at + done), buffers, done, self.size)
        except OSError as e:
            self.refresh(k)  # compares the open file with the mount, so close comes later
            self.close()  # after a takeover or with new tokens, the file must be opened again
            raise ReadError(self._describe(k, e)) from e

    def refresh(self, k: int) -> None:
        if "stages" in self.info:
            with contextlib.suppress(OSError, ReadError):  # the mount may have ended
                self._update(k)

    def _update(self, k: int) -> None:
        """Updates info. Raises ReadError if the path has another sequence than the one whose batches up to k - 1 may have been read."""
        file, directory = self.file, os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A restart changes no batches that were read. But this reader may have read some since
            # then that info does not describe.
            is_same = file is not None and os.fstat(file.fd).st_dev == os.fstat(directory).st_dev
            self._require_same(directory, 0 if is_same else min(k, self.max_steps))
        finally:
            os.close(directory)

    def _open(self, k: int) -> _File:
        # Both files are opened through one descriptor, because something else may be mounted at the
        # path at any time.
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in range(_OPEN_TRIES):
                self._require_same(directory, k + 1)
                if k >= self.max_steps:  # a restart has made the sequence shorter
                    # This fails, and status.json says why.
                    os.close(os.open(f"batch/{k}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory))
                try:
                    file = _File(directory)
                except FileNotFoundError as e:
                    raise ReadError(f"{self.path} has no sequence.bin, so another version of batchfs made the mount: unmount it, and mount again") from e
                if os.fstat(file.fd).st_size == self.max_steps * self.size:
                    self.file = file
                    return file
                # A restart has changed the length of the sequence in between.
            raise ReadError(f"batch {k} of {self.path}: restarts keep changing the length of sequence.bin: read again")
        finally:
            os.close(directory)

    def _require_same(self, directory: int, batches: int) -> None:
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
        for key in self.info.keys() - now.keys():
            self.info.pop(key, None)  # another thread may have removed it
        if self.max_steps != now["max_steps"]:
            self.close()  # an open file keeps its size
        self.max_steps = now["max_steps"]

    def close(self) -> None:
        self.file = None  # a thread that is reading it keeps it open

    def _describe(self, k: int, e: OSError) -> str:
        """Explains a failed read."""
        words = f"batch {k} of {self.path}: {e.strerror}"
        if e.errno == errno.EINVAL and (why := reason(self.path)):
            return f"{words}: {why.message}"
        if hint(e.errno) != _GONE and (why := self._last_error()):
            words += f": {why}"
            if e.errno in (errno.ESTALE, errno.ENODATA):  # the error says what to do
                return words
        return f"{words}; {hint(e.errno)}"

    def _last_error(self) -> str:
        """Returns the last error of these settings in status.json, or an empty string."""
        path = Path(self.path)
        for root in path.parents:
            try:
                sequences: dict[str, Any] = json.loads((root / "status.json").read_text())["sequences"]
                failed = {name: _setting_set(name.split("/")) for name in sequences if sequences[name]["last_error"]}
            # There is no such file, or it is another program's.
            except (OSError, ValueError, LookupError, TypeError):
                continue
            settings = _setting_set(path.relative_to(root).parts)
            mine = [name for name in failed if failed[name] <= settings]
            return sequences[max(mine, key=lambda name: len(failed[name]))]["last_error"] if mine else ""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _readers[id(self)] = self


_readers: weakref.WeakValueDictionary[int, FileReader] = weakref.WeakValueDictionary()


def close_below(directory: str) -> None:
    """Closes the files of all readers in a directory, including those of copies of a split."""
    for ref in _readers.valuerefs():
        if (reader := ref()) and reader.path.startswith(directory + "/"):
            reader.close()


class _File(Descriptor):
    """An open sequence.bin."""

    def __init__(self, directory: int) -> None:
        self.fd = os.open("sequence.bin", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)


def reason(path: str) -> Report | None:
    """Returns the program's explanation of why a split cannot be opened, or None if it can be opened or there is no program.

    The program uses the settings of the mount without touching the mount, which may hang.
    """
    try:
        return run("cat", "--format", "info", "--", path, timeout=_DESCRIBE_LIMIT)[1]
    except MountError:
        return None


def hint(number: int | None) -> str:
    """Suggests what to do about an errno of a mount."""
    return _HINTS.get(number or 0, "`batchfs doctor` says more")


def _setting_set(parts: Iterable[str]) -> frozenset[str]:
    return frozenset(setting for part in parts for setting in part.split(","))
