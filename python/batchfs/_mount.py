"""Mounts that belong to this process, and splits of existing mounts."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import subprocess
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from ._descriptor import above_standard
from ._errors import MountError
from ._files import FileReader, close_below, hint, reason
from ._pipe import Piped
from ._program import Log, not_started, parse_report, program, run, unexplained
from ._ranks import resolve_split
from ._settings import PathLike, Setting, absolute_path, flags, path_text
from ._split import Split
from ._state import parse_info

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
    """Mounts token files for this process. The mount ends when the process does, for whatever reason.

    Args:
        data: a directory with train.bin and val.bin, or sets of files: see ``batchfs mount --help``.
        config: a config.toml, in addition to data or instead of it.
        mountpoint: an empty directory. Default: a new one in the directory for temporary files.
        log: a file for the mount's log. Default: none, but errors quote the log.
        set: any keys of config.toml: ``{"splits.val.order": "sequential", "memory.access": "pread"}``.
        batch: keys of [batch]: ``batch_size=12, block_size=1024, order="shuffle", seed=7, dtype="int64"``.

    Raises:
        MountError: mounting failed.
    """
    args = [*flags(data, config, batch, set or {}), *(["--log", absolute_path("log", log)] if log else [])]
    if mountpoint is not None:
        return Mount(absolute_path("mountpoint", mountpoint), False, args)
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
    """Mounts like `mount` if this machine can. Otherwise it warns and reads the same batches from a pipe.

    Reading in order, a pipe is as fast. In any other order, each jump starts a process.

    Raises:
        MountError: the token files or the settings are wrong.
    """
    try:
        return mount(data, config=config, mountpoint=mountpoint, log=log, set=set, **batch)
    except MountError as e:
        if e.kind != "no_fuse":
            raise
        piped = Piped(flags(data, config, batch, set or {}))
        warnings.warn(f"batches are read from pipes, because there is no mount: {e}", RuntimeWarning, stacklevel=2)
        return piped


def split(
    path: PathLike, *, rank: SupportsIndex | None = None, world: SupportsIndex | None = None, mesh: DeviceMesh | None = None, **settings: Setting
) -> Split:
    """Returns a split of an existing mount: ``batchfs.split("/mnt/batches/train", order="shuffle")``.

    Args:
        path: the split's directory, or a settings directory below it.
        rank, world: the rank of this process in data parallelism, and the number of such ranks. Processes that share one replica of the
            model, by tensor, pipeline or context parallelism, need the same rows, and so the same rank. rank=0, world=1 reads all
            rows. Default, unless the path sets them: those of torch.distributed if it is initialized, or torchrun's RANK and
            WORLD_SIZE, which is right without such parallelism.
        mesh: instead of rank and world, a PyTorch DeviceMesh of all data-parallel dimensions, such as ``mesh["dp"]`` or
            ``mesh["dp_replicate", "dp_shard"]``, in row-major order.
        settings: the settings that a path may have: batch_size (rows of one rank), block_size, dtype, layout, order, seed, shuffle_block, steps.

    Raises:
        MountError: nothing is mounted there, or a setting is invalid.
        ArgumentError: there are several processes, and nothing says which one this is; or an argument is wrong.
    """
    found, info = resolve_split(absolute_path("path", path), rank, world, mesh, settings, _info, is_own=False)
    return Split(info, FileReader(found, info))


class Mount:
    """A mount that belongs to this process. It is unmounted by `close`, at the end of a ``with``, when it is garbage-collected, or when
    the process ends. Reads in progress then have mount.grace, 10 seconds by default, to finish.

    Attributes:
        mountpoint: the path of the mount.
    """

    def __init__(self, mountpoint: str, made: bool, args: list[str]) -> None:
        self.mountpoint = mountpoint
        # The program creates and removes the directory, because this process may be killed at any
        # time.
        own = ["--make-mountpoint"] if made else []
        directory = mountpoint if made else ""
        process, self._log = _start(["--parent", str(os.getpid()), *own, *args, mountpoint], directory)
        self._ending = directory, process, os.getpid(), mountpoint
        self._at_exit = weakref.finalize(self, _unmount, *self._ending)
        self._is_closed = False

    def close(self) -> None:
        """Unmounts, and returns when nothing is mounted, or raises MountError. In a forked process, it does nothing."""
        if not self._is_closed:
            self._at_exit.detach()
            _unmount(*self._ending)
            self._is_closed = True

    def split(
        self, name: str, *, rank: SupportsIndex | None = None, world: SupportsIndex | None = None, mesh: DeviceMesh | None = None, **settings: Setting
    ) -> Split:
        """Returns a split, ``m.split("train", order="shuffle")``: see `batchfs.split`."""
        path, info = resolve_split(os.path.join(self.mountpoint, path_text("name", name)), rank, world, mesh, settings, _info)
        return Split(info, FileReader(path, info), self)

    def log(self) -> str:
        """Returns the end of the mount's log, or an empty string if the log goes to a file."""
        return self._log.end()

    def __reduce__(self) -> Any:
        raise TypeError("a mount cannot be copied or pickled: use its splits instead, or call batchfs.split with a path in its mountpoint")

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info(path: str) -> dict[str, Any]:
    try:
        return parse_info(path, Path(path, "info.json").read_bytes())
    except OSError as e:
        failure = reason(path)
        why = failure.message if failure else f"{path}: {e}"
        if e.errno not in (errno.ENOENT, errno.EINVAL) or not failure:
            why = f"{why}; {hint(e.errno)}"
        raise MountError(why, kind=failure.kind if failure else "failed") from e


