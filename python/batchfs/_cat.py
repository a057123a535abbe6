"""Batches from ``batchfs cat`` in a pipe, where nothing can be mounted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import tempfile
import weakref
from typing import IO, Any

import numpy as np

from ._program import MountError, ReadError, Setting, program, run, said
from ._split import Split, fill_rest, locate, sizes

_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_HEADER = 4096  # of a .safetensors file
_SKIP = 256  # batches that are read and dropped, at most, before a new process is faster


class Piped:
    """Batches without a mount, of the same settings: each reader has a process ``batchfs cat``. It ends with its reader."""

    def __init__(self, flags: list[str]) -> None:
        self._flags = flags
        self._splits: weakref.WeakSet[Pipe] = weakref.WeakSet()

    def split(self, name: str, *, rank: int | None = None, world: int | None = None, **settings: Setting) -> Split:
        """Returns a split, ``m.split("train", order="shuffle")``: see `batchfs.split`.

        Raises:
            MountError: the token files or the settings are wrong.
        """
        path, info = locate(name, rank, world, settings, self._info)
        reader = Pipe([path, *self._flags], info)
        self._splits.add(reader)
        return Split(info, reader, self)

    def _info(self, path: str) -> dict[str, Any]:
        text, why = run("cat", path, "--format", "info", *self._flags)
        if why:
            raise MountError(why)
        return json.loads(text)

    def close(self) -> None:
        """Ends the processes of its splits."""
        for reader in self._splits:
            reader.close()

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pipe:
    """Reads batches from the output of ``batchfs cat``, in order. Another order starts the process again."""

    def __init__(self, args: list[str], info: dict[str, Any]) -> None:
        size = sizes(info)
        self.size = sum(size)
        # x and y alone need no header.
        self.header = 0 if [a["name"] for a in info["arrays"]] in (["x", "y"], ["tokens"], ["rows"]) else _HEADER
        self.args = ["cat", *args, "--count", "0", "--format", "safetensors" if self.header else "raw"]
        self.directory = os.getcwd()  # which paths in the arguments are relative to
        self.child: _Child | None = None
        _pipes.add(self)

    def fill(self, k: int, arrays: list[Any]) -> None:
        if self.child is None or not 0 <= k - self.child.next <= _SKIP:
            self.close()
            self.child = _Child([*self.args, "--from", str(k)], k, self.directory)
        header = [np.empty(self.header, np.uint8)] if self.header else []
        while self.child.next <= k:
            try:
                self.child.read([*header, *arrays], self.header + self.size)
            except ReadError:
                self.close()
                raise
        if header and b'"batch":"%d"' % k not in header[0].tobytes():
            raise ReadError(f"batchfs cat gave another batch than {k}: is the program of another version?")

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
        self.child = None

    def forget(self) -> None:
        """Lets a forked process go on without the pipe of its parent, which ends when the parent closes it."""
        if self.child is not None:
            self.child.stdout.close()
            self.child.stderr.close()
            self.child.process.returncode = 0  # it is not this process's to wait for
        self.child = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "child": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _pipes.add(self)


_pipes: weakref.WeakSet[Pipe] = weakref.WeakSet()


def _after_fork() -> None:
    for pipe in _pipes:
        pipe.forget()


os.register_at_fork(after_in_child=_after_fork)


class _Child:
    """A process that writes batches next, next + 1, … It ends when its pipe is closed: when this process is killed, too."""

    def __init__(self, args: list[str], first: int, directory: str) -> None:
        self.next = first
        try:
            self.stderr: IO[bytes] = tempfile.TemporaryFile()
            process = subprocess.Popen(
                [program(), *args], bufsize=0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.stderr, cwd=directory
            )
        except OSError as e:
            raise ReadError(f"batchfs cat could not be started: {e}") from e
        assert process.stdout is not None
        self.process, self.stdout = process, process.stdout
        with contextlib.suppress(OSError):  # it is slower with less
            fcntl.fcntl(self.stdout, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.close = weakref.finalize(self, _end, process, self.stderr, os.getpid())

    def read(self, arrays: list[Any], size: int) -> None:
        fd = self.stdout.fileno()
        try:
            done = os.readv(fd, arrays)
            if done != size:
                fill_rest(lambda to, _: os.readv(fd, to), arrays, done, size)
        except ReadError as e:
            self.process.wait()
            raise ReadError(f"batch {self.next}: {said(self.stderr) or e}") from e
        self.next += 1


def _end(process: subprocess.Popen[bytes], stderr: IO[bytes], pid: int) -> None:
    if os.getpid() == pid and process.stdout is not None:
        process.stdout.close()
        process.kill()
        process.wait()
        stderr.close()
