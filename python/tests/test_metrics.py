"""Tests of Split.metrics. test/commands/python_test.go runs them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import pickle
import sys
import tempfile
import threading
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import batchfs
from batchfs import _meter, _split, _steps  # pyright: ignore
from batchfs._program import run
from tests import waiting

B, T = 4, 32
LENGTHS = {"web": 200_000, "math": 80_000}  # tokens
STAGES = """
    stages = [{weights = {web = 9, math = 1}}, {from_row = 150, weights = {web = 1, math = 3}}]
"""
has_torch = importlib.util.find_spec("torch") is not None


def config(directory: Path, stages: str = STAGES) -> str:
    """Writes a config.toml with a split of one source, and mixtures without and with stages, and the token files unless they exist."""
    for name, tokens in LENGTHS.items():
        if not (path := directory / f"{name}.bin").exists():
            np.arange(tokens).astype(np.uint16).tofile(path)
    path = directory / "config.toml"
    path.write_text(f"""
        [batch]
        batch_size = {B}
        block_size = {T}
        order = "shuffle"
        [splits.plain]
        tokens = "web.bin"
        [splits.alone]
        sources = [{{name = "math", tokens = "math.bin", weight = 1, max_epochs = 2}}]
        [splits.mixed]
        sources = [{{name = "web", tokens = "web.bin", weight = 3}}, {{name = "math", tokens = "math.bin", weight = 2}}]
        [splits.staged]
        sources = [{{name = "web", tokens = "web.bin"}}, {{name = "math", tokens = "math.bin", max_epochs = 0.05}}]
        {stages}
    """)
    return str(path)


def rows_of(batch: Any) -> Counter[int]:
    return Counter(int(i) for i in np.asarray(batch["source"]))


def keys(**values: float) -> dict[str, float]:
    return {f"batchfs/{key}": value for key, value in values.items()}


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestMetrics(waiting.MountedCase):
    @classmethod
    def configure(cls, directory: Path) -> str:
        if has_torch:
            importlib.import_module("torch.utils.data")
        return config(directory)

    def ways(self, name: str) -> Iterator[tuple[batchfs.Split, Any]]:
        """Returns splits, each with an iterator over their steps of each kind."""
        for train in self.both(name):
            yield train, train.steps()
        for train in self.both(name):
            yield train, ((k, train.read(k)) for k in range(100))
        if has_torch:
            for train in self.both(name):
                yield train, train.torch("cpu")
            for train in self.both(name):
                yield train, iter(importlib.import_module("torch.utils.data").DataLoader(train.steps(), batch_size=None))

    def test_seconds(self) -> None:
        """Only reading counts, and only since the last call."""
        clock = Clock()
        modules = [_meter, _split, _steps, *([importlib.import_module("batchfs._torch")] if has_torch else [])]
        for module in modules:
            patch = mock.patch.object(module, "clock", clock)
            patch.start()
            self.addCleanup(patch.stop)
        for train, batches in self.ways("plain"):
            fill = train.reader.fill

            def slow(k: int, buffers: list[memoryview], fill: Any = fill) -> None:
                fill(k, buffers)
                clock.now += 3

            patch = mock.patch.object(train.reader, "fill", slow)
            patch.start()
            self.addCleanup(patch.stop)
            clock.now += 100  # before the first read
            for n in (1, 4):
                for _ in range(n):
                    next(batches)
                    clock.now += 5
                got = train.metrics()
                self.assertEqual(
                    {key: got[key] for key in keys(wait_seconds=0, wait_fraction=0, batches=0, tokens=0)},
                    keys(wait_seconds=3 * n, wait_fraction=3 / 8, batches=n, tokens=n * B * T),
                )
            clock.now += 7
            self.assertEqual(train.metrics(), {**got, **keys(wait_seconds=0, wait_fraction=0, batches=0, tokens=0)})

    def test_stopwatch(self) -> None:
        """The seconds are more than those of the system calls, and less than those of the loop."""
        for train, batches in self.ways("mixed"):
            inside, outside = 0.0, 0.0
            fill = train.reader.fill

            def timed(k: int, buffers: list[memoryview], fill: Any = fill) -> None:
                nonlocal inside
                begun = _meter.clock()
                fill(k, buffers)
                inside += _meter.clock() - begun

            with mock.patch.object(train.reader, "fill", timed):
                begun = _meter.clock()
                for _ in range(50):
                    next(batches)
                outside = _meter.clock() - begun
            waited = train.metrics()["batchfs/wait_seconds"]
            self.assertTrue(inside <= waited <= outside, (inside, waited, outside))

    def test_counts(self) -> None:
        """Tokens, epochs and the stage are those of the batches, on each rank."""
        for name in ("plain", "mixed", "staged"):
            for settings in ({}, {"world": 2, "rank": 1}, {"world": 4, "rank": 2, "local_world": 2, "shuffle_block": 1 << 16}):
                with self.subTest(name, settings=settings):
                    self.check_counts(*self.both(name, **settings))

    def check_counts(self, mounted: batchfs.Split, piped: batchfs.Split) -> None:
        info, names = mounted.info, [source["name"] for source in mounted.info.get("sources", [])]
        local = info.get("local_world", info["world"])
        reader: Any = mounted.reader
        first = info["rank"] // local * local
        host = [self.m.split(info["split"], rank=rank, **settings_of(info)) for rank in range(first, first + local)]
        epoch_rows: Counter[int] = Counter()  # of this host, in batches 0 to k
        for k in range(90):
            batches = [split.read(k) for split in host]
            for batch in batches:
                epoch_rows.update(rows_of(batch) if names else Counter({0: B}))
            if k % 3 < 2:
                continue
            stage = json.loads(Path(reader.path, f"batch/{k}.json").read_text())["rows"][-1].get("stage")
            for split in (mounted, piped):
                read = split.read(k - 1), split.read(k)
                got = split.metrics()
                self.assertEqual(got["batchfs/tokens"], 2 * B * T)
                self.assertEqual(got.get("batchfs/stage"), stage)
                if names:
                    own = rows_of(read[0]) + rows_of(read[1])
                    self.assertEqual([got[f"batchfs/tokens_{each}"] for each in names], [own[i] * T for i in range(len(names))])
                else:
                    self.assertEqual(got["batchfs/epoch"], epoch_rows[0] / info["rows_per_epoch"])
                for i, source in enumerate(info.get("sources", [])):
                    rows = got[f"batchfs/epoch_{source['name']}"] * source["rows_per_epoch"]
                    self.assertLess(abs(rows - epoch_rows[i]), 1, (k, source["name"]))

    def test_plain_numbers(self) -> None:
        for name in ("plain", "mixed", "staged"):
            for train in self.both(name):
                for _ in range(2):
                    got = train.metrics()
                    self.assertEqual(json.loads(json.dumps(got)), got)
                    self.assertTrue(all(type(value) in (int, float) for value in got.values()), got)
                    self.assertTrue(all(key.startswith("batchfs/") for key in got), got)
                    next(train.steps(7))
        unread = self.m.split("mixed").metrics()
        self.assertEqual(unread, keys(wait_seconds=0, wait_fraction=0, batches=0, tokens=0, tokens_web=0, tokens_math=0))

    def test_rows(self) -> None:
        rows = self.m.split("mixed", layout="rows")
        rows.read(0)
        got = rows.metrics()
        self.assertEqual((got["batchfs/rows"], got["batchfs/rows_web"] + got["batchfs/rows_math"]), (B, B))
        self.assertNotIn("batchfs/tokens", got)

    def test_one_source(self) -> None:
        """A source of a mixture alone has no metrics of the others."""
        math = self.m.split("mixed", source="math")
        math.read(0)
        self.assertEqual({key for key in math.metrics() if "math" in key or "web" in key}, {*keys(tokens_math=0, epoch_math=0)})

    def test_only_source(self) -> None:
        """The batches of a mixture with one source do not say which source a row comes from."""
        for alone in self.both("alone"):
            alone.read(0)
            self.assertEqual(alone.metrics()["batchfs/tokens_math"], B * T)

    def test_many_batches(self) -> None:
        """Rows are counted in parts, and no batch is lost."""
        with mock.patch.object(_meter, "_HELD", 10 * 2 * B):
            train = self.m.split("mixed")
            want: Counter[int] = Counter()
            for _, batch in train.steps(0, 47):
                want += rows_of(batch)
        got = train.metrics()
        self.assertEqual([got["batchfs/tokens_web"], got["batchfs/tokens_math"]], [want[0] * T, want[1] * T])

    def test_iterators_count_together(self) -> None:
        train = self.m.split("plain")
        first, second = train.steps(), train.steps(5)
        next(first)
        next(second)
        self.assertEqual((first.metrics()["batchfs/batches"], second.metrics()["batchfs/batches"]), (2, 0))

    def test_ended_iterators(self) -> None:
        """Batches of an iterator count after its end, and its counter does not stay in memory."""
        train = self.m.split("mixed")
        for k in range(500):
            next(train.steps(k))
        self.assertLess(len(train.meter._counters), 5)  # pyright: ignore
        self.assertEqual(train.metrics()["batchfs/batches"], 500)

    def test_copied_iterator(self) -> None:
        train = self.m.split("mixed")
        steps = train.steps(3)
        next(steps)
        copied = pickle.loads(pickle.dumps(steps))
        self.assertEqual(next(copied)[0], 4)
        self.assertEqual((copied.metrics()["batchfs/batches"], train.metrics()["batchfs/batches"]), (1, 1))

    def test_threads(self) -> None:
        train, n = self.m.split("mixed"), 500
        steps = train.steps(0, n)

        def read() -> None:
            for _ in iter(lambda: next(steps, None), None):
                train.read(0)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(8)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        taken: list[dict[str, float]] = []
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                taken.append(got := train.metrics())
                self.assertEqual(got["batchfs/tokens"], got["batchfs/tokens_web"] + got["batchfs/tokens_math"])
            for thread in threads:
                waiting.join(thread)
        finally:
            sys.setswitchinterval(interval)
        taken.append(train.metrics())
        for key, want in keys(batches=2 * n, tokens=2 * n * B * T).items():
            self.assertEqual(sum(got[key] for got in taken), want)
        self.assertEqual(sum(got["batchfs/tokens_web"] + got["batchfs/tokens_math"] for got in taken), 2 * n * B * T)

    def test_fork(self) -> None:
        """A forked process counts what it reads itself, and so does its parent."""
        for train in self.both("mixed"):
            steps = train.steps()
            next(steps)
            with train.meter.lock, steps.counter.lock:  # as if another thread were reading
                queue: Any = multiprocessing.get_context("fork").Queue()
                child = waiting.forked(read_in_child, steps, 3, queue)
                before, after = waiting.take(queue)
                waiting.join(child)
            self.assertEqual(before, keys(wait_seconds=0, wait_fraction=0, batches=0, tokens=0, tokens_web=0, tokens_math=0))
            self.assertEqual(after["batchfs/batches"], 6)
            self.assertEqual(train.metrics()["batchfs/batches"], 1)

    def test_spawn(self) -> None:
        """A spawned process, and any other copy, begins at 0."""
        for train in self.both("mixed"):
            train.read(0)
            self.assertEqual(counts_in_child("spawn", train), (0, 4))
            self.assertEqual(pickle.loads(pickle.dumps(train)).metrics()["batchfs/batches"], 0)
            self.assertEqual(train.metrics()["batchfs/batches"], 1)

    def test_after_workers(self) -> None:
        """Copies in other processes begin at 0, whatever workers of a DataLoader have read before."""
        train = self.m.split("plain")
        waiting.join(waiting.forked(waiting.as_worker, 0, 1, train.read, 0))
        self.assertRaisesRegex(batchfs.Error, "time the loader", train.metrics)
        for method in ("fork", "spawn"):
            self.assertEqual(counts_in_child(method, train), (0, 4))
        self.assertEqual(pickle.loads(pickle.dumps(train)).metrics()["batchfs/batches"], 0)
        self.assertRaisesRegex(batchfs.Error, "time the loader", train.metrics)

    @unittest.skipUnless(has_torch, "no torch")
    def test_workers(self) -> None:
        """If DataLoader workers read a split, the process of the loop has no metrics, and the error says how to time the loader."""
        loader_type = importlib.import_module("torch.utils.data").DataLoader
        for method, splits in (("fork", self.both("plain") + self.both("plain")), ("spawn", [self.m.split("plain")])):
            for i, train in enumerate(splits):
                train.read(0)
                self.assertEqual(train.metrics()["batchfs/batches"], 1)
                steps = train.steps(0, 9)
                dataset = train if i < 2 else steps
                loader = loader_type(dataset, batch_size=None, num_workers=1, multiprocessing_context=method, timeout=waiting.LIMIT)
                next(iter(loader))
                for each in (train, steps):
                    self.assertRaisesRegex(batchfs.Error, r"time the loader.*next\(batches\)", each.metrics)

    def test_changed_schedule(self) -> None:
        """A call after a restart learns the new schedule, though the file stays open."""
        with tempfile.TemporaryDirectory() as directory:
            with batchfs.mount(config=config(Path(directory), STAGES.replace("150", "1100"))) as m:
                train = m.split("staged")
                train.read(0)
                config(Path(directory), STAGES.replace("150", "1000"))
                self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
                self.assertEqual(train.metrics()["batchfs/stage"], 0)
                train.read(255)  # of rows 1020 to 1023
                got = train.metrics()
            self.assertEqual(got["batchfs/stage"], 1)
            train.metrics()  # does not need the mount


def settings_of(info: dict[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in ("world", "local_world", "shuffle_block") if info.get(key)}


def counts_in_child(method: str, split: batchfs.Split) -> tuple[int, int]:
    """Returns how many batches a process that is started with a method has counted before and after it reads four."""
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_in_child, args=(split.steps(), 2, queue), daemon=True)
    child.start()
    before, after = waiting.take(queue)
    waiting.join(child)
    return before["batchfs/batches"], after["batchfs/batches"]


def read_in_child(steps: Any, n: int, queue: Any) -> None:
    """Reads n batches in each way."""
    before = steps.metrics()
    for k in range(n):
        next(steps)
        steps.split.read(k)
    queue.put((before, steps.metrics()))


if __name__ == "__main__":
    unittest.main()