def _start(args: list[str], directory: str) -> tuple[subprocess.Popen[bytes], Log]:
    """Starts the program, and returns it and its log when the mount can be read. If it fails, nothing is mounted, and directory, if any, is gone."""
    with contextlib.ExitStack() as files:
        try:
            log = Log()
            ours, theirs = (files.enter_context(os.fdopen(above_standard(fd), mode)) for fd, mode in zip(os.pipe(), ("rb", "wb")))
            # In a session of its own, the program does not get the signal of Ctrl-C: see Process.
            process = subprocess.Popen(
                [program(), "mount", "--status-fd", str(theirs.fileno()), *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log.fd,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as e:
            raise MountError(not_started(e)) from e
        try:
            theirs.close()
            report = parse_report(ours.readline()) or unexplained(process, log)
            if report.kind == "ready":
                return process, log
            process.wait()
            raise MountError(report.message, kind=report.kind)
        except BaseException:
            process.terminate()
            process.wait()
            _clear(process, directory)
            raise


def _unmount(directory: str, process: subprocess.Popen[bytes], parent: int, mountpoint: str) -> None:
    """Ends a mount that process parent made, waits until it is gone, and removes directory, if any."""
    if os.getpid() != parent:
        process.returncode = 0  # only the program's parent can wait for it
        return
    close_below(mountpoint)  # a mount waits for open files before it ends
    try:
        process.terminate()
        process.wait()
    except KeyboardInterrupt:
        process.terminate()  # a second signal does not wait for readers
        process.wait()
        raise
    finally:
        _clear(process, directory)


def _clear(process: subprocess.Popen[bytes], directory: str) -> None:
    """Unmounts what a program left mounted because it was killed or failed, and removes directory, if any.

    Raises:
        MountError: it is still mounted.
    """
    why = ""
    for place in _mounted_by(process.pid):
        # Meanwhile, another program may be installed.
        _, failure = run("unmount", "--force", place, timeout=_UNMOUNT_LIMIT, path=cast("list[str]", process.args)[0])
        why = failure.message if failure else ""
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    for place in _mounted_by(process.pid):
        raise MountError(f"{place} is still mounted: {why}; as root, run: umount -l {shlex.quote(place)}")


def _mounted_by(pid: int) -> list[str]:
    """Returns the mountpoints of a supervisor, which may be in a moved directory, without touching them."""
    # Reading as text would take a \r in a name for the end of a line.
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")
    # A container may see the mounts of others, whose processes have the same numbers.
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except FileNotFoundError:  # the kernel has no such namespaces
        namespace = 0
    source = re.compile(rf" - fuse\.batchfs batchfs:{pid}:\d+:{namespace} ")
    escaped = [line.split(" ")[4] for line in lines if source.search(line)]
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place) for place in escaped]
