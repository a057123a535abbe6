"""Mounts: one for a run, unmounted after it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import subprocess
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

from ._pipe import Piped
from ._files import FileReader, hint, reason
from ._program import Log, MountError, PathLike, Setting, flags, parse_info, program, run
from ._split import Split, resolve_split

_READY = b"stop with Ctrl-C"
_UNMOUNT_LIMIT = 10.0  # seconds


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
    args = [*flags(data, config, batch, set or {}), *(["--log", os.fspath(log)] if log else [])]
    if mountpoint is not None:
        return Mount(os.path.abspath(mountpoint), False, args)
    try:
        place = os.path.join(tempfile.gettempdir(), f"batchfs-{secrets.token_hex(8)}")
    except OSError as e:
        raise MountError(f"no place for a mount: {e}; set TMPDIR to a directory with room, or name a mountpoint") from e
    return Mount(place, True, args)


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
        if not re.search("/dev/fuse|fusermount3|cannot mount .*: (no such device|function not implemented)", str(e)):
            raise
        piped = Piped(flags(data, config, batch, set or {}))
        warnings.warn(f"batches are read from pipes, because there is no mount: {e}", RuntimeWarning, stacklevel=2)
        return piped


def split(path: PathLike, *, rank: SupportsIndex | None = None, world: SupportsIndex | None = None, **settings: Setting) -> Split:
    """Returns a split of a mount that is there: ``batchfs.split("/mnt/batches/train", order="shuffle")``.

    Args:
        path: the split's directory, with settings or without.
        rank, world: default: RANK and WORLD_SIZE, where torchrun sets them and the path does not.
        settings: what a path may set: batch_size (that of a rank), block_size, dtype, layout, order, seed, shuffle_block, steps.

    Raises:
        MountError: nothing is mounted there, or a setting is refused.
    """
    found, info = resolve_split(os.path.abspath(path), rank, world, settings, _info)
    return Split(info, FileReader(found, info))


class Mount:
    """A mount of this process. It is unmounted by `close`, at the end of a ``with``, when it is garbage, or when the process ends.

    Reads that are under way then may finish for mount.grace, 10 seconds by default.

    Attributes:
        mountpoint: its path.
    """

    def __init__(self, mountpoint: str, made: bool, args: list[str]) -> None:
        self.mountpoint = mountpoint
        self._log = Log()
        self._readers: weakref.WeakSet[FileReader] = weakref.WeakSet()
        try:
            # The program makes the directory and removes it, because this process may be killed at
            # any time.
            own = ["--make-mountpoint"] if made else []
            process = _start(["--parent", str(os.getpid()), *own, *args, mountpoint], self._log)
        except BaseException:
            if made:
                _remove(mountpoint)
            raise
        self.close: Callable[[], object] = weakref.finalize(self, _unmount, mountpoint, made, process, os.getpid(), self._readers)
        """Unmounts, and returns when nothing is mounted. In a forked process it does nothing."""

    def split(self, name: str, *, rank: SupportsIndex | None = None, world: SupportsIndex | None = None, **settings: Setting) -> Split:
        """Returns a split, ``m.split("train", order="shuffle")``: see `batchfs.split`."""
        path, info = resolve_split(os.path.join(self.mountpoint, name), rank, world, settings, _info)
        reader = FileReader(path, info)
        self._readers.add(reader)
        return Split(info, reader, self)

    def log(self) -> str:
        """Returns the end of what the mount has logged, unless there is a log file."""
        return self._log.end()

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info(path: str) -> dict[str, Any]:
    try:
        return parse_info(path, Path(path, "info.json").read_bytes())
    except OSError as e:
        why = reason(path)
        if e.errno not in (errno.ENOENT, errno.EINVAL) or not why:
            why = f"{why or f'{path}: {e}'}; {hint(e.errno)}"
        raise MountError(why) from e


def _start(args: list[str], log: Log) -> subprocess.Popen[bytes]:
    """Starts the program and returns when it serves."""
    try:  # in a session of its own, which Ctrl-C does not reach: the trainer may go on for a while, to save what it has
        process = subprocess.Popen(
            [program(), "mount", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log.fd, start_new_session=True
        )
    except OSError as e:
        raise MountError(f"the program could not be started: {e}") from e
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            if any(line.startswith(_READY) for line in lines):
                return process
        status = process.wait()
        raise MountError(log.end() or f"batchfs mount ended with status {status}")
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _unmount(mountpoint: str, made: bool, process: subprocess.Popen[bytes], parent: int, readers: Iterable[FileReader]) -> None:
    """Ends a mount that the process parent made, and waits for it."""
    if os.getpid() != parent:
        process.returncode = 0  # it is not this process's to wait for
        return
    for reader in readers:
        reader.close()
    try:
        process.terminate()
        process.wait()
    except KeyboardInterrupt:
        process.terminate()  # the second time it does not wait for readers
        process.wait()
        raise
    finally:
        if process.poll() != 0:  # it was killed, perhaps, and the mount is dead
            run("unmount", "--force", mountpoint, timeout=_UNMOUNT_LIMIT)
        if made:
            _remove(mountpoint)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
