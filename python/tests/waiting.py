"""How the tests start processes and wait. A wait ends after LIMIT, and says what it waited for and what it saw instead."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest import mock

PACKAGE = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PACKAGE)

import batchfs
from batchfs._program import Log

LIMIT = 90  # seconds

_logs: list[Log] = []  # logs of the mounts and pipes that the running test or its class made
_started: list[subprocess.Popen[str]] = []


class _KeptLog(Log):
    """A log that can be printed after its mount is gone."""

    def __init__(self) -> None:
        super().__init__()
        _logs.append(self)


batchfs._mount.Log = batchfs._pipe.Log = _KeptLog  # pyright: ignore


class Case(unittest.TestCase):
    """A test that leaves none of its processes behind and, if it fails, prints the logs of its mounts and pipes."""

    imports_torch = False  # whether any test of the class does, in this process

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        result = result or self.defaultTestResult()
        failures, logs = len(result.failures + result.errors), len(_logs)
        try:
            return super().run(result)
        finally:
            while _started:
                with _started.pop() as process:
                    process.kill()
            if len(result.failures + result.errors) > failures:
                for log in _logs:
                    text = os.pread(log.fd, 1 << 20, 0).decode(errors="replace")
                    print(f"\na log of {self}:\n{text}", file=sys.stderr, end="")
            del _logs[logs:]


class MountedCase(Case):
    """A test with a mount and a pipe of the same configuration, which its class shares."""

    directory: tempfile.TemporaryDirectory[str]
    config: str
    m: batchfs.Mount
    piped: batchfs.Piped

    @classmethod
    def configure(cls, directory: Path) -> str:
        """Writes the configuration and its token files to a directory, and returns the path of the configuration."""
        raise NotImplementedError

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.config = cls.configure(Path(cls.directory.name))
        cls.m = batchfs.mount(config=cls.config)
        cls.piped = batchfs.Piped(["-c", cls.config])

    @classmethod
    def tearDownClass(cls) -> None:
        cls.m.close()
        cls.piped.close()
        cls.directory.cleanup()

    def both(self, name: str, **settings: Any) -> list[batchfs.Split]:
        """Returns a split of the mount, and the same split of the pipe."""
        return [self.m.split(name, **settings), self.piped.split(name, **settings)]


def repeats(n: int) -> int:
    """Returns how often a test repeats something: n times in make soak, and otherwise n/5 times."""
    return n if os.environ.get("BATCHFS_SOAK") == "1" else n // 5


def until(what: str, look: Callable[[], tuple[bool, object]]) -> None:
    """Waits until look returns true. It also returns what it sees."""
    end = time.monotonic() + LIMIT
    while True:
        ok, seen = look()
        if ok:
            return
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {LIMIT} seconds; saw: {seen}")
        time.sleep(0.01)


def python(code: str, *args: str, **env: str) -> subprocess.Popen[str]:
    """Starts another Python that has imported the package. All of its mounts and pipes have one log."""
    log = _KeptLog().fd
    shared_log = f"create = os.memfd_create; os.memfd_create = lambda name: os.dup({log}) if name == 'batchfs' else create(name)\n"
    code = f"import os, sys, signal; sys.path.insert(0, {PACKAGE!r}); import batchfs; {shared_log}" + textwrap.dedent(code)
    command = [sys.executable, "-X", "faulthandler", "-c", code, *args]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env={**os.environ, **env}, pass_fds=[log])
    _started.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a process prints."""
    assert process.stdout is not None
    late = threading.Timer(LIMIT, process.send_signal, [signal.SIGABRT])
    late.start()
    text = process.stdout.readline()
    late.cancel()
    if not text.endswith("\n"):
        out, err = end(process)
        raise AssertionError(f"a line from {process.args}: not within {LIMIT} seconds, or the process ended; saw: {text}{out}{err}")
    return text


def end(process: subprocess.Popen[str], said: str | None = None) -> tuple[str, str]:
    """Waits for the end of a process, and returns its output and errors. said is the rest of its input."""
    try:
        return process.communicate(said, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # Python then prints its stacks
        out, err = process.communicate(timeout=LIMIT)
        raise AssertionError(f"the end of {process.args}: not within {LIMIT} seconds; saw: {out}{err}") from None


def join(thread: Any) -> None:
    """Waits for the end of a thread or of a process of multiprocessing."""
    thread.join(LIMIT)
    if thread.is_alive():
        raise AssertionError(f"the end of {thread}: not within {LIMIT} seconds")


def take(items: Any) -> Any:
    """Returns the next item of a queue."""
    try:
        return items.get(timeout=LIMIT)
    except queue.Empty:
        raise AssertionError(f"an item of {items}: not within {LIMIT} seconds") from None


def message(pipe: Any) -> Any:
    """Returns the next message from a pipe of multiprocessing."""
    if not pipe.poll(LIMIT):
        raise AssertionError(f"a message from {pipe}: not within {LIMIT} seconds")
    return pipe.recv()


def result(call: Any) -> Any:
    """Returns the result of an asynchronous call of a multiprocessing pool."""
    try:
        return call.get(LIMIT)
    except multiprocessing.TimeoutError:
        raise AssertionError(f"the result of {call}: not within {LIMIT} seconds") from None


def forked(call: Callable[..., object], *args: Any) -> Any:
    """Starts a process that calls a function, and ends with this one."""
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=call, args=args, daemon=True)
    process.start()
    return process


def as_worker(i: int, n: int, call: Callable[..., object], *args: Any) -> None:
    """Calls a function as worker i of n of a DataLoader, in a process that ends then."""
    sys.modules["torch"] = mock.Mock(**{"utils.data.get_worker_info.return_value": mock.Mock(id=i, num_workers=n)})
    call(*args)
