"""The batchfs program: how to find and run it, its arguments, and the package's errors."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, cast

Setting: TypeAlias = "str | SupportsIndex | float | bool | list[str]"
PathLike: TypeAlias = "str | os.PathLike[str]"


_PATH_KEY = re.compile("[a-z_]+")
_PATH_VALUE = re.compile("[A-Za-z0-9_.-]+")


class Error(Exception):
    """The base class of batchfs's errors. The text says what happened and what to do.

    Attributes:
        kind: the kind of failure that the program reported, such as "no_fuse", "config" or "data", or "failed": see the exit statuses in
            docs/commands.md.
    """

    def __init__(self, *args: object, kind: str = "failed") -> None:
        super().__init__(*args)
        self.kind = kind


class MountError(Error):
    """There is no mount to read from: it could not be made, or it is gone."""


class ArgumentError(Error, TypeError, ValueError):
    """An argument, an environment variable or a saved state has a wrong type or value. The text names it."""


class ReadError(Error):
    """A batch or its description could not be read. The cause is the OSError, if there was one."""


def program() -> str:
    """Returns the path of the batchfs program: BATCHFS_PROGRAM, the one installed with this package, or the first on the PATH.

    Raises:
        MountError: there is no such program.
    """
    if path := os.environ.get("BATCHFS_PROGRAM"):
        if not os.access(path, os.X_OK):
            raise MountError(f"BATCHFS_PROGRAM: {path} is no program")
        return path
    user = sysconfig.get_preferred_scheme("user")
    target = os.path.dirname(os.path.dirname(__file__))  # pip install --target
    for scripts in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user), os.path.join(target, "bin")):
        path = os.path.join(scripts, "batchfs")
        if os.access(path, os.X_OK):
            return path
    if path := shutil.which("batchfs"):
        return path
    raise MountError("there is no program batchfs: pip install --force-reinstall batchfs, or set BATCHFS_PROGRAM to its path")


def flags(data: PathLike | None, config: PathLike | None, settings: Mapping[str, Setting], keys: Mapping[str, Setting]) -> list[str]:
    """Returns the flags that say what to serve. settings are keys of [batch]; keys are any keys of config.toml, such as memory.access."""
    args: list[str] = []
    if config is not None:
        args += ["-c", os.fspath(config)]
    if data is not None:
        args += ["--data", os.fspath(data)]
    for key, value in {**{f"batch.{key}": value for key, value in settings.items()}, **keys}.items():
        if "=" in key:
            raise ArgumentError(f"{key!r} is not a key of config.toml: it contains an equals sign")
        args += ["--set", f"{key}={text(key, value)}"]
    return args


def integer(name: str, value: SupportsIndex, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Returns an integer of any type as an int, because NumPy's integers overflow and its arrays change in place.

    Raises:
        ArgumentError: value is not an integer from low to high.
    """
    if type(value) is not int:
        try:
            value = int(operator.index(value))
        except TypeError as e:
            raise ArgumentError(f"{name} must be an integer (got {value!r}, a {type(value).__name__})") from e
    if not low <= value <= high:
        raise ArgumentError(f"{name} must be from {low} to {high} (got {value})")
    return value


def text(key: str, value: Setting) -> str:
    """Returns the value of a setting in the form that --set takes."""
    words = value if isinstance(value, str) else json.dumps(_plain(key, value))
    if "\0" in words:
        raise ArgumentError(f"{key} must not contain a null character (got {words!r})")
    return words


