"""Mounts: one for a run, unmounted after it; and files of batches in a mount."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from ._cat import Piped
from ._files import Files, files, hint
from ._program import MountError, PathLike, Setting, flags, program, run, said
from ._split import Split, locate

# The program gets SIGTERM when the thread that started it ends: when Python is killed, too. It then unmounts.
_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_READY = b"stop with Ctrl-C"
_DESCRIBE_LIMIT = 10.0  # seconds


def mount(
    data: PathLike | None = None,
    *,
    config: PathLike | None = None,
    mountpoint: PathLike | None = None,
    log: PathLike | None = None,
    set: Mapping[str, Setting] | None = None,
    **batch: Setting,
) -> Mount:
    """Mounts token files for this process. The mount ends with it, however it ends.

    Args:
        data: a directory with train.bin and val.bin, or sets of files: see ``batchfs mount --help``.
        config: a config.toml, beside or instead of data.
        mountpoint: an empty directory. Default: a new one in the directory for temporary files.
        log: the file to write the mount's log to. Default: none, but errors quote it.
        set: any keys of config.toml: ``{"splits.val.order": "sequential", "memory.access": "pread"}``.
        batch: keys of [batch]: ``batch_size=12, block_size=1024, order="shuffle", seed=7, dtype="int64"``.

    Raises:
        MountError: it could not be mounted.
    """
    args = [program(), "mount", *flags(data, config, batch, set or {}), *(["--log", os.fspath(log)] if log else [])]
    made = mountpoint is None
    try:
        place = tempfile.mkdtemp(prefix="batchfs-") if mountpoint is None else os.path.abspath(mountpoint)
        stderr: IO[bytes] = tempfile.TemporaryFile()
    except OSError as e:
        raise MountError(f"no place for a mount: {e}; set TMPDIR to a directory with room, or name a mountpoint") from e
    try:
        child = _start([*args, place], stderr)
    except BaseException:
        stderr.close()
        if made:
            _remove(place)
        raise
    return Mount(place, child, stderr, made)


def open(
    data: PathLike | None = None,
    *,
    config: PathLike | None = None,
    mountpoint: PathLike | None = None,
    log: PathLike | None = None,
    set: Mapping[str, Setting] | None = None,
    **batch: Setting,
) -> Mount | Piped:
    """Mounts as `mount` does if this machine can, and else reads the same batches from a pipe, which a warning says.

    A pipe is as fast for a reader in order. Reading in another order starts a process for each jump.

    Raises:
        MountError: the token files or the settings are wrong.
    """
    try:
        return mount(data, config=config, mountpoint=mountpoint, log=log, set=set, **batch)
    except MountError as e:
        if not re.search("/dev/fuse|fusermount3|cannot mount", str(e)):
            raise
        piped = Piped(flags(data, config, batch, set or {}))
        warnings.warn(f"batches are read from pipes, because there is no mount: {e}", RuntimeWarning, stacklevel=2)
        return piped


def split(path: PathLike, *, rank: int | None = None, world: int | None = None, **settings: Setting) -> Split:
    """Returns a split of a mount that is there: ``batchfs.split("/mnt/batches/train", order="shuffle")``.

    Args:
        path: the split's directory, with settings or without.
        rank, world: default: RANK and WORLD_SIZE, where torchrun sets them and the path does not.
        settings: what a path may set: batch_size (that of a rank), block_size, dtype, layout, order, seed, shuffle_block, steps.

    Raises:
        MountError: nothing is mounted there, or a setting is refused.
    """
    found, info = locate(os.path.abspath(path), rank, world, settings, _info)
    return Split(info, Files(found, info))


class Mount:
    """A mount of this process. It is unmounted by `close`, at the end of a ``with``, when it is garbage, or when the process ends.

    Reads that are under way then may finish for mount.grace, 10 seconds by default.

    Attributes:
        mountpoint: its path.
    """

    def __init__(self, mountpoint: str, child: subprocess.Popen[bytes], log: IO[bytes], made: bool) -> None:
        self.mountpoint = mountpoint
        self._log = log
        self.close: Callable[[], object] = weakref.finalize(self, _unmount, mountpoint, child, log, os.getpid(), made)
        """Unmounts, and returns when nothing is mounted. In a forked process it does nothing."""

    def split(self, name: str, *, rank: int | None = None, world: int | None = None, **settings: Setting) -> Split:
        """Returns a split, ``m.split("train", order="shuffle")``: see `batchfs.split`."""
        path, info = locate(os.path.join(self.mountpoint, name), rank, world, settings, _info)
        return Split(info, Files(path, info), self)

    def log(self) -> str:
        """Returns the end of what the mount has logged, until it is closed, and unless there is a log file."""
        return "" if self._log.closed else said(self._log)

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info(path: str) -> dict[str, Any]:
    try:
        return json.loads(Path(path, "info.json").read_text())
    except (OSError, ValueError) as e:
        # The program reads the same without touching the mount, and has words for what is wrong.
        _, why = run("cat", path, "--format", "info", timeout=_DESCRIBE_LIMIT)
        number = e.errno if isinstance(e, OSError) else None
        if number not in (errno.ENOENT, errno.EINVAL) or not why:
            why = f"{why or f'{path}: {e}'}; {hint(number)}"
        raise MountError(why) from e


def _start(args: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts the program and returns when it serves. A thread starts it and lives as long, because the kernel asks for the thread."""
    started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def keep() -> None:
        shim = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid())]
        try:  # in a session of its own, which Ctrl-C does not reach: the trainer may go on for a while, to save what it has
            child = subprocess.Popen(
                shim + args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        except OSError as e:
            started.put(e)
            return
        started.put(child)
        child.wait()

    threading.Thread(target=keep, name="batchfs mount", daemon=True).start()
    child = started.get()
    if isinstance(child, OSError):
        raise MountError(f"the program could not be started: {child}") from child
    assert child.stdout is not None
    try:
        with child.stdout as lines:
            if any(line.startswith(_READY) for line in lines):
                return child
        status = child.wait()
        raise MountError(said(stderr) or f"batchfs mount ended with status {status}")
    except BaseException:
        child.terminate()
        child.wait()
        raise


def _unmount(mountpoint: str, child: subprocess.Popen[bytes], log: IO[bytes], pid: int, made: bool) -> None:
    """Ends a mount that process pid made, and waits for it."""
    if os.getpid() != pid:
        return
    for reader in files:
        if reader.path.startswith(mountpoint + "/"):
            reader.close()
    try:
        child.terminate()
        child.wait()
    except KeyboardInterrupt:
        child.terminate()  # the second time it does not wait for readers
        child.wait()
        raise
    finally:
        if child.poll() != 0:  # it was killed, perhaps, and the mount is dead
            run("unmount", "--force", mountpoint, timeout=_DESCRIBE_LIMIT)
        log.close()
        if made:
            _remove(mountpoint)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
