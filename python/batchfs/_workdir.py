"""The directory of unfinished work: its lock, its states, and how its files get their final names."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import time
import weakref
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from ._errors import ArgumentError, Error
from ._settings import PathLike, absolute_path, path_text

State: TypeAlias = "dict[str, Any]"

WORK = ".prepare"
WRITER_STATE, FINISH_STATE = ".writer.json", ".finish.json"
_KEYS = {WRITER_STATE: {"settings", "arrays", "splits", "moves"}, FINISH_STATE: {"writer", "moves"}}
_LOCK_LIMIT = 2.0  # seconds: a writer of a shard that ends locks out the others for a moment
SHARD = re.compile(r"shard_(\d+)_of_(\d+)")
_TOKEN_FILE = re.compile(r"vocab\.json|(.*[-_.])?(train|val)([-_.\d].*)?\.(bin|npy|ds|idx|index|ids|metadata)")
# Files of writers, and of a prepare that was killed before its first checkpoint.
_CREATED_FILE = re.compile(
    rf"{SHARD.pattern}|{_TOKEN_FILE.pattern}|\.(writer|finish)\.json(\.new)?|\.state\.json\.new|\.parquet-\d+|\.(train|val)(_\d+)?\.bin\.ends"
)


class WorkDirectory:
    """A directory of unfinished work, owned by this user, and locked until `unlock` or garbage collection."""

    def __init__(self, path: str, operation: int) -> None:
        self.path, self.fd = path, _open(path, operation)
        self.unlock = weakref.finalize(self, _unlock, path, self.fd, os.getpid())

    def save(self, name: str, state: State) -> None:
        """Replaces a state atomically."""
        path = os.path.join(self.path, name)
        self.write(name + ".new", state)
        os.rename(path + ".new", path)
        os.fsync(self.fd)

    def write(self, name: str, value: State) -> None:
        with open(os.path.join(self.path, name), "w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Removes everything, the state last."""
        for name in sorted(os.listdir(self.path), key=_KEYS.__contains__):
            path = os.path.join(self.path, name)
            (shutil.rmtree if SHARD.fullmatch(name) else os.remove)(path)

    def publish(self, directory: str, moves: Iterable[tuple[str, str]]) -> None:
        """Gives files their final names. The manifest is first, because a mount rejects token files while others that it lists are missing."""
        paths = [(os.path.join(self.path, old), os.path.join(directory, new)) for old, new in moves]
        # The others were moved before a program was killed. Since then, someone else may have
        # written files.
        left = [(old, new) for old, new in paths if os.path.exists(old) or not os.path.lexists(new)]
        for _, new in left:
            if os.path.lexists(new):
                raise _exists(new)
        for old, new in left:
            os.rename(old, new)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.clear()


def _open(path: str, operation: int) -> int:
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        # A writer that ends may remove the directory at any moment.
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as on_error:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            on_error.callback(os.close, fd)
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise Error(f"{path} belongs to another user, or others may write to it: choose another directory, or remove it")
            _lock(path, fd, operation)
            if not os.path.samestat(os.stat(path), status):
                continue
            # Before, another program may have been writing.
            entries = os.listdir(fd)
            if ".state.json" in entries:
                raise Error(f"{path} belongs to an unfinished batchfs prepare: run that command again, or remove the directory")
            if foreign := [name for name in entries if not _CREATED_FILE.fullmatch(name)]:
                raise Error(f"{path} contains {foreign[0]}, which batchfs did not create: remove the directory, or choose another")
            os.fchmod(fd, 0o700)
            on_error.pop_all()
            return fd


def _lock(path: str, fd: int, operation: int) -> None:
    deadline = time.monotonic() + _LOCK_LIMIT
    while True:
        try:
            return fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if time.monotonic() > deadline:
                advice = "wait until it has ended, or close it if it is a writer in this process"
                raise Error(f"{path}: another batchfs.writer or batchfs prepare is running there: {advice}") from e
        time.sleep(0.005)


def _unlock(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another writer uses it
            os.rmdir(path)  # fails unless it is empty
        fcntl.flock(fd, fcntl.LOCK_UN)  # processes that were forked have the descriptor too
    os.close(fd)


def read_state(path: str, name: str) -> State | None:
    """Returns a state in a work directory, or None if there is none."""
    try:
        state: State = json.loads(Path(path, name).read_bytes())
        if state.keys() == _KEYS[name]:
            return state
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError):
        pass
    raise Error(f"{path}: {name} is not a state that this version of batchfs can read: remove the directory to start over")


def shard_name(i: int, n: int) -> str:
    return f"shard_{i:05d}_of_{n:05d}"


def check_free(directory: str) -> None:
    """Raises an error if a directory has token files."""
    for name in sorted(os.listdir(directory)):
        if _TOKEN_FILE.fullmatch(name):
            raise _exists(os.path.join(directory, name))


def _exists(path: str) -> Error:
    return Error(f"{path} already exists: move it away, or choose another directory")


def absolute(dir: PathLike) -> str:
    if re.match("[a-z0-9]+://", path := path_text("dir", dir)):
        raise ArgumentError(f"{path}: must be a local directory, because the writer never writes to a store: upload the files when they are complete")
    return absolute_path("dir", path)


@contextlib.contextmanager
def explained(path: str) -> Generator[None]:
    """Turns an OSError into an Error."""
    try:
        yield
    except OSError as e:
        advice = ": look at the disk, then continue with resume=True, or call finish again" if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else ""
        raise Error(f"{path}: {e}{advice}") from e
