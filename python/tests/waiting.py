"""How the tests wait. A wait ends after LIMIT, and says what it waited for and what it saw instead."""

from __future__ import annotations

import faulthandler
import multiprocessing
import queue
import subprocess
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

LIMIT = 90  # seconds
# A test that takes longer, in seconds, is ended with the stacks of its threads. test/commands
# limits the process to a little more.
TEST_LIMIT = 290


class Case(unittest.TestCase):
    """A test that ends."""

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        faulthandler.dump_traceback_later(TEST_LIMIT, exit=True)
        try:
            return super().run(result)
        finally:
            faulthandler.cancel_dump_traceback_later()


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


def line(process: subprocess.Popen[str], ends: bool = False) -> str:
    """Returns the next line that a process prints. If ``ends``, the process may end instead."""
    assert process.stdout is not None
    late = threading.Timer(LIMIT, process.kill)
    late.start()
    text = process.stdout.readline()
    late.cancel()
    if not text and not (ends and process.wait(LIMIT) == 0):
        _, err = end(process)
        raise AssertionError(f"a line from {process.args}: none in {LIMIT} seconds, or it ended: {err}")
    return text


def end(process: subprocess.Popen[str], said: str | None = None) -> tuple[str, str]:
    """Waits for the end of a process, and returns its output and errors. said is the rest of its input."""
    try:
        return process.communicate(said, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate(timeout=LIMIT)
        raise AssertionError(f"the end of {process.args}: not within {LIMIT} seconds; it printed: {out}{err}") from None


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


def result(call: Any) -> Any:
    """Returns the result of an asynchronous call of a multiprocessing pool."""
    try:
        return call.get(LIMIT)
    except multiprocessing.TimeoutError:
        raise AssertionError(f"the result of {call}: not within {LIMIT} seconds") from None