def path_settings(settings: Mapping[str, Setting]) -> str:
    """Returns settings as one component of a path in a mount.

    Raises:
        ArgumentError: a key or a value could add another setting or lead out of the split.
    """
    pairs = {key: text(key, value) for key, value in settings.items()}
    for key, words in pairs.items():
        if not _PATH_KEY.fullmatch(key):
            raise ArgumentError(f"{key!r} is not the name of a setting, such as batch_size")
        if not _PATH_VALUE.fullmatch(words) or words in (".", ".."):
            raise ArgumentError(f"{key} must be one word or number of letters, digits, '_', '.' and '-' (got {words!r})")
    return ",".join(f"{key}={words}" for key, words in pairs.items())


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, (str, bool, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(key, v) for v in cast("list[Any]", value)]
    try:
        return integer(key, value)
    except ArgumentError as e:
        raise ArgumentError(f"{key} must be text, a number, a bool or a list of these (got {value!r})") from e


def parse_info(path: str, text: bytes) -> dict[str, Any]:
    """Returns the content of a path's info.json.

    Raises:
        MountError: the file has no state, so another program wrote it.
    """
    with contextlib.suppress(ValueError, TypeError):
        info = json.loads(text)
        if "state" in info:
            return info
    raise MountError(f"{path}: info.json has no state, so it is not that of a split; name the directory of a split in a mount")


class Log:
    """The standard error of a program. It is kept in memory, because a full disk would lose it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("batchfs")

    def __del__(self) -> None:
        os.close(self.fd)

    def end(self, most: int = 2000) -> str:
        """Returns the last bytes."""
        start = max(os.fstat(self.fd).st_size - most, 0)
        return os.pread(self.fd, most, start).decode(errors="replace").strip()


class Report(NamedTuple):
    """What the program writes to --status-fd."""

    kind: str  # "ready", "end", or the kind of a failure
    message: str


def parse_report(line: bytes) -> Report | None:
    """Returns a report, or None if line is not one."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        report = json.loads(line)
        return Report(report["kind"], report["message"])
    return None


def unexplained(process: subprocess.Popen[bytes], log: Log) -> Report:
    """Returns why a program ended that did not report it. Such a program was killed or crashed, or does not know --status-fd."""
    path, command = cast("list[str]", process.args)[:2]
    if process.wait() < 0:
        why = f"batchfs {command} was killed by signal {-process.returncode} ({signal.strsignal(-process.returncode)})"
    else:
        why = (
            f"batchfs {command} ended with status {process.returncode} and did not report why: {path} crashed, or is of another version than this package; "
            "pip install --force-reinstall batchfs installs both, or set BATCHFS_PROGRAM to the path of the right one"
        )
    return Report("failed", f"{why}; its log: {text}" if (text := log.end()) else why)


class Process:
    """A program, whose reports and log are in memory."""

    def __init__(self, args: Iterable[str], stdout: int, stdin: int = subprocess.DEVNULL, directory: str | None = None, path: str = "") -> None:
        """Starts a command of the program, or of the one at path, in directory if given. Raises OSError, or MountError if there is no program."""
        command, *rest = args
        self.log, self._reports = Log(), Log()
        self.process = subprocess.Popen(
            [path or program(), command, "--status-fd", str(self._reports.fd), *rest],
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=self.log.fd,
            cwd=directory,
            pass_fds=[self._reports.fd],
        )

    def report(self) -> Report:
        """Waits for the end of the program, and returns why it ended."""
        self.process.wait()
        return parse_report(os.pread(self._reports.fd, 1 << 20, 0)) or unexplained(self.process, self.log)


def run(*args: str, stdin: bytes = b"", timeout: float | None = None, directory: str | None = None, path: str = "") -> tuple[bytes, Report | None]:
    """Runs a command of the program, or of the one at path, in directory if given, with stdin as its input. Returns its output, and why it
    failed, or None if it succeeded."""
    try:
        running = Process(args, subprocess.PIPE, subprocess.PIPE, directory, path)
    except OSError as e:
        return b"", Report("failed", f"the program could not be started: {e}")
    with running.process as process:
        try:
            output, _ = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            return b"", Report("failed", f"batchfs {args[0]} did not respond within {timeout} seconds")
        finally:
            process.kill()
    return output, None if process.returncode == 0 else running.report()
