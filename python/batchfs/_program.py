"""The batchfs program: how to find and run it, and how it reports failures."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterable
from typing import NamedTuple, cast

from ._descriptor import Descriptor, above_standard
from ._errors import MountError

_KILL_LIMIT = 1.0  # seconds


def program() -> str:
    """Returns the path of the batchfs program: BATCHFS_PROGRAM, the one installed with this package, or the first on the PATH.

    Raises:
        MountError: there is no such program.
    """
    if path := os.environ.get("BATCHFS_PROGRAM"):
        # The path is made absolute, because exec would search the PATH for a name without a slash.
        if found := shutil.which(os.path.abspath(path)):
            return found
        raise MountError(f"BATCHFS_PROGRAM: {path} is no program")
    user = sysconfig.get_preferred_scheme("user")
    target = os.path.dirname(os.path.dirname(__file__))  # pip install --target
    for scripts in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user), os.path.join(target, "bin")):
        if path := shutil.which(os.path.join(scripts, "batchfs")):  # which ignores directories
            return path
    if path := shutil.which("batchfs"):
        return path
    raise MountError("there is no program batchfs: pip install --force-reinstall batchfs, or set BATCHFS_PROGRAM to its path")


def not_started(e: OSError) -> str:
    """Returns a message for an error that kept the program from starting."""
    if e.errno == errno.ENOEXEC:
        return (
            f"{e.filename} is damaged, or for machines of another kind: here, pip install --force-reinstall batchfs, "
            "or set BATCHFS_PROGRAM to the path of the right one"
        )
    return f"the program could not be started: {e}"


class Log(Descriptor):
    """The standard error of a program. It is kept in memory, because a full disk would lose it."""

    def __init__(self) -> None:
        self.fd = above_standard(os.memfd_create("batchfs"))

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
        # In a session of its own, the program does not get Ctrl-C, so the trainer can still read
        # while it saves its state.
        self.process = subprocess.Popen(
            [path or program(), command, "--status-fd", str(self._reports.fd), *rest],
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=self.log.fd,
            cwd=directory,
            pass_fds=[self._reports.fd],
            start_new_session=True,
        )

    def report(self) -> Report:
        """Waits for the end of the program, and returns why it ended."""
        self.process.wait()
        return self._reported() or unexplained(self.process, self.log)

    def failure(self) -> Report | None:
        """Waits for the end of the program, and returns why it failed, or None if it succeeded."""
        # Without the report, a process that ignores SIGCHLD would see only successes: the kernel
        # keeps no exit statuses for it.
        return self.report() if self.process.wait() != 0 or self._reported() else None

    def _reported(self) -> Report | None:
        return parse_report(os.pread(self._reports.fd, 1 << 20, 0))


def run(*args: str, stdin: bytes = b"", timeout: float | None = None, directory: str | None = None, path: str = "") -> tuple[bytes, Report | None]:
    """Runs a command of the program, or of the one at path, in directory if given, with stdin as its input. Returns its output, and why it
    failed, or None if it succeeded."""
    try:
        running = Process(args, subprocess.PIPE, subprocess.PIPE, directory, path)
    except OSError as e:
        return b"", Report("failed", not_started(e))
    process = running.process
    try:
        output, _ = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        return b"", Report("failed", f"batchfs {args[0]} did not respond within {timeout} seconds")
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may wait for a disk
            process.wait(_KILL_LIMIT)
    return output, running.failure()
