"""Runs the tests of the package, but not those of the wheel.

Each class of tests is a process, because most of them wait for a mount. Importing PyTorch takes seconds, and forking a process that has
imported it takes long, too. So those that import it are forks of one process that has, and others are not."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import IO

from tests import waiting


def classes() -> list[unittest.TestSuite]:
    """Returns the tests of each class, those that import PyTorch last."""
    names = {path.stem for path in Path(__file__).parent.glob("test_*.py")} - {"test_wheel"}
    modules = [importlib.import_module("tests." + name) for name in sorted(names)]
    suites = [suite for module in modules for suite in unittest.defaultTestLoader.loadTestsFromModule(module)]
    return sorted((suite for suite in suites if isinstance(suite, unittest.TestSuite) and suite.countTestCases()), key=imports_torch)


def imports_torch(suite: unittest.TestSuite) -> bool:
    first = next(iter(suite))
    return isinstance(first, waiting.Case) and first.imports_torch


def start(suite: unittest.TestSuite, output: IO[bytes]) -> int:
    """Runs the tests of a class in a new process, and returns its id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    # Python prints its stacks shortly before the limit of a Go test. The first failure ends the
    # process, so that the limits of several waits do not add up.
    faulthandler.dump_traceback_later(290, exit=True)
    result = unittest.TextTestRunner(failfast=True).run(suite)
    sys.exit(not result.wasSuccessful() or result.testsRun != suite.countTestCases())


def main() -> None:
    left, failed, has_torch = classes(), False, importlib.util.find_spec("torch") is not None
    running: dict[int, IO[bytes]] = {}
    while left or running:
        if left and len(running) < 2 * len(os.sched_getaffinity(0)):
            if has_torch and imports_torch(left[0]):
                importlib.import_module("torch.utils.data")
            gc.freeze()  # a collection in a fork would copy all objects
            output = tempfile.TemporaryFile()
            running[start(left.pop(0), output)] = output
            continue
        child, status = os.wait()
        with running.pop(child) as output:
            if status:
                failed = True
                output.seek(0)
                print(output.read().decode(errors="replace"), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
