"""Batches from a pipe of ``batchfs cat``, for machines that cannot mount."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import weakref
from typing import IO, TYPE_CHECKING, Any, SupportsIndex

from ._batch import HEADER, layouts
from ._errors import MountError, ReadError
from ._lock import Locked
from ._program import Process, not_started, run
from ._ranks import resolve_split
from ._read import read_rest
from ._settings import Setting, path_text
from ._split import Split
from ._state import parse_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_SKIP = 256  # limit on the batches to read and drop; a new process is faster beyond it


class Piped:
    """The result of `batchfs.open` on a machine that cannot mount. Each split reads from its own ``batchfs cat`` process."""

    def __init__(self, flags: list[str]) -> None:
        self._flags = flags
        # Paths in the flags stay relative to this directory, even if the trainer changes its own
        # later.
        self._directory = os.getcwd()
        self._readers: weakref.WeakSet[PipeReader] = weakref.WeakSet()

    def split(
        self, name: str, *, rank: SupportsIndex | None = None, world: SupportsIndex | None = None, mesh: DeviceMesh | None = None, **settings: Setting
    ) -> Split:
        """Returns a split, ``m.split("train", order="shuffle")``: see `batchfs.split`.

        Raises:
            MountError: the token files or the settings are wrong.
        """
        path, info = resolve_split(path_text("name", name), rank, world, mesh, settings, self._info)
        reader = PipeReader(path, self._flags, self._directory, info)
        self._readers.add(reader)
        return Split(info, reader, self)

    def _info(self, path: str) -> dict[str, Any]:
        text, failure = run("cat", "--format", "info", *self._flags, "--", path, directory=self._directory)
        if failure:
            raise MountError(failure.message, kind=failure.kind)
        return parse_info(path, text)

    def close(self) -> None:
        """Ends the processes."""
        for reader in self._readers:
            reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_flags": self._flags, "_directory": self._directory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _readers=weakref.WeakSet())

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PipeReader(Locked):
    """Reads batches from the output of ``batchfs cat``. A jump restarts the program, and so does the first read in another process.

    A restarted program fails unless its sequence is still the one that info describes.
    """

    def __init__(self, path: str, flags: list[str], directory: str, info: dict[str, Any]) -> None:
        super().__init__()  # the lock lets one thread read at a time
        arrays = layouts(info)
        self.size = sum(p.end - p.start for p in arrays)
        # x and y alone need no header.
        self.header = 0 if [p.name for p in arrays] in (["x", "y"], ["tokens"], ["rows"]) else HEADER
        output = "safetensors" if self.header else "raw"
        self.args = ["cat", "--count", "0", "--format", output, "--identity", info["identity"], *flags]
        self.path = path
        self.directory = directory
        self.cat: _Cat | None = None

    def fill(self, k: int, buffers: list[memoryview]) -> None:
        header = [memoryview(bytearray(self.header))] if self.header else []
        to = [*header, *buffers]
        with self.lock:
            if self.cat is None or self.cat.parent != os.getpid() or not 0 <= k - self.cat.next <= _SKIP:
                self._end()
                self.cat = _Cat([*self.args, "--from", str(k), "--", self.path], k, self.directory)
            try:
                while self.cat.next <= k:
                    self.cat.read(to, self.header + self.size)
            except BaseException:  # the pipe may be in the middle of a batch
                self._end()
                raise
        if header and b'"batch":"%d"' % k not in header[0].tobytes():
            raise ReadError(f"batchfs cat gave another batch than {k}: is the program of another version?")

    def refresh(self, k: int) -> None:
        """Does nothing: later stages stay those with which the split was opened."""

    def _end(self) -> None:
        if self.cat is not None:
            self.cat.end()
        self.cat = None

    def close(self) -> None:
        with self.lock:
            self._end()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "cat": None}


class _Cat:
    """A program that writes batches next, next + 1, … until `end`, or until no process has the pipe open."""

    def __init__(self, args: list[str], first: int, directory: str) -> None:
        self.next = first
        self.parent = os.getpid()
        try:
            self.running = Process(args, subprocess.PIPE, directory=directory)
        except OSError as e:
            raise ReadError(not_started(e)) from e
        except MountError as e:
            raise ReadError(str(e), kind=e.kind) from e
        self.process = process = self.running.process
        assert process.stdout is not None
        self.stdout = process.stdout
        with contextlib.suppress(OSError):  # a smaller pipe is slower
            fcntl.fcntl(self.stdout, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.end = weakref.finalize(self, _end, process, self.stdout, self.parent)

    def read(self, buffers: list[memoryview], size: int) -> None:
        fd = self.stdout.fileno()
        try:
            done = os.readv(fd, buffers)
            if done != size:
                read_rest(lambda to, _: os.readv(fd, to), buffers, done, size)
        except OSError as e:
            report = self.running.report()
            raise ReadError(f"batch {self.next}: {report.message}", kind=report.kind) from e
        self.next += 1


def _end(process: subprocess.Popen[bytes], stdout: IO[bytes], parent: int) -> None:
    stdout.close()
    if os.getpid() != parent:
        process.returncode = 0  # only the program's parent can wait for it
        return
    process.kill()
    process.wait()
