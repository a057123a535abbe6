"""Tests of the package against real mounts. BATCHFS_PROGRAM names the program; test/commands/python_test.go runs them."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import importlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import batchfs
from batchfs._read import read_rest
from batchfs._files import FileReader
from batchfs._program import Report, program, run
from batchfs._settings import flags
from tests import waiting
from tests.waiting import python

B, T = 4, 32
has_torch = importlib.util.find_spec("torch") is not None
has_torchdata = importlib.util.find_spec("torchdata") is not None


def make_data(directory: Path, tokens: int = 150_000) -> str:
    """Writes tokens, and for each of them a byte of a mask and three float32, and a config.toml that serves them."""
    directory.mkdir(parents=True, exist_ok=True)
    np.arange(tokens).astype(np.uint16).tofile(directory / "train.bin")
    (np.arange(tokens) % 7).astype(np.uint8).tofile(directory / "mask.bin")
    np.arange(3 * tokens, dtype=np.float32).tofile(directory / "weights.bin")
    config = directory / "config.toml"
    config.write_text(f"""
        batch.batch_size = {B}
        batch.block_size = {T}
        [splits.train]
        tokens = "train.bin"
        [splits.more]
        tokens = "train.bin"
        arrays = [{{name = "mask", files = "mask.bin", dtype = "uint8"}}, {{name = "w", files = "weights.bin", dtype = "float32", shape = [3]}}]
        [splits.rows]
        tokens = "weights.bin"
        token_dtype = "bfloat16"
        shape = [5]
        layout = "rows"
    """)
    return str(config)


def write_stages(config: Path, row: int, source: str = "") -> None:
    """Writes a config.toml with a split whose rows come from source a and, from a row on, from b. source has more keys of b."""
    sources = source.join(f'[[splits.train.sources]]\nname = "{name}"\ntokens = "train.bin"\n' for name in "ba")
    stages = f"[[splits.train.stages]]\nweights = {{a = 1}}\n[[splits.train.stages]]\nfrom_row = {row}\nweights = {{b = 1}}\n"
    config.write_text(f"[batch]\nbatch_size = {B}\nblock_size = {T}\n{sources}{stages}")


def write_ending(config: Path, max_epochs: float) -> None:
    """Writes a config.toml with a split that ends when its source has used up its max_epochs."""
    source = f'name = "a"\ntokens = "train.bin"\nweight = 1\nmax_epochs = {max_epochs}\n'
    config.write_text(f"[batch]\nbatch_size = {B}\nblock_size = {T}\n[[splits.train.sources]]\n{source}")


def mounts() -> set[str]:
    lines = os.fsdecode(Path("/proc/mounts").read_bytes()).split("\n")
    return {line.split(" ")[1] for line in lines if " fuse.batchfs " in line}


def ended(children: list[int]) -> tuple[bool, list[int]]:
    """Reports whether all children of this process have ended, and returns those that have not."""
    left = [child for child in children if not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)]
    return not left, left


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for name in a)


def numbers(split: batchfs.Split, ks: range, queue: Any) -> None:
    queue.put([split.read(k) for k in ks])


def loader_of(dataset: Any, stateful: bool = False, **options: Any) -> Any:
    module: Any = importlib.import_module("torchdata.stateful_dataloader" if stateful else "torch.utils.data")
    if options.get("num_workers"):
        options["timeout"] = waiting.LIMIT
    return (module.StatefulDataLoader if stateful else module.DataLoader)(dataset, batch_size=None, **options)


def read_all(loader: Any, most: int | None = None) -> list[Any]:
    """Returns the items of a loop over a loader, or only the first ``most`` of them."""
    return [*itertools.islice(loader, most)]


# Every form of loop over steps: the steps themselves, or a loader with options.
FORMS: dict[str, dict[str, Any] | None] = {"steps": None}
for _stateful in [{}, *([{"stateful": True}] if has_torchdata else [])]:
    for _workers in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        _fork = {"multiprocessing_context": "fork", "prefetch_factor": 1} if _workers else {}
        FORMS[f"{_stateful} {_workers}"] = {**_stateful, **_workers, **_fork}


def form_of(steps: Any, options: dict[str, Any] | None) -> Any:
    return steps if options is None else loader_of(steps, **options)


class Case(waiting.MountedCase):
    """The value of each token is its position."""

    @classmethod
    def configure(cls, directory: Path) -> str:
        return make_data(directory)


class TestSplit(Case):
    imports_torch = True

    def file(self, name: str) -> Any:
        return np.load(f"{self.m.mountpoint}/{name}.npy")

    def test_batches_are_those_of_files(self) -> None:
        for train in self.both("train", order="shuffle"):
            for k in (0, 1, 5, 3, len(train) - 1):
                x, y = self.file(f"train/order=shuffle/batch/{k}")
                self.assertTrue(same(train[k], {"x": x, "y": y}), k)
                self.assertTrue((train[k].x[:, 1:] == train[k].y[:, :-1]).all())
                self.assertEqual((train[k].x.shape, train[k].x.dtype), ((B, T), np.uint16))

    def test_all_arrays_are_of_one_batch(self) -> None:
        for more in self.both("more"):
            self.assertEqual(more.names, ["x", "y", "w", "mask"])
            for k, batch in more.steps(2, 6):
                self.assertTrue(same(batch, more[k]))
                at = (batch.w[..., 0] / 3).astype(int)
                self.assertTrue((batch.y == at % 65536).all() and (batch.mask == at % 7).all())
                self.assertTrue(np.array_equal(batch.mask, self.file(f"more/batch/{k}.mask")))

    def test_layouts_and_dtypes(self) -> None:
        for tokens in self.both("train", layout="tokens", dtype="int64"):
            self.assertEqual((tokens[3].tokens.shape, tokens[3].tokens.dtype), ((B, T + 1), np.int64))
        for rows in self.both("rows"):
            self.assertTrue(np.array_equal(rows[2].rows, self.file("rows/batch/2")))

    def test_batches_above_a_mebibyte(self) -> None:
        for big in self.both("train", batch_size=300, block_size=3000):
            x, y = self.file("train/batch_size=300,block_size=3000/batch/2")
            self.assertTrue(same(big.read(2), {"x": x, "y": y}))

    def test_powers_of_two(self) -> None:
        """The files of large batches hold max_steps of them, and the last one can be read."""
        xy = [(256, 1024, "int64"), (512, 2048, "uint16"), (1024, 2048, "uint16"), (4096, 1024, "int64")]
        cases: list[tuple[str, dict[str, Any]]] = [("train", {"batch_size": b, "block_size": t, "dtype": d}) for b, t, d in xy]
        cases += [
            ("train", {"batch_size": 1024, "block_size": 1023, "dtype": "int64", "layout": "tokens"}),
            ("rows", {"batch_size": 1 << 20}),
            ("more", {"batch_size": 512, "block_size": 1024}),
        ]
        for name, settings in cases:
            with self.subTest(name, **settings):
                mounted, piped = self.both(name, **settings)
                most = mounted.info["max_steps"]
                for k in (0, most - 1):
                    self.assertTrue(same(mounted.read(k), piped.read(k)), k)
                if most < 2**40:
                    self.assertRaisesRegex(batchfs.ReadError, f"sequence.bin, which can hold {most} batches", lambda: mounted.read(most))

    def test_sequence(self) -> None:
        for train in self.both("train"):
            n = len(train)
            self.assertEqual(n, train.info["batches_per_epoch"])
            self.assertTrue(same(train[-1], train[n - 1]))
            self.assertTrue(same(train[np.int64(2)], train[2]))
            self.assertEqual([int(b.x[0, 0]) for b in train[1:4]], [int(train[k].x[0, 0]) for k in (1, 2, 3)])
            self.assertRaises(IndexError, lambda: train[n])
            self.assertEqual(len([0 for _ in train]), n)
            self.assertRaisesRegex(AttributeError, "it has x, y", lambda: train[0].mask)
            self.assertRaisesRegex(KeyError, "it has x, y", lambda: train[0]["mask"])
            self.assertFalse(hasattr(self.m.split("train", layout="tokens")[0], "x"))
            self.assertTrue(same(pickle.loads(pickle.dumps(train[0])), train[0]))
            steps: Any = train.steps()
            self.assertFalse(hasattr(steps, "__len__"))  # Keras asks
            self.assertRaisesRegex(TypeError, "steps have no length", len, steps)
            for k, batch in train.steps(n - 1, n + 2):  # into the next epoch
                x, y = self.file(f"train/batch/{k}")
                self.assertTrue(same(batch, {"x": x, "y": y}))

    def test_batches_are_the_callers(self) -> None:
        train = self.m.split("train")
        kept = [batch for _, batch in train.steps(0, 20)]
        self.assertTrue(all(same(batch, train[k]) for k, batch in enumerate(kept)))
        kept[0].x[:] = 0
        views: list[Callable[[Any], Any]] = [lambda y: y, lambda y: y[1:, ::2].T, memoryview]
        for view in views:  # each keeps the memory of its batch in use
            some = [(k, view(batch.y)) for k, batch in train.steps(0, 20) if k % 3]
            self.assertTrue(all(np.array_equal(y, view(train[k].y)) for k, y in some))

    def test_dropped_splits(self) -> None:
        """A split that is dropped closes its descriptors at once. Some trainers disable the garbage collector."""
        gc.disable()
        try:
            before = os.listdir("/proc/self/fd")
            for train in self.both("train"):
                self.assertTrue(same(next(train.steps())[1], train[0]))
                del train
            self.assertEqual(len(os.listdir("/proc/self/fd")), len(before))
        finally:
            gc.enable()

    def test_copies_of_mounts(self) -> None:
        """A mount has one owner. Its splits can be copied, and so can what reads from pipes."""
        ways: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickle.dumps]
        for way in ways:
            self.assertRaisesRegex(TypeError, "a mount cannot be copied .* use its splits", way, self.m)
        self.m.log()  # no copy has closed its descriptor
        for piped in (copy.deepcopy(self.piped), pickle.loads(pickle.dumps(self.piped))):
            with piped:
                self.assertTrue(same(piped.split("train")[3], self.m.split("train")[3]))

    def test_ranks(self) -> None:
        seen: list[int] = []
        for rank in range(3):
            with mock.patch.dict(os.environ, {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}):
                for by_env in self.both("train", order="sequential"):
                    given = self.m.split("train", order="sequential", rank=rank, world=3)
                    self.assertTrue(same(by_env[1], given[1]))
                    seen += given[1].x[:, 0].tolist()
                # Settings in the path take precedence.
                one = batchfs.split(f"{self.m.mountpoint}/train/rank=0,world=1/order=sequential")
                self.assertEqual(one.info["world"], 1)
                for path in ("train/rank=0,world=1/order=sequential", "train/rank=0,world=1//./order=sequential"):
                    self.assertEqual(self.m.split(path).info["world"], 1)
        self.assertEqual(sorted(set(seen)), [T * i for i in range(3 * B, 6 * B)])
        self.assertRaises(ValueError, lambda: self.m.split("train", rank=1))

    def test_unknown_rank(self) -> None:
        """If there are other processes, and nothing says which one this is, split raises an error or warns."""
        launchers = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

        def clean(**env: str) -> Any:
            kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", *launchers)}
            return mock.patch.dict(os.environ, {**kept, **env}, clear=True)

        def initialized(rank: int, world: int) -> Any:
            dist = mock.Mock(**{"get_rank.return_value": rank, "get_world_size.return_value": world})
            return mock.patch.dict(sys.modules, {"torch.distributed": dist})

        jax, old_jax = (mock.patch.dict(sys.modules, {"jax": jax}) for jax in (mock.Mock(), mock.Mock(distributed=object())))
        with batchfs.mount(config=self.config, rank=0, world=2) as m:
            known: list[Callable[[], batchfs.Split]] = [
                lambda: self.m.split("train", rank=0, world=1),
                lambda: batchfs.split(f"{self.m.mountpoint}/train/rank=0,world=1"),
                lambda: m.split("train"),  # a mount of this process says which one this is
            ]
            unknown: list[Callable[[], batchfs.Split]] = [
                lambda: self.m.split("train"),
                lambda: self.piped.split("train"),
                lambda: batchfs.split(f"{self.m.mountpoint}/train/seed=3"),
                lambda: batchfs.split(f"{m.mountpoint}/train"),
            ]
            for env in ({"WORLD_SIZE": "2"}, {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "NODE_RANK": "0"}, {"RANK": "1"}, {"RANK": "3", "LOCAL_RANK": "3"}):
                with clean(**env), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    for split in unknown:
                        self.assertRaisesRegex(batchfs.ArgumentError, "(RANK|WORLD_SIZE) is not set.*rank=0, world=1 to read all", split)
                    self.assertEqual([split().info["rank"] for split in known], [0, 0, 0])
                    with initialized(1, 3):
                        self.assertEqual([(split().info["rank"], split().info["world"]) for split in unknown], [(1, 3)] * 4)
            launched: list[tuple[str, Any]] = [(f"{name} is {n}", clean(**{name: str(n)})) for n, name in enumerate(launchers, 2)]
            for words, others in [*launched, ("jax.distributed is initialized", jax), ("PMI_SIZE is 2", clean(WORLD_SIZE="1", RANK="0", PMI_SIZE="2"))]:
                with clean(), others:
                    for split in unknown:
                        with self.assertWarnsRegex(RuntimeWarning, f"{words}, and .*reads all rows: pass rank") as warned:
                            self.assertEqual(split().info["rank"], 0)
                        self.assertEqual(warned.filename, __file__)
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        self.assertEqual([split().info["rank"] for split in known], [0, 0, 0])
                        with initialized(2, 3):
                            self.assertEqual(self.m.split("train").info["rank"], 2)
            for env in ({}, {"WORLD_SIZE": "1"}, {"RANK": "0"}, {name: "1" for name in launchers}, {"SLURM_NTASKS": "2", "PMI_SIZE": "x"}):
                with clean(**env), old_jax, warnings.catch_warnings():
                    warnings.simplefilter("error")
                    self.assertEqual(self.m.split("train").info["world"], 1)

    @unittest.skipUnless(has_torch, "no torch")
    def test_mesh(self) -> None:
        """The ranks of a mesh are those of its dimensions, in row-major order, and other dimensions than data-parallel ones are rejected."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        sizes = {"dp_replicate": 2, "pp": 2, "dp_shard": 3, "cp": 1, "tp": 2}
        for me in (0, 1, 2, 13, 23):  # one process is each of these ranks in turn
            dist.init_process_group("fake", store=FakeStore(), rank=me, world_size=24)
            try:
                mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
                i, _, j, _, _ = map(int, np.unravel_index(me, tuple(sizes.values())))
                good: dict[Any, tuple[int, int]] = {("dp_replicate", "dp_shard"): (3 * i + j, 6), "dp_shard": (j, 3), "dp_replicate": (i, 2)}
                with mock.patch.dict(os.environ, {"RANK": str(me), "WORLD_SIZE": "24", "LOCAL_WORLD_SIZE": "3"}):
                    for names, want in good.items():
                        for train in self.both("train", mesh=mesh[names]):
                            self.assertEqual((train.info["rank"], train.info["world"]), want)
                    # A host has three processes here, but not all of them are ranks.
                    hosts = self.m.split("train", order="shuffle", shuffle_block="64KiB", mesh=mesh["dp_shard"])
                    self.assertEqual((hosts.info["world"], hosts.info["local_world"]), (3, 1))
                bad: dict[Any, str] = {name: name for name in ("pp", "tp", "cp")}
                bad.update({("dp_shard", "tp"): "tp", ("dp_replicate", "cp"): "cp", ("dp_replicate", "pp", "dp_shard"): "pp"})
                for names, name in bad.items():
                    self.assertRaisesRegex(batchfs.ArgumentError, f"mesh has the dimension {name}, ", self.m.split, "train", mesh=mesh[names])
                others: list[Any] = [init_device_mesh("cpu", (24,)), "dp", 3]
                for other in others:
                    self.assertRaisesRegex(batchfs.ArgumentError, "whose dimensions have names", self.m.split, "train", mesh=other)
                self.assertRaisesRegex(batchfs.ArgumentError, "not both", self.m.split, "train", mesh=mesh["dp_shard"], rank=0, world=1)
            finally:
                dist.destroy_process_group()
        for name, is_good in {"dp": 1, "data_parallel": 1, "dp_replicate_dp_shard": 1, "dp_cp": 0, "dp_shard_cp": 0, "fsdp": 0, "model": 0, "ep": 0}.items():
            elsewhere: Any = mock.Mock(mesh_dim_names=(name,), **{"get_coordinate.return_value": None})
            words = "not part of" if is_good else f"has the dimension {name}, "
            self.assertRaisesRegex(batchfs.ArgumentError, words, self.m.split, "train", mesh=elsewhere)

    def test_hosts(self) -> None:
        with mock.patch.dict(os.environ, {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}):
            common: dict[str, Any] = {"order": "shuffle", "shuffle_block": "64KiB", "batch_size": 1}
            for train in [*self.both("train", **common), *self.both("train", **common, rank=3, world=4, local_world=2)]:
                self.assertEqual((train.info["rank"], train.info["world"], train.info["local_world"]), (3, 4, 2))

    def test_foreign_status(self) -> None:
        """The error of a read does not depend on files that other programs call status.json."""
        with tempfile.TemporaryDirectory() as directory:
            reader = FileReader(f"{directory}/train", self.both("train")[0].info)
            for text in ("", "[]", "{}", '{"sequences": []}', '{"sequences": [1]}', '{"sequences": {"train": 1}}', '{"sequences": {"train": {}}}'):
                Path(directory, "status.json").write_text(text)
                with self.assertRaisesRegex(batchfs.ReadError, r"is a batchfs mounted there\?$"):
                    reader.fill(0, [])

    def test_name_like_a_flag(self) -> None:
        tokens = Path(self.config).parent / "train.bin"
        with batchfs.Piped(["-c", self.config, "--set", f"splits.-a.tokens={tokens}"]) as piped:
            self.assertTrue(same(piped.split("-a", order="sequential")[3], self.piped.split("train", order="sequential")[3]))

    def test_existing_mount(self) -> None:
        train = batchfs.split(f"{self.m.mountpoint}/train", order="shuffle", seed=7)
        self.assertTrue(same(train[3], self.piped.split("train", order="shuffle", seed=7)[3]))


def integers(k: int) -> list[Any]:
    """Returns k in every integer type of NumPy and torch that can hold it."""
    names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    arrays = [np.array(k, name) for name in names if k <= np.iinfo(name).max]  # zero-dimensional
    found: list[Any] = [*arrays, *(array[()] for array in arrays)]
    if has_torch:
        import torch

        kinds = [getattr(torch, name) for name in names]
        found += [torch.tensor(k, dtype=kind) for kind in kinds if k <= torch.iinfo(kind).max]
    return found


def no_integers() -> list[Any]:
    found: list[Any] = [3.0, "3", 3 + 0j, b"3", [3], np.float64(3), np.float16(3), np.array(3.0), np.array([3, 4]), np.str_("3")]
    if has_torch:
        import torch

        found += [torch.tensor(3.0), torch.tensor([3, 4])]
    return found


class TestArguments(Case):
    """Every type of integer is accepted like an int, and anything else raises an error that names the argument."""

    imports_torch = True

    def test_integers(self) -> None:
        mounted, piped = self.both("train")
        fill, known = piped.reader.fill, dict[int, list[bytes]]()

        def fill_once(k: int, buffers: list[memoryview]) -> None:
            """Reads each batch from the pipe once, because to read it again takes another process."""
            self.assertIs(type(k), int)
            if k not in known:
                fill(k, buffers)
                known[k] = [view.tobytes() for view in buffers]
            for view, data in zip(buffers, known[k]):
                view[:] = data

        setattr(piped.reader, "fill", fill_once)
        for train in (mounted, piped):
            for k in (1, 100, 30_000, 2**31 - 2):  # each times batch_bytes overflows some type
                want = train.read(k)
                for value in integers(k):
                    kind = repr(value)
                    steps = train.steps(value, k + 1)
                    state = steps.state_dict()
                    self.assertTrue(type(state["step"]) is int, kind)
                    self.assertTrue(same(train.read(value), want), kind)
                    self.assertEqual([int(n) for n, batch in steps if same(batch, want)], [k], kind)
                    self.assertEqual((state["step"], steps.state_dict()["step"], repr(value)), (k, k + 1, kind), kind)
                    self.assertEqual(len(list(train.steps(k - 1, value))), 1, kind)
                    again = train.steps()
                    again.load_state_dict({**state, "step": value})
                    self.assertTrue(same(next(again)[1], want), kind)
            for value in integers(5):
                batches: list[Any] = [train[value], train[value:6][0]]
                self.assertTrue(all(same(batch, train[5]) for batch in batches))

    def test_settings(self) -> None:
        for settings in ({"batch_size": 3, "seed": 3, "rank": 0, "world": 3}, {"rank": 3, "world": 7}):
            kinds = [{name: value if n == 3 else n for name, n in settings.items()} for value in [3, *integers(3)]]
            for want, *others in zip(*(self.both("train", **kind) for kind in kinds)):
                batch = want.read(7)
                for other in others:
                    self.assertEqual(other.info, want.info)
                    self.assertTrue(same(other.read(7), batch))
        with batchfs.mount(config=self.config, batch_size=np.int64(3), set={"batch.seed": np.array(3)}) as m:
            self.assertTrue(same(m.split("train")[7], self.piped.split("train", batch_size=3, seed=3)[7]))

    def test_file_names(self) -> None:
        """The names of token files may have any characters, alone or in a list."""
        tokens = Path(self.config).parent / "train.bin"
        for name in ("é\u2028😀", "a\"\\\n\t\x7fb"):
            path = tokens.with_name(f"{name}.bin")
            path.symlink_to(tokens)
            kinds: list[Any] = [str(path), [str(path)]]
            for kind in kinds:
                piped = batchfs.Piped(flags(None, self.config, {}, {"splits.train.tokens": kind}))
                self.assertEqual(piped.split("train").info["files"], [str(path)])

    def test_not_integers(self) -> None:
        for train, m in zip(self.both("train"), (self.m, self.piped)):
            for value in no_integers():
                calls: dict[str, Callable[[], Any]] = {
                    "k must be": lambda: train.read(value),
                    "index must": lambda: train[value],
                    "start must": lambda: train.steps(value),
                    "stop must": lambda: train.steps(0, value),
                    "step in the state": lambda: train.steps().load_state_dict({**train.steps().state_dict(), "step": value}),
                    "rank must": lambda: m.split("train", rank=value, world=9),
                    "world must": lambda: m.split("train", rank=0, world=value),
                }
                if not isinstance(value, str):  # a setting may be a string
                    calls["batch_size"] = lambda: m.split("train", batch_size=value)
                for words, call in calls.items():
                    with self.assertRaisesRegex(batchfs.Error, words, msg=repr(value)):
                        call()
            for value in (-1, 2**40, np.int8(-1), np.uint64(2**63)):
                self.assertRaisesRegex(batchfs.Error, "k must be from 0 to", train.read, value)
            self.assertRaisesRegex(batchfs.Error, "start must be from 0 to", train.steps, -1)
            self.assertRaisesRegex(batchfs.Error, "stop must be from 0 to", train.steps, 0, np.int64(-1))
            self.assertRaisesRegex(TypeError, "start must", train.steps, 3.0)

    def test_settings_are_not_paths(self) -> None:
        """Neither a key nor a value can add a setting or lead to another split."""
        words = ("shuffle,seed=9", "a/b", "a=b", "a\nb", "a\0b", "", ".", "..", "ü", ["a", "b"])
        wrong: list[dict[str, Any]] = [{"order": word} for word in words]
        wrong += [{"seed": "3/../../more"}, {"seed": "3\x7f"}, {"seed=9,order": "shuffle"}, {"../more/seed": 9}, {"": 9}]
        for m in (self.m, self.piped):
            for settings in wrong:
                with self.assertRaisesRegex(batchfs.ArgumentError, re.escape(next(iter(settings)))):
                    m.split("train", **settings)
            with self.assertRaisesRegex(batchfs.MountError, "order: must be"):
                m.split("train", order="shufle")
            with self.assertRaisesRegex(batchfs.ArgumentError, f"seed must be from .* to {2**63 - 1} .got {2**64 - 1}"):
                m.split("train", seed=2**64 - 1)
            self.assertEqual(m.split("train/order=shuffle,seed=9", rank=1, world=2).info["seed"], 9)
        for settings in ({"seed=9 #": 1}, {"order": "\0"}):
            self.assertRaisesRegex(batchfs.ArgumentError, "seed|order", batchfs.mount, config=self.config, **settings)

    def test_tables(self) -> None:
        """A table is text in TOML. A dict is rejected with a message that says so."""
        sources = '[{tokens = "a.bin", weight = 1}]'
        self.assertEqual(flags(None, None, {}, {"splits.train.sources": sources}), ["--set", f"splits.train.sources={sources}"])
        for value in ([{"tokens": "a.bin", "weight": 1}], {"web": 1}):
            args: Any = (None, None, {}, {"splits.train.sources": value})
            self.assertRaisesRegex(batchfs.ArgumentError, "splits.train.sources must be text.*write a table as the text of one in TOML", flags, *args)

    def test_null_characters(self) -> None:
        """No path can contain a null character, so each is rejected before it is used."""
        calls: dict[str, list[Callable[[Any], object]]] = {
            "data": [batchfs.mount, batchfs.open],
            "config": [lambda path: batchfs.mount(config=path)],
            "mountpoint": [lambda path: batchfs.mount(config=self.config, mountpoint=path)],
            "log": [lambda path: batchfs.mount(config=self.config, log=path)],
            "name": [self.m.split, self.piped.split],
            "path": [batchfs.split, lambda path: batchfs.save_tokenizer(mock.Mock(**{"backend_tokenizer.to_str.return_value": ""}), path)],
            "dir": [lambda path: batchfs.writer(path, vocab_size=9), batchfs.finish],
        }
        for name, functions in calls.items():
            for call in functions:
                for path in ("a\0b", Path("a\0b")):
                    self.assertRaisesRegex(batchfs.ArgumentError, rf"^{name} must not contain a null character .*a\\x00b", call, path)

    def test_environment(self) -> None:
        for env in ({"RANK": "x"}, {"WORLD_SIZE": "2.0"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_WORLD_SIZE": ""}):
            with mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "4", **env}):
                for m in (self.m, self.piped):
                    with self.assertRaisesRegex(batchfs.Error, f"variable {next(iter(env))} must be a whole number"):
                        m.split("train")


class TestState(Case):
    def test_resume(self) -> None:
        for train in self.both("train"):
            steps = train.steps(5)
            done = [next(steps) for _ in range(3)]
            state = steps.state_dict()
            self.assertEqual((state["step"], state["row"], state["fingerprint"]), (8, 8 * B, train.fingerprint))
            self.assertTrue(all(type(value) in (int, str) for value in state.values()))
            again = train.steps()
            again.load_state_dict(state)
            self.assertEqual([k for k, _ in done] + [next(again)[0]], [5, 6, 7, 8])
            other = pickle.loads(pickle.dumps(again))
            self.assertTrue(same(next(other)[1], train[9]))

    def test_row(self) -> None:
        train = self.piped.split("train", rank=1, world=3)
        self.assertEqual(train.steps(row=7 * 3 * B).step, 7)
        self.assertRaisesRegex(batchfs.ArgumentError, "row: must be a multiple of batch_size times world", train.steps, row=3 * B + 1)
        self.assertRaisesRegex(batchfs.ArgumentError, "without start", train.steps, 1, row=3 * B)


HOSTS = {"batch_size": 3, "world": 4, "local_world": 2, "shuffle_block": "64KiB"}
SOURCES = '[{{tokens = "a.bin", weight = {}}}, {{tokens = "b.bin", weight = {}}}]'
MIXED = {"tokens": None, "sources": SOURCES.format(7, 3)}
STAGES = '[{{weights = {{a = 7, b = 3}}}}, {{from_row = {}, weights = {{{}}}}}]'
STAGED = {
    "tokens": None,
    "sources": '[{name = "a", tokens = "a.bin"}, {name = "b", tokens = "b.bin"}]',
    "stages": STAGES.format(80, "b = 1"),
}
GROWN = '[{name = "a", tokens = "a.bin"}, {name = "b", tokens = "b.bin"}, {name = "c", tokens = "b.bin", max_epochs = 1}]'
MASK = '[{{name = "mask", files = "mask.bin", dtype = "uint8", at = "{}"}}]'
TORCH = {"order": "torch"}
MASKED = {"tokens": "plain.bin", "eot": 3, "dtype": "int64", "mask_targets": True}
PAIR = {"tokens": ["a.bin", "b.bin"]}

# A run saves its state after 48 rows, under the first settings. When the second are changed, it
# continues at a step, or the error matches.
CHANGES: list[tuple[dict[str, Any], dict[str, Any], int | str]] = [
    ({}, {}, 4),
    ({}, {"batch_size": 4, "world": 3}, 4),
    ({}, {"batch_size": 1, "world": 1}, 48),
    ({}, {"batch_size": 16, "world": 3}, 1),
    ({"order": "random"}, {"batch_size": 8, "world": 1}, 6),
    ({"order": "sequential"}, {"batch_size": 3, "world": 4}, 4),
    ({"rows": "packed"}, {"batch_size": 4, "world": 3}, 4),
    ({"documents": True}, {"document_numbers": True}, 4),
    (MIXED, {"batch_size": 2, "world": 3}, 8),
    (MIXED, {"sources": SOURCES.format(1.4, 0.6)}, 4),
    (STAGED, {"stages": STAGES.format(90, "a = 1"), "batch_size": 4, "world": 3}, 4),
    (STAGED, {"sources": GROWN, "stages": STAGES.format(80, "b = 1, c = 1")}, 4),
    ({**STAGED, "on_change": "follow"}, {"sources": GROWN, "stages": STAGES.format(80, "b = 1, c = 1")}, 4),
    ({**STAGED, **HOSTS, "stages": STAGES.format(110, "b = 1")}, {"stages": STAGES.format(120, "a = 1"), "batch_size": 1, "world": 8, "local_world": 4}, 6),
    ({}, {"dtype": "int64", "start": 3, "steps": 9}, 4),
    ({**MASKED, "tokens": "a.bin"}, {"eot": 5}, 4),
    ({"order": "sequential"}, {"seed": 9}, 4),
    (TORCH, {}, 4),
    ({"on_change": "follow"}, {}, 4),
    (HOSTS, {"batch_size": 1, "world": 8, "local_world": 4}, 6),
    (HOSTS, {"world": 2, "local_world": 1}, 8),
    ({}, {"batch_size": 5}, r"row of the state, 48, .* a batch: batch_size was 6 and is 5; .*steps\(4\) repeats 8 .*steps\(5\) skips 2$"),
    ({}, {"world": 5}, r"a batch: world was 2 and is 5; .*steps\(1\) repeats 18 rows, and steps\(2\) skips 12$"),
    (HOSTS, {"batch_size": 9}, "48, is inside a batch: batch_size was 3 and is 9"),
    (HOSTS, {"local_world": 4}, r"the number of hosts, world/local_world, was 4/2 and is 4/4;"),
    (HOSTS, {"shuffle_block": "128KiB"}, r"shuffle_block was 65536 and is 131072;"),
    (HOSTS, {"shuffle_block": 0, "local_world": 1}, r": shuffle_block was 65536 and is 0;"),
    (TORCH, {"batch_size": 3}, r"batch_size was 6 and is 3; .*steps\(8\)"),
    (TORCH, {"batch_size": 3, "world": 4}, "batch_size was 6 and is 3, world was 2 and is 4"),
    (TORCH, {"order": "torch-2.6"}, "order was 'torch' and is 'torch-2.6'"),
    ({**TORCH, "world": 1}, {"torch_state": "rng.bin"}, "seed was 7 and is 0, torch_state was '' and is 'sha256:"),
    ({}, {"order": "random"}, r"does not fit train: order was 'shuffle' and is 'random'; .* on purpose: steps\(4\)"),
    ({}, {"seed": 9}, "seed was 7 and is 9"),
    ({}, {"split": "other"}, "split was 'train' and is 'other'"),
    ({}, {"block_size": 16, "batch_size": 3}, r"block_size was 32 and is 16; .*steps\(8\)"),
    ({}, {"layout": "tokens"}, "layout was 'xy' and is 'tokens'"),
    ({}, {"rows": "packed"}, "eot was -1 and is 0, .*, rows was 'windows' and is 'packed'"),
    ({"rows": "packed"}, {"too_long": "truncate"}, "does not fit train: too_long was 'cut' and is 'truncate'; mount"),
    ({"rows": "packed", "too_long": "truncate"}, {"too_long": "cut"}, "does not fit train: too_long was 'truncate' and is 'cut'; mount"),
    ({}, {"documents": True}, "documents was 'false' and is 'true'"),
    ({"documents": True}, {"documents": "files"}, "documents was 'true' and is 'files'"),
    (MASKED, {"eot": 5}, "eot was 3 and is 5"),
    (MASKED, {"tokens": "a.bin"}, "eot was 3 and is -1, fingerprint was .*, the indexes of documents next to the token files, which the .* decide"),
    (MASKED, {"mask_targets": False}, "eot was 3 and is -1, ignore_index was -100 and is 0, mask_targets was 'true' and is 'false'"),
    (MASKED, {"ignore_index": -1}, "does not fit train: ignore_index was -100 and is -1"),
    (PAIR, {"join": True}, "join was 'false' and is 'true'"),
    (MIXED, {"sources": SOURCES.format(5, 5)}, "weights was '7:3' and is '1:1'"),
    (STAGED, {"stages": STAGES.format(40, "b = 1")}, "does not fit train: weights was '0=7:3,80=0:1' and is '0=7:3,40=0:1'; mount"),
    (STAGED, {"sources": '[{name = "a", tokens = "b.bin"}, {name = "b", tokens = "b.bin"}]'}, "fingerprint was '[0-9a-f]{32},[0-9a-f]{32}' and is '"),
    ({**STAGED, **HOSTS}, {"stages": STAGES.format(40, "a = 1")}, "weights was '0=7:3,40=0:1' and is '0=7:3,20=1'"),
    (MIXED, STAGED, "does not fit train: the split had neither stages nor max_epochs, and now has them; mount"),
    (STAGED, {"stages": None, **MIXED}, "does not fit train: the split had stages or max_epochs, and now has neither; mount"),
    (MIXED, {"sources": None, **PAIR}, r"the token files are read differently \(.*weights was '7:3' and is ''"),
    ({"arrays": MASK.format("y")}, {"arrays": MASK.format("x")}, "arrays was 'mask:y' and is 'mask:x'"),
    ({}, {"arrays": MASK.format("y")}, "arrays was '' and is 'mask:y', fingerprint was"),
    ({}, {"token_dtype": "int32"}, r": the token files are read differently \(format, tensor, token_dtype"),
    ({}, {"tokens": "b.bin"}, "fingerprint was '[0-9a-f]{32}' and is '"),
    ({}, {"tokens": "longer.bin"}, "does not fit train: fingerprint was '[0-9a-f]{32}' and is '[0-9a-f]{32}'; mount"),
    ({}, {"on_change": "follow"}, "fingerprint was '[0-9a-f]{32}' and is ''"),
]

# Settings of runs, and the states that an earlier version saved for them. If one does not load,
# mend the code instead. A new key must be missing from states in which it has no effect.
SAVED: dict[str, Any] = {
    "version": 2, "step": 4, "row": 48, "batch_size": 6, "world": 2, "arrays": "", "block_size": 32, "bos": -1, "documents": "false", "eot": -1,
    "fingerprint": "532224b24f6b6e55f54487d9ca3e36dd", "formats": "fbf7f60be1b8a2ef852f59d4db610397", "ignore_index": 0, "join": "false",
    "layout": "xy", "local_world": 1, "mask_targets": "false", "order": "shuffle", "rows": "windows", "seed": 7, "shuffle_block": 0,
    "split": "train", "torch_state": "", "weights": "",
}
SAVED_STATES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, SAVED),
    (
        {"rows": "packed", "too_long": "truncate"},
        {**SAVED, "eot": 0, "fingerprint": "ce7ffff26e363c20df1ba925ccb01f94", "rows": "packed+truncate", "too_long": "truncate"},
    ),
    (
        STAGED,
        {
            **SAVED,
            "fingerprint": "532224b24f6b6e55f54487d9ca3e36dd,cc6e8734b4392a2348b4959eefbf39fb",
            "formats": "6f4413f59bc37e5f3fe46bf66943dc9b,6f4413f59bc37e5f3fe46bf66943dc9b",
            "join": "",
            "split": "train/",
            "weights": "0=7:3,80=0:1",
        },
    ),
]

# Changes that make a state malformed, and the error. None leaves a key out.
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"step": -5}, "step in the state must be from 0 to"),
    ({"step": 2**40 + 1}, "step in the state must be from 0 to"),
    ({"step": 4.0}, "step in the state must be an integer"),
    ({"step": "4"}, "step in the state must be an integer"),
    ({"step": 5}, r"row in the state must be step times batch_size times world, 60 \(got 48\)"),
    ({"row": 47}, r"row in the state must be .*48 \(got 47\)"),
    ({"row": -48}, "row in the state must be from 0"),
    ({"batch_size": 0}, "batch_size in the state must be from 1"),
    ({"batch_size": "6"}, "batch_size in the state must be an integer"),
    ({"world": -2}, "world in the state must be from 1"),
    ({"local_world": 0}, "local_world in the state must be from 1"),
    ({"seed": None, "fingerprint": None}, "the state lacks fingerprint, seed: load what"),
    ({"seed": "7"}, "seed in the state must be an integer"),
    ({"join": 0}, "join in the state must be a string"),
    ({"order": 7}, r"order in the state must be a string \(got 7\)"),
    ({"fingerprint": 0}, "fingerprint in the state must be a string"),
    ({"weights": [7, 3]}, "weights in the state must be a string"),
    ({"version": 3}, "the state has version 3, and this batchfs reads version 2: use the one that saved it$"),
    ({"version": "2"}, "version in the state must be an integer"),
    ({"version": True}, "version in the state must be an integer"),
    ({"world": True}, r"world in the state must be an integer \(got true"),
    ({"epoch": 1, "batch": 2}, "the state has an unknown key, batch, epoch: load what"),
]


class TestOtherRuns(waiting.Case):
    """A state continues with exactly the rows that the run would have read next, or it is rejected."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory.name)
        for name, first in (("a", 0), ("b", 100_000)):  # each token is its own position
            np.arange(first, first + 40_000, dtype=np.uint32).tofile(f"{name}.bin")
            np.arange(50, 40_001, 50, dtype=np.uint64).tofile(f"{name}.bin.index")
        np.arange(50_000, dtype=np.uint32).tofile("longer.bin")
        os.link("a.bin", "plain.bin")  # without an index of documents
        np.zeros(40_000, np.uint8).tofile("mask.bin")
        Path("rng.bin").write_bytes(b"".join(n.to_bytes(8, "little") for n in (5489, 1 | 1 << 32, 0, *range(1, 625), *(0,) * 5)))

    def ranks(self, **settings: Any) -> list[batchfs.Split]:
        base: dict[str, Any] = {"batch_size": 6, "world": 2, "block_size": T, "order": "shuffle", "seed": 7}
        all_of: dict[str, Any] = {**base, "tokens": "a.bin", "token_dtype": "uint32", **settings}
        name = all_of.pop("split", "train")
        toml = {key: value if key in ("sources", "stages", "arrays") else json.dumps(value) for key, value in all_of.items() if value is not None}
        piped = batchfs.Piped([f"--set=splits.{name}.{key}={value}" for key, value in toml.items()])
        self.addCleanup(piped.close)
        return [piped.split(name, rank=rank, world=all_of["world"]) for rank in range(all_of["world"])]

    def rows(self, ranks: list[batchfs.Split], begin: Callable[[batchfs.Split], batchfs.Steps]) -> list[list[int]]:
        """Returns the first tokens of the next 24 rows of each host."""
        local = ranks[0].info.get("local_world", len(ranks))
        batches = [[begin(split) for split in ranks[first : first + local]] for first in range(0, len(ranks), local)]
        n = -(-24 // (local * ranks[0].info["batch_size"]))
        return [[int(token) for _ in range(n) for steps in host for token in next(steps)[1][ranks[0].names[0]][:, 0]][:24] for host in batches]

    def test_document_numbers(self) -> None:
        (split,) = self.ranks(world=1, rows="packed", documents=True, document_numbers=True)
        batch = split.read(0)
        for x, length, bounds, numbers in zip(batch.x, batch.lengths, batch.cu_seqlens, batch.document_numbers):
            self.assertEqual([number for number in numbers if number >= 0], [x[begin] // 50 for begin in bounds if begin < length])

    def test_other_settings(self) -> None:
        opened: dict[str, list[batchfs.Split]] = {}
        for then, change, want in CHANGES:
            with self.subTest(then=then, change=change):
                saving = opened[repr(then)] = opened.get(repr(then)) or self.ranks(**then)
                loading = self.ranks(**{**then, **change})
                states = [split.steps(48 // (split.info["batch_size"] * split.info["world"])).state_dict() for split in saving]
                self.assertTrue(all(state == states[0] for state in states))
                state = json.loads(json.dumps(states[0]))

                # torch.distributed.checkpoint requires the keys of the state that it loads
                # into, and leaves out others.
                if (known := loading[0].steps().state_dict().keys()) <= state.keys():
                    state = {key: state[key] for key in known}

                def resumed(split: batchfs.Split, state: dict[str, Any] = state) -> batchfs.Steps:
                    steps = split.steps()
                    steps.load_state_dict(state)
                    return steps

                if isinstance(want, str):
                    for split in loading:
                        self.assertRaisesRegex(batchfs.Error, want, resumed, split)
                    continue
                self.assertEqual([resumed(split).step for split in loading], [want] * len(loading))
                self.assertEqual(self.rows(loading, resumed), self.rows(saving, lambda split: split.steps(states[0]["step"])))

    def test_state_of_an_earlier_version(self) -> None:
        for settings, state in SAVED_STATES:
            with self.subTest(settings):
                steps = self.ranks(**settings)[0].steps()
                steps.load_state_dict(state)
                self.assertEqual((steps.step, steps.state_dict()), (4, state))

    def test_malformed(self) -> None:
        steps = self.ranks()[0].steps(4)
        whole = steps.state_dict()
        for change, words in [*MALFORMED, *(({key: None}, f"the state lacks {key}:") for key in whole)]:
            with self.subTest(change):
                state = {key: value for key, value in {**whole, **change}.items() if value is not None}
                self.assertRaisesRegex(batchfs.ArgumentError, words, steps.load_state_dict, state)
        packed = self.ranks(rows="packed", too_long="truncate")[0].steps(4)
        packed.load_state_dict({**packed.state_dict(), "rows": "packed"})  # of an older version
        states: list[Any] = [{}, {"step": -5}, {"step": 4}, {"fingerprint": whole["fingerprint"]}, [4], None, 4]
        for state in states:
            self.assertRaisesRegex(batchfs.ArgumentError, "the state lacks|the state must be what", steps.load_state_dict, state)
        wrapped: list[dict[str, Any]] = [{"train": whole}, {"model": {}, "train": whole}, {"_snapshot": {}, "_steps_since_snapshot": 0}]
        for state in wrapped:
            self.assertRaisesRegex(batchfs.ArgumentError, rf'the keys \["{min(state)}".*\]: load what', steps.load_state_dict, state)
        self.assertEqual(steps.state_dict(), whole)


class TestForks(Case):
    def test_fork_and_spawn(self) -> None:
        for train in self.both("more"):
            steps = train.steps()
            next(steps)
            for method in ("fork", "spawn"):
                context: Any = multiprocessing.get_context(method)
                queue = context.Queue()
                child = context.Process(target=numbers, args=(train, range(4), queue), daemon=True)
                child.start()
                got = waiting.take(queue)
                waiting.join(child)
                self.assertTrue(all(same(batch, train.read(k)) for k, batch in enumerate(got)))
            self.assertEqual(next(steps)[0], 1)
            self.assertTrue(same(next(steps)[1], train[2]))

    def test_workers_of_a_forked_process(self) -> None:
        """A process is not affected by the workers of a DataLoader in a process that it has forked. They continue the steps of that process."""
        context: Any = multiprocessing.get_context("fork")
        train = self.m.split("train")
        steps = train.steps(stop=100)
        next(steps)

        def work(found: Any) -> None:
            found.put(next(iter(steps))[0])

        def evaluate(found: Any) -> None:
            steps.load_state_dict(train.steps(50).state_dict())
            workers = [context.Process(target=waiting.as_worker, args=(i, 2, work, found)) for i in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                waiting.join(worker)
            try:
                steps.state_dict()
            except batchfs.Error as e:
                found.put(str(e))

        found = context.Queue()
        child = context.Process(target=evaluate, args=(found,))
        child.start()
        self.assertEqual(sorted(waiting.take(found) for _ in range(2)), [50, 51])
        self.assertRegex(waiting.take(found), "the workers of a DataLoader read these steps")
        waiting.join(child)
        self.assertEqual(steps.state_dict()["step"], 1)
        self.assertEqual(next(steps)[0], 1)
        self.assertEqual(train.metrics()["batchfs/batches"], 2)

    def test_states_of_other_processes(self) -> None:
        """The workers of a process do not begin at a state that another one has loaded."""
        train = self.m.split("train")
        steps = train.steps(stop=100)
        next(steps)

        def work(found: Any) -> None:
            found.put(next(iter(steps))[0])

        for method in ("fork", "spawn"):
            other: Any = multiprocessing.get_context(method)
            child = other.Process(target=steps.load_state_dict, args=(train.steps(50).state_dict(),), daemon=True)
            child.start()
            waiting.join(child)
            found: Any = multiprocessing.get_context("fork").Queue()
            worker = waiting.forked(waiting.as_worker, 0, 1, work, found)
            self.assertEqual(waiting.take(found), 1, method)
            waiting.join(worker)
            steps.load_state_dict(train.steps(1).state_dict())

    def test_fork_while_a_thread_reads(self) -> None:
        for train in self.both("train"):
            steps, other = train.steps(), self.m.split("train")
            stopped = threading.Event()

            def read(steps: batchfs.Steps = steps, stopped: threading.Event = stopped) -> None:
                while not stopped.is_set():
                    next(steps)

            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            children: list[int] = []
            try:
                for _ in range(50):
                    before = steps.step
                    waiting.until("another batch", lambda before=before: (steps.step > before, steps.step))
                    if (child := os.fork()) == 0:
                        status = 1
                        try:
                            k, batch = next(steps)
                            status = 0 if same(batch, other.read(k)) else 2
                        finally:
                            os._exit(status)
                    children.append(child)
                waiting.until("the end of all children", lambda: ended(children))
                self.assertEqual([os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1]) for _ in range(50)], [0] * 50)
            finally:
                stopped.set()
                for child in children:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                waiting.join(thread)


class TestProcesses(Case):
    imports_torch = True

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if has_torch:
            # Steps register with it only if it is there.
            importlib.import_module("torch.utils.data")

    def test_exceptions_of_signal_handlers(self) -> None:
        """One may come after any call: the next batch is then read as if it had not."""
        whole = self.m.split("train")
        for train in self.both("train"):
            steps = train.steps()
            for limit in itertools.count():
                calls = 0

                def interrupt(_frame: Any, event: str, function: Any, limit: int = limit) -> None:
                    nonlocal calls
                    # Python calls no handlers after these two.
                    if event == "c_return" and function.__name__ not in ("__enter__", "__exit__"):
                        calls += 1
                        if calls > limit:
                            raise KeyboardInterrupt

                sys.setprofile(interrupt)
                try:
                    next(steps)
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.setprofile(None)
                self.assertFalse(steps.lock.locked(), f"call {calls}")
                step = steps.step
                k, batch = next(steps)
                self.assertEqual(k, step)
                self.assertTrue(same(batch, whole.read(k)))
                if calls <= limit:
                    break

    def test_threads_share_steps(self) -> None:
        n = 4000
        want = [*self.m.split("train", order="shuffle").steps(0, n)]
        for train in self.both("train", order="shuffle"):
            for steps in [train.steps(0, n), *([train.torch("cpu", 0, n)] if has_torch else [])]:
                got: list[list[tuple[int, Any]]] = []

                # A loop that begins after all steps were read would begin again, but next does not.
                def read(steps: Any = steps, got: list[list[tuple[int, Any]]] = got) -> None:
                    got.append([*iter(lambda: next(steps, None), None)])

                threads = [threading.Thread(target=read, daemon=True) for _ in range(8)]
                interval = sys.getswitchinterval()
                sys.setswitchinterval(1e-6)
                try:
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        waiting.join(thread)
                finally:
                    sys.setswitchinterval(interval)
                for own in got:
                    self.assertEqual([k for k, _ in own], sorted(k for k, _ in own))
                read_by_all = sorted((pair for own in got for pair in own), key=lambda pair: pair[0])
                self.assertEqual([k for k, _ in read_by_all], [*range(n)])
                self.assertTrue(all(same(batch, want[k][1]) for k, batch in read_by_all))

    @unittest.skipUnless(has_torch, "no torch")
    def test_workers_of_a_split(self) -> None:
        for train in self.both("more"):
            for workers in (0, 2):
                got = read_all(loader_of(train, num_workers=workers), 5)
                self.assertTrue(all(same(batch, train[k]) for k, batch in enumerate(got)))

    @unittest.skipUnless(has_torch, "no torch")
    def test_workers_share_steps(self) -> None:
        mounted, piped = self.both("more")
        ways: list[dict[str, Any]] = [{"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}]
        ways += [{"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5}]
        for way, train in itertools.product(ways, (mounted, piped)):
            for steps in (train.steps(2, 13), train.torch("cpu", 2, 13)):
                self.loops(steps, multiprocessing_context="fork", **way)
        # Each of these workers imports torch, which takes seconds.
        self.loops(mounted.steps(2, 13), multiprocessing_context="spawn", **ways[1])
        self.loops(piped.torch("cpu", 2, 13), multiprocessing_context="forkserver", **ways[1])

    def loops(self, steps: Any, **options: Any) -> None:
        """Tests the batches of a loop over a loader, and of one after a state was loaded."""
        train = steps.split
        with self.subTest(f"{train.reader} {steps}", **options), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            loader = loader_of(steps, **options)
            got = read_all(loader)
            self.assertEqual([int(k) for k, _ in got], [*range(2, 13)])
            self.assertTrue(all(same(batch, train[int(k)]) for k, batch in got))
            for unknown in (steps, copy.copy(steps)):
                self.assertRaisesRegex(batchfs.Error, "StatefulDataLoader", unknown.state_dict)
            state = {**train.steps(9).state_dict()}
            steps.load_state_dict(state)
            self.assertEqual(steps.state_dict(), state)
            self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(9, 13)])
            self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(2, 13)])
            self.assertRaises(batchfs.Error, steps.state_dict)
            self.assertEqual(next(iter(steps))[0], 9)  # from now on this process reads
            self.assertEqual(steps.state_dict()["step"], 10)

    @unittest.skipUnless(has_torch, "no torch")
    def test_workers_that_call_only_next(self) -> None:
        """Workers also share the numbers if a dataset around the steps never calls iter in them."""

        class Dataset(dict[int, Any]):
            def __getitem__(self, k: int) -> Any:
                return next(steps)

        train = self.m.split("train")
        for steps in (train.steps(2, 13), iter(train.torch("cpu", 2, 13))):
            for begin in (2, 9):
                steps.load_state_dict(train.steps(begin).state_dict())
                loader = loader_of(Dataset.fromkeys(range(13 - begin)), num_workers=2, multiprocessing_context="fork")
                self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(begin, 13)])
                self.assertRaises(batchfs.Error, steps.state_dict)

        class OwnSteps(dict[int, Any]):
            def __getitem__(self, k: int) -> Any:
                own = train.steps(0, 3)
                return [int(step) for step, _ in iter(lambda: next(own, (3, None)), (3, None))]

        # Those that a worker has made itself are its own.
        self.assertEqual(read_all(loader_of(OwnSteps.fromkeys(range(2)), num_workers=2)), [[0, 1, 2]] * 2)

    @unittest.skipUnless(has_torch, "no torch")
    def test_loops(self) -> None:
        """Any sequence of loops, whole or not, and of loaded states returns the steps that docs/python.md lists, in every form of loop."""
        rng = random.Random(7)
        start, stop = 2, 32  # workers read ahead, but not to the end
        for form, options in FORMS.items():
            train = self.m.split("train")
            steps: Any = rng.choice([train.steps(start, stop), train.torch("cpu", start, stop)])
            loader, has_workers = form_of(steps, options), bool(options and options.get("num_workers"))
            position, is_first, last = start, True, start  # is_first: no loop began at position
            said: list[str] = []
            with self.subTest(form), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # test_loops_that_end_early tests it
                for op in ["loop", "loop", "load", "loop", "break", *rng.choices(["loop", "break", "load", "resume"], k=waiting.repeats(20)), "loop", "loop"]:
                    n = rng.randrange(1, 6) if op == "break" else None
                    if op == "load":
                        position, is_first = rng.choice([start, 9, stop - 1, stop]), True
                        steps.load_state_dict(train.steps(position).state_dict())
                    elif op == "resume" and "stateful" in (options or {}) and said:
                        loader.load_state_dict(loader.state_dict())
                        if has_workers:
                            position, is_first = last, last < stop
                    elif op != "resume":
                        begins_again = not is_first if has_workers else position >= stop and not is_first
                        begin = start if begins_again else position
                        want = [*range(begin, stop)][:n]
                        said.append(f"{op} {n} from {begin}")
                        self.assertEqual([int(k) for k, _ in read_all(loader, n)], want, said)
                        last, is_first = begin + len(want), False
                        position = position if has_workers else last

    @unittest.skipUnless(has_torch, "no torch")
    def test_loops_that_end_early(self) -> None:
        """Workers begin such a loop again, and warn once. Without an end, another loop is an error, unless a state says where it begins."""
        for form, options in FORMS.items():
            train = self.m.split("train")
            has_workers = bool(options and options.get("num_workers"))
            with self.subTest(form), warnings.catch_warnings():
                warnings.filterwarnings("error", category=RuntimeWarning)  # in workers, too
                loader = form_of(train.steps(2, 32), options)
                self.assertEqual([int(k) for k, _ in read_all(loader, 5)], [*range(2, 7)])
                if has_workers:
                    words = r"steps\(2, 32\) did not end, and the next one begins again at batch 2,.*StatefulDataLoader"
                    self.assertRaisesRegex(RuntimeWarning, words, read_all, loader)
                    self.assertEqual([int(k) for k, _ in read_all(loader, 5)], [*range(2, 7)])
                self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(2 if has_workers else 7, 32)])

                steps = train.steps(2)
                loader = form_of(steps, options)
                self.assertEqual([int(k) for k, _ in read_all(loader, 5)], [*range(2, 7)])
                if has_workers and options and "stateful" in options:
                    loader.load_state_dict(loader.state_dict())
                elif has_workers:
                    for _ in range(2):
                        self.assertRaisesRegex(batchfs.Error, r"steps\(2\) has no end.*StatefulDataLoader", read_all, loader, 5)
                    steps.load_state_dict(train.steps(7).state_dict())
                self.assertEqual([int(k) for k, _ in read_all(loader, 5)], [*range(7, 12)])
                if has_workers:
                    self.assertRaisesRegex(batchfs.Error, "StatefulDataLoader", read_all, loader, 5)

    @unittest.skipUnless(has_torch, "no torch")
    def test_loop_beside_another(self) -> None:
        """Only the first loop after a loaded state begins at its step, even if that loop is not over, and some of its workers have not begun."""
        steps = self.m.split("train").steps(2, 13)
        steps.load_state_dict(steps.split.steps(9).state_dict())
        loader = loader_of(steps, num_workers=2, prefetch_factor=1, multiprocessing_context="fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = iter(loader)
            self.assertEqual(int(next(first)[0]), 9)  # a worker of the first loop has begun
            self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(2, 13)])
            self.assertEqual([int(k) for k, _ in first], [*range(10, 13)])

    @unittest.skipUnless(has_torch, "no torch")
    def test_other_processes_beside_workers(self) -> None:
        """All workers of a loop begin at a loaded state, even if their process numbers are not consecutive, because another thread starts processes."""
        steps = self.m.split("train").steps(2, 13)
        for method, stateful in (("fork", False), ("fork", has_torchdata), ("spawn", False)):
            steps.load_state_dict(steps.split.steps(9).state_dict())
            with self.subTest(method, stateful=stateful), mock.patch("multiprocessing.process._process_counter", itertools.count(100, 2)):
                loader = loader_of(steps, stateful, num_workers=2, multiprocessing_context=method)
                self.assertEqual([int(k) for k, _ in read_all(loader)], [*range(9, 13)])

    @unittest.skipUnless(has_torch, "no torch")
    def test_steps_before_torch(self) -> None:
        """A DataLoader says why it rejects steps that were made before torch was imported."""
        out, err = waiting.end(
            python(f"""
            steps = batchfs.split({self.m.mountpoint + "/train"!r}).steps(0, 3)
            print(len(list(steps)), bool(steps), "torch" in sys.modules)
            from torch.utils.data import DataLoader
            try:
                list(DataLoader(steps, batch_size=None))
            except TypeError as e:
                print(e)
            print(len(list(DataLoader(batchfs.split({self.m.mountpoint + "/train"!r}).steps(0, 3), batch_size=None))))
            """)
        )
        self.assertRegex(out, "^3 True False\nsteps have no length: .* import torch before .*\n3\n$", err)

    @unittest.skipUnless(has_torch, "no torch")
    def test_workers_cannot_send_to_a_device(self) -> None:
        # With uint16, torch would import its compiler, which takes seconds.
        steps = self.m.split("train", dtype="int64").torch("meta")
        self.assertEqual(next(steps)[1].x.device.type, "meta")
        with self.assertRaisesRegex(batchfs.Error, r"cannot send batches to meta.*train.torch\(.cpu.\)"):
            read_all(loader_of(steps, num_workers=1, multiprocessing_context="fork"))

    @unittest.skipUnless(has_torchdata, "no torchdata")
    def test_stateful_workers(self) -> None:
        """Another loader resumes a loop that ended early."""
        fork = {"multiprocessing_context": "fork"}
        ways: list[dict[str, Any]] = [{}, {"num_workers": 1, **fork}, {"num_workers": 2, **fork}]
        ways += [{"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5, **fork}]
        mounted, piped = self.both("train")
        begins: list[Callable[[], Any]] = [lambda: mounted.steps(3, 15), lambda: piped.torch("cpu", 3, 15)]
        for begin, way in itertools.product(begins, ways):
            with self.subTest(f"{begin()}", **way), warnings.catch_warnings(record=True) as warned:
                loader = loader_of(begin(), stateful=True, **way)
                got = read_all(loader, 5)
                state = loader.state_dict()
                loader = loader_of(begin(), stateful=True, **way)
                loader.load_state_dict(state)
                got += read_all(loader)
                self.assertEqual([int(k) for k, _ in got], [*range(3, 15)])
                self.assertTrue(all(same(batch, mounted[int(k)]) for k, batch in got))
            self.assertEqual([str(w.message) for w in warned if "batchfs" in str(w.message)], [])
        # Each worker knows only its own step.
        loader = loader_of(mounted.steps(3, 15), stateful=True, **ways[2])
        read_all(loader, 5)
        other = loader_of(self.m.split("train", batch_size=2 * B).steps(), stateful=True, **ways[2])
        other.load_state_dict(loader.state_dict())
        self.assertRaisesRegex(batchfs.Error, r"batch_size times world was 4 and is 8.*cannot convert.*steps\(N\)", read_all, other)

    @unittest.skipUnless(has_torch, "no torch")
    def test_tensors(self) -> None:
        import torch

        for more in self.both("more"):
            steps = more.torch("cpu", 1, 4)
            for k, batch in steps:
                self.assertEqual([batch[name].dtype for name in batch], [torch.int64, torch.int64, torch.float32, torch.uint8])
                self.assertTrue(same(batch, more[k]))
            self.assertEqual(steps.state_dict()["step"], 4)
        more = self.m.split("more")
        kept = {k: (batch if k % 2 else batch.y[0, 1:]) for k, batch in more.torch("cpu", 0, 8)}
        for k, batch in kept.items():  # nothing still in use was overwritten
            self.assertTrue(same(batch, more[k]) if isinstance(batch, dict) else np.array_equal(batch, more[k].y[0, 1:]))
        rows = self.m.split("rows")
        self.assertEqual(next(rows.torch("cpu"))[1].rows.dtype, torch.bfloat16)
        steps = more.torch("cpu")
        with mock.patch.object(steps, "send", side_effect=MemoryError):
            self.assertRaises(MemoryError, next, steps)
        self.assertEqual(next(steps)[0], 0)  # no batch is lost
        with torch.device("meta"):  # like torch.set_default_device
            batch = next(more.torch("cpu"))[1]
        self.assertTrue(same(batch, more[0]))
        with contextlib.suppress(RuntimeError, AssertionError):  # there may be no such device
            self.assertEqual(more.torch(0).device.index, 0)

    @unittest.skipUnless(has_torch, "no torch")
    def test_sending(self) -> None:
        """A batch is sent while the previous one is in use, and its memory is filled again once it was sent.

        If it cannot be read, the previous one is still returned.
        """
        import torch

        more = self.m.split("more")
        original = more.reader.fill

        def until_20(k: int, buffers: Any) -> None:
            if k >= 20:
                raise batchfs.ReadError("no batch is left")
            original(k, buffers)

        if torch.cuda.is_available():
            for k, batch in more.torch("cuda", 1, 40):
                self.assertTrue(same({name: batch[name].cpu() for name in batch}, more.read(k)))
            steps = more.torch("cuda", 17)
            with mock.patch.object(more.reader, "fill", until_20):
                self.assertEqual([next(steps)[0] for _ in range(17, 20)], [17, 18, 19])
                self.assertRaisesRegex(batchfs.ReadError, "no batch is left", next, steps)
            self.assertEqual(next(steps)[0], 20)
            return
        # Without CUDA, mocks record the calls, and batches are copied instead of sent.
        from batchfs._torch import CudaSteps

        class Copied(CudaSteps):
            def batch(self, raw: torch.Tensor) -> Any:
                return super().batch(raw.clone())

        cuda, empty, other = mock.MagicMock(), torch.empty, self.m.split("more")

        def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            return empty(*args, **kwargs)

        pinned = mock.patch.object(torch, "empty", unpinned)
        fill = mock.patch.object(more.reader, "fill", side_effect=original)
        with mock.patch.object(torch, "cuda", cuda), pinned, mock.patch.object(torch.Tensor, "record_stream"), fill as read:
            cuda.Event.return_value = cuda.event
            cuda.attach_mock(read, "read")
            steps = Copied(more, torch.device("cpu"), 1, 20)
            seen: list[int] = []
            for k, batch in steps:
                seen.append(k)
                self.assertTrue(same(batch, other.read(k)))
                self.assertEqual(read.call_args[0][0], min(k + 1, 19))
                if k == 10:
                    steps.load_state_dict(more.steps(15).state_dict())
        self.assertEqual(seen, [*range(1, 11), *range(15, 20)])
        calls = [name for name, _, _ in cuda.mock_calls if name in ("event.synchronize", "read", "event.record")]
        self.assertEqual(calls, ["event.synchronize", "read", "event.record"] * (len(seen) + 1))
        self.assertEqual([name for name, _, _ in cuda.mock_calls].count("current_stream().wait_event"), len(seen))
        with mock.patch.object(torch, "cuda", cuda), pinned, mock.patch.object(torch.Tensor, "record_stream"):
            steps = Copied(more, torch.device("cpu"), 17, None)
            with mock.patch.object(more.reader, "fill", until_20):
                for want in range(17, 20):
                    k, batch = next(steps)
                    self.assertEqual(k, want)
                    self.assertTrue(same(batch, other.read(k)))
                self.assertRaisesRegex(batchfs.ReadError, "no batch is left", next, steps)
            self.assertEqual(next(steps)[0], 20)


class Place(waiting.Case):
    """A test with its own directory, which has tokens and a mountpoint."""

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.config = make_data(self.directory / "data")
        self.place = self.directory / "mnt"
        self.place.mkdir()
        self.addCleanup(self.unmount)

    def unmount(self) -> None:
        """Unmounts what a failed test left."""
        for place in mounts():
            if place.startswith(str(self.directory)):
                subprocess.run(["umount", "-l", place.encode().decode("unicode_escape")], timeout=waiting.LIMIT, check=False)

    def mounted(self) -> bool:
        return str(self.place) in mounts()


class TestLife(Place):
    """What is mounted, and what runs, when a process ends."""

    def ends(self, code: str, status: int) -> str:
        """Runs code in a process with a mount. Checks its exit status, and that the mount is gone soon after it. Returns its output."""
        process = python(
            f"m = batchfs.mount(config={self.config!r}, mountpoint={str(self.place)!r}, set={{'mount.grace': '1s'}})\n"
            f"train = m.split('train'); first = train[0]\n{textwrap.dedent(code)}"
        )
        out, err = waiting.end(process)
        self.assertEqual(process.returncode, status, out + err)
        waiting.until("an unmount", lambda: (not self.mounted(), mounts()))
        self.assertTrue(self.place.is_dir())
        return out

    def test_ends_of_a_process(self) -> None:
        self.ends("pass", 0)
        self.ends("sys.exit(3)", 3)
        self.ends("raise KeyboardInterrupt", -signal.SIGINT)
        self.ends("os._exit(4)", 4)
        self.ends("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)
        self.ends("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)

    def test_nothing_is_printed_at_exit(self) -> None:
        """A process prints nothing at its end, even if something of Python's keeps its global variables."""
        for opened in ("mount(config=sys.argv[1])", "Piped(['-c', sys.argv[1]])"):
            process = python(
                f"""
                signal.signal(signal.SIGTERM, lambda *_: None)
                m = batchfs.{opened}
                steps = m.split('train').steps()
                next(steps)
                """,
                self.config,
            )
            self.assertEqual(waiting.end(process), ("", ""))

    def test_a_killed_process_leaves_no_directory(self) -> None:
        places = self.directory / "tmp"
        places.mkdir()

        def found() -> list[Path]:
            return [*places.iterdir()]

        # With tempdir, Python's tempfile does not try the directory, which would leave a file if it
        # were killed then.
        code = f"""
            import tempfile
            tempfile.tempdir = os.environ['TMPDIR']
            m = batchfs.mount(config={self.config!r})
            print('mounted', flush=True)
            signal.pause()
        """
        for moment in ("starting", "mounted"):
            process = python(code, TMPDIR=str(places))
            waiting.until("a mountpoint", lambda: (any(found()), found()))
            if moment == "mounted":
                self.assertEqual(waiting.line(process), "mounted\n")
            process.kill()
            waiting.end(process)
            waiting.until(f"no directory of a process that was killed when {moment}", lambda: (not any(found()), found()))
        with mock.patch.object(tempfile, "tempdir", str(places)):
            self.assertRaises(batchfs.MountError, lambda: batchfs.mount(config=self.config, batch_size=0))
        self.assertEqual(found(), [])

    def test_killed_beside_a_forked_process(self) -> None:
        """A forked process that reads, and outlives its parent, does not keep the mount."""
        reader = self.ends(
            """
            ready, told = os.pipe()
            if (child := os.fork()) == 0:
                os.close(ready)
                held = open(m.mountpoint + '/train/batch/1', 'rb'); held.read(1); os.write(told, b'.')
                sys.stdout.close(); os.close(1); os.close(2)
                signal.alarm(600)  # if the test is killed
                signal.pause()
            os.close(told)
            if os.read(ready, 1):
                print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            -signal.SIGKILL,
        )
        os.kill(int(reader), signal.SIGKILL)

    def test_with_unmounts(self) -> None:
        m = batchfs.mount(config=self.config, mountpoint=self.place, set={"mount.grace": "5m"})
        train = m.split("train")
        begun = time.monotonic()
        with self.assertRaises(ZeroDivisionError), m:
            others = pickle.loads(pickle.dumps(train)), copy.deepcopy(train.steps()), batchfs.split(self.place / "train")
            self.assertTrue(same(train[0], others[0][0]) and same(train[0], next(others[1])[1]) and same(train[0], others[2][0]))
            child = waiting.forked(m.close)  # does nothing, because the parent made the mount
            waiting.join(child)
            self.assertEqual(child.exitcode, 0)
            self.assertTrue(self.mounted())
            _ = 1 / 0
        self.assertFalse(self.mounted())
        self.assertLess(time.monotonic() - begun, 60)  # no file of this process kept the mount
        self.assertRaisesRegex(batchfs.ReadError, "is a batchfs mounted there", lambda: train[2])
        m.close()

    def test_mounts_of_its_own(self) -> None:
        """A mount outlives the thread that made it, but not the last reference to it."""
        made: list[batchfs.Mount] = []
        thread = threading.Thread(target=lambda: made.append(batchfs.mount(config=self.config)), daemon=True)
        thread.start()
        waiting.join(thread)
        train = batchfs.mount(config=self.config).split("train")  # the split keeps its mount alive
        self.assertTrue(same(train[5], made[0].split("train")[5]))
        places = [made[0].mountpoint, str(Path(train.reader.path).parent) if isinstance(train.reader, FileReader) else ""]
        self.assertLessEqual(set(places), mounts())
        del train
        self.assertEqual(set(places) & mounts(), {places[0]})
        made[0].close()
        self.assertFalse(any(map(os.path.exists, places)))

    def test_closed_standard_streams(self) -> None:
        """A daemon may have closed them, so that the next files get their descriptors."""
        result = self.directory / "result"
        process = python(f"""
            os.closerange(0, 3)
            with batchfs.mount(config={self.config!r}) as m:
                text = str(m.split('train')[0].x.sum())
            text += ' ' + str(batchfs.Piped(['-c', {self.config!r}]).split('train')[0].x.sum())
            with open({str(result)!r}, 'w') as file:
                file.write(text)
        """)
        waiting.end(process)
        first, second = result.read_text().split()
        self.assertEqual(first, second)

    def test_two_runs(self) -> None:
        """Runs on one machine have mounts of their own."""
        code = f"""
            with batchfs.mount(config={self.config!r}) as m:
                print(m.mountpoint, m.split('train')[5].x.sum(), flush=True)
                sys.stdin.readline()
        """
        runs = [python(code) for _ in range(2)]
        said = [waiting.line(run).split() for run in runs]
        self.assertEqual(len({place for place, _ in said} & mounts()), 2)
        self.assertEqual(said[0][1], said[1][1])
        for run in runs:
            _, err = waiting.end(run, "\n")
            self.assertEqual(run.returncode, 0, err)
        self.assertFalse(any(os.path.exists(place) for place, _ in said))

    def test_pipes_end(self) -> None:
        process = python(f"""
            p = batchfs.Piped(['-c', {self.config!r}]).split('train'); p[0]
            print(p.reader.cat.process.pid, flush=True)
            signal.pause()
        """)
        child = int(waiting.line(process))
        process.kill()
        waiting.end(process)
        waiting.until("the end of batchfs cat", lambda: state_of(child))

    def test_interrupt(self) -> None:
        """A trainer that handles Ctrl-C reads on, from a mount and from a pipe."""
        for opened in ("mount(config=sys.argv[1])", "Piped(['-c', sys.argv[1]])"):
            process = python(
                f"""
                os.setsid()  # the terminal sends the signal to a group of processes
                signal.signal(signal.SIGINT, lambda *_: print('caught'))
                with batchfs.{opened} as m:
                    steps = m.split('train', batch_size=2048).steps(stop=50)
                    next(steps)
                    os.killpg(0, signal.SIGINT)
                    print(len([*steps]))  # more than a pipe holds
                """,
                self.config,
            )
            self.assertEqual(waiting.end(process), ("caught\n49\n", ""))

    def test_program(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "batchfs", "version"], cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=waiting.LIMIT
        )
        self.assertRegex(done.stdout, "^batchfs ")


class TestSameSequence(Place):
    """A split returns batches of the sequence that it was created with, or raises an error, whatever is mounted or written later."""

    imports_torch = True

    def test_remount(self) -> None:
        """A reader that continues after an error notices if another sequence is mounted at its path."""
        torch_state = self.directory / "rng.bin"
        torch_state.write_bytes(b"".join(n.to_bytes(8, "little") for n in (5489, 1 | 1 << 32, 0, *range(1, 625), *(0,) * 5)))

        def mounted(**settings: Any) -> batchfs.Mount:
            keys = {f"splits.train.{key}": value for key, value in settings.items()}
            return batchfs.mount(config=self.config, mountpoint=self.place, set={"mount.grace": "1s", **keys})

        with mounted():
            train = batchfs.split(self.place / "train")
            first = train.read(1)
            copy = pickle.loads(pickle.dumps(train))
        resumed = train.steps()
        resumed.load_state_dict(copy.steps(5).state_dict())  # needs no mount
        self.assertEqual(resumed.step, 5)
        others = {
            "seed was 1337 and is 9": {"seed": 9},
            "order was 'random' and is 'torch', .*torch_state was '' and is 'sha256": {"order": "torch", "torch_state": str(torch_state)},
            "eot was -1 and is 7": {"dtype": "int64", "eot": 7, "mask_targets": True},
            "rank was 0 and is 1, world was 1 and is 2": {"rank": 1, "world": 2},
            "fingerprint was '[0-9a-f]{32}' and is '": {"tokens": str(self.directory / "other/train.bin")},
        }
        make_data(self.directory / "other", 150_000)
        np.roll(np.arange(150_000).astype(np.uint16), 1).tofile(self.directory / "other/train.bin")
        for words, settings in others.items():
            self.assertRaisesRegex(batchfs.ReadError, "mounted there|Mount again", train.read, 10**6)
            with mounted(**settings):
                for reader in (train, copy):
                    with self.assertRaisesRegex(batchfs.ReadError, f"another sequence is mounted at .*({words}).*call split\\(\\) again"):
                        reader.read(1)
                self.assertEqual(train.info["seed"], 1337)
                batchfs.split(self.place / "train").read(1)
        with mounted(start=3, steps=7):  # no batch depends on these
            self.assertTrue(same(train.read(1), first) and same(copy.read(1), first))

    def test_replaced_tokens(self) -> None:
        """A pipe that starts its program again fails if the tokens were replaced, until they are put back."""
        for name, header in (("train", False), ("more", True)):
            piped = batchfs.Piped(["-c", self.config]).split(name)
            first, jump = piped.read(0), next(piped.steps(300))[1]
            tokens, kept = self.directory / "data/train.bin", self.directory / "kept"
            np.roll(np.fromfile(tokens, np.uint16), 1).tofile(self.directory / "new")
            os.link(tokens, kept)
            os.rename(self.directory / "new", tokens)
            copy = pickle.loads(pickle.dumps(piped))
            calls: list[Callable[[], Any]] = [lambda: piped.read(0), lambda: copy.read(300), lambda: self.forked(piped)]
            for call in calls:
                with self.assertRaisesRegex(batchfs.ReadError, "has the identity .* and --identity is .* put them back, or open the split again"):
                    call()
            self.assertEqual(bool(getattr(piped.reader, "header")), header)
            self.assertFalse(same(batchfs.Piped(["-c", self.config]).split(name).read(0), first))
            os.rename(kept, tokens)
            self.assertTrue(same(piped.read(0), first) and same(piped.read(300), jump))

    def forked(self, split: batchfs.Split) -> None:
        """Reads a batch in a forked process."""
        with multiprocessing.get_context("fork").Pool(1) as pool:
            waiting.result(pool.apply_async(split.read, (300,)))

    @unittest.skipUnless(has_torch, "no torch")
    def test_replaced_tokens_under_workers(self) -> None:
        importlib.import_module("torch.utils.data")  # steps register with it only if it is there
        piped = batchfs.Piped(["-c", self.config]).split("train")
        np.roll(np.fromfile(self.directory / "data/train.bin", np.uint16), 1).tofile(self.directory / "new")
        os.rename(self.directory / "new", self.directory / "data/train.bin")
        with self.assertRaisesRegex(batchfs.ReadError, "and --identity is"):
            read_all(loader_of(piped.steps(0, 9), num_workers=2))

    def test_followed_tokens(self) -> None:
        """With on_change = "follow", replaced tokens are not an error."""
        flags = ["-c", self.config, "--set", "splits.train.on_change=follow"]
        piped = batchfs.Piped(flags).split("train")
        first = piped.read(0)
        np.roll(np.fromfile(self.directory / "data/train.bin", np.uint16), 1).tofile(self.directory / "new")
        os.rename(self.directory / "new", self.directory / "data/train.bin")
        now = pickle.loads(pickle.dumps(piped)).read(0)
        self.assertTrue(same(now, batchfs.Piped(flags).split("train").read(0)) and not same(now, first))

    def test_longer_sequence(self) -> None:
        """A run whose source is used up continues after a restart with a larger max_epochs."""
        config = self.directory / "data/mixture.toml"
        write_ending(config, 0.1)
        with batchfs.mount(config=config) as m:
            train, unread, refreshed = (m.split("train") for _ in range(3))
            end = train.info["max_steps"]
            train.read(end - 1)
            self.assertRaisesRegex(batchfs.ReadError, f"batch {end} of .*: no batch is left.*max_epochs", train.read, end)
            steps = refreshed.steps()
            self.assertEqual(len(read_all(steps, end)), end)
            write_ending(config, 0.2)
            self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
            steps.state_dict()  # reads info.json again
            piped = batchfs.Piped(["-c", str(config)]).split("train")
            self.assertGreater(piped.info["max_steps"], end)
            for split in (train, unread, refreshed):
                for k in range(end, end + 5):
                    self.assertTrue(same(split.read(k), piped.read(k)), k)
            longer = piped.info["max_steps"]
            self.assertRaisesRegex(batchfs.ReadError, f"batch {longer} of .*: no batch is left", train.read, longer)
            self.assertEqual(next(steps)[0], end)

    def test_added_source(self) -> None:
        """The fingerprint of a split changes with a restart that adds a source."""
        config = self.directory / "data/stages.toml"
        write_stages(config, 300 * B)
        with batchfs.mount(config=config) as m:
            train = m.split("train")
            train.read(0)
            before = train.fingerprint
            config.write_text(config.read_text() + '[[splits.train.sources]]\nname = "c"\ntokens = "train.bin"\n')
            self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
            train.close()  # reads info.json again
            self.assertEqual(train.fingerprint, m.split("train").fingerprint)
            self.assertNotEqual(train.fingerprint, before)

    def test_shorter_sequence(self) -> None:
        """If a restart has made a sequence shorter, reads beyond its end say so, whether or not a file was open."""
        config = self.directory / "data/mixture.toml"
        write_ending(config, 0.2)
        with batchfs.mount(config=config) as m:
            opened, unread = (m.split("train/source=a") for _ in range(2))
            end = opened.info["max_steps"]
            opened.read(0)
            write_ending(config, 0.1)
            self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
            for split in (unread, opened):
                self.assertRaisesRegex(batchfs.ReadError, f"batch {end - 1} of .*max_epochs", split.read, end - 1)
                self.assertTrue(same(split.read(1), m.split("train/source=a").read(1)))
                self.assertLess(split.info["max_steps"], end)

    def test_changed_schedule(self) -> None:
        """A state has the schedule of the batches that were read, even if the first of them followed a restart."""
        config = self.directory / "data/stages.toml"
        write_stages(config, 300 * B, "max_epochs = 1\n")
        with batchfs.mount(config=config) as m:
            train = m.split("train")
            steps = train.steps()
            next(steps)
            write_stages(config, 200 * B)
            self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
            self.assertEqual([int(batch.source[0]) for _, batch in itertools.islice(steps, 249)], [1] * 199 + [0] * 50)
            self.assertEqual(steps.state_dict(), m.split("train").steps(250).state_dict())
            self.assertEqual(train.info, m.split("train").info)
            self.assertEqual(train.metrics()["batchfs/stage"], 1)

    def test_reopened_after_a_restart(self) -> None:
        """A reader whose file is closed, or fails, continues with the schedule of the batches that it has read."""
        config = self.directory / "data/stages.toml"
        write_stages(config, 300 * B)
        with batchfs.mount(config=config) as m:
            splits = [m.split("train") for _ in range(2)]
            for train in splits:
                train.read(0)
            write_stages(config, 200 * B)
            self.assertIsNone(run("restart", m.mountpoint, timeout=waiting.LIMIT)[1])
            for train in splits:
                train.read(250)
            splits[0].close()
            with mock.patch("os.preadv", side_effect=OSError(errno.ETIMEDOUT, "late")):
                self.assertRaisesRegex(batchfs.ReadError, "late", splits[1].read, 250)
            for train in splits:
                self.assertEqual(int(train.read(251).source[0]), 0)

    def test_another_directory(self) -> None:
        """Relative paths refer to the directory in which a mount or a pipe was opened."""
        make_data(self.directory / "elsewhere/data")
        np.ones(9000, np.uint16).tofile(self.directory / "elsewhere/data/train.bin")
        self.addCleanup(os.chdir, os.getcwd())
        error = batchfs.MountError("there is no FUSE", kind="no_fuse")
        no_mount = mock.patch.object(batchfs._mount, "mount", side_effect=error)  # pyright: ignore
        for settings in ({"config": "data/config.toml"}, {"set": {"splits.train.tokens": "data/train.bin"}, "batch_size": B, "block_size": T}):
            os.chdir(self.directory)
            kinds: Any = settings
            with batchfs.open(**kinds) as m:
                with no_mount, self.assertWarns(RuntimeWarning):
                    p = batchfs.open(**kinds)
                os.chdir("elsewhere")
                for opened in (m, p):
                    train = opened.split("train")
                    self.assertTrue((np.diff(train.read(1).x.astype(int), axis=1) == 1).all())
                    self.assertTrue(same(pickle.loads(pickle.dumps(train)).read(300), train.read(300)))

    def test_info_of_another_program(self) -> None:
        (self.directory / "train").mkdir()
        (self.directory / "train/info.json").write_text('{"fingerprint": ""}')
        self.assertRaisesRegex(batchfs.MountError, "no state.*name the directory of a split", batchfs.split, self.directory / "train")

    def test_info_of_another_version(self) -> None:
        """A sequence that the program cannot compare with that of the reader is rejected."""

        def mounted(seed: int) -> batchfs.Mount:
            return batchfs.mount(config=self.config, mountpoint=self.place, set={"splits.train.seed": seed})

        with mounted(1):
            newer, older = (batchfs.split(self.place / "train") for _ in range(2))
        newer.info["state"]["added"] = 7
        del older.info["state"]["join"]
        with mounted(2):
            for train, words in ((newer, "the state has an unknown key, added"), (older, "the state lacks join")):
                self.assertRaisesRegex(batchfs.ReadError, f"another sequence is mounted at .*: {words}\\. .*call split", train.read, 1)

    def test_missing_files(self) -> None:
        """An error says which file of a directory is missing."""
        (self.directory / "train").mkdir()
        info = self.directory / "train/info.json"
        with batchfs.mount(config=self.config, mountpoint=self.place) as m:
            info.write_bytes(Path(m.mountpoint, "train/info.json").read_bytes())
        train = batchfs.split(self.directory / "train")
        self.assertRaisesRegex(batchfs.ReadError, "has no sequence.bin, so another version of batchfs made the mount", train.read, 0)
        info.unlink()
        self.assertRaisesRegex(batchfs.ReadError, "batch 0 of .*: No such file or directory", train.read, 0)


class TestErrors(Place):
    def rejected(self, words: str, **args: Any) -> None:
        with self.assertRaisesRegex(batchfs.MountError, words):
            batchfs.mount(**args)

    def test_rejected(self) -> None:
        self.rejected("no such directory", data=self.directory / "none")
        self.rejected("batch_size: must be a whole number", config=self.config, batch_size=0)
        self.rejected("unknown key|must be one of", config=self.config, set={"memory.acces": "pread"})
        self.rejected("does not exist", config=self.config, mountpoint=self.directory / "none")
        self.rejected("is not empty", config=self.config, mountpoint=self.directory / "data")
        with batchfs.mount(config=self.config, mountpoint=self.place) as m:
            self.rejected("already mounted there; read that one, or end it with: batchfs unmount", config=self.config, mountpoint=self.place)
            with self.assertRaisesRegex(batchfs.MountError, 'no split "test"'):
                m.split("test")
            with self.assertRaisesRegex(batchfs.MountError, "rank: must be below world"):
                m.split("train", rank=3, world=3)
        with self.assertRaisesRegex(batchfs.MountError, "no batchfs is mounted there"):
            batchfs.split(self.place / "train")
        for path, why in (("~/batches", "mountpoint: ~ and variables are not expanded"), ("", "mountpoint: the path is empty")):
            with self.assertRaisesRegex(batchfs.ArgumentError, why):
                batchfs.mount(config=self.config, mountpoint=path)
        with self.assertRaisesRegex(batchfs.ArgumentError, "path: ~ and variables are not expanded"):
            batchfs.split("~/batches/train")
        with mock.patch.object(tempfile, "tempdir", str(self.directory / "none")):
            with self.assertRaisesRegex(batchfs.MountError, "set TMPDIR"):
                batchfs.mount(config=self.config)
        with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(self.directory / "none")}):
            with self.assertRaisesRegex(batchfs.Error, "none"):
                batchfs.mount(config=self.config)

    def test_changed_tokens(self) -> None:
        with batchfs.mount(config=self.config) as m:
            train, piped = m.split("train"), batchfs.Piped(["-c", self.config]).split("train")
            batch = train[1]
            self.assertTrue(same(piped[1], batch))
            np.ones(9000, np.uint16).tofile(self.directory / "new")
            os.rename(self.directory / "new", self.directory / "data/train.bin")
            with self.assertRaisesRegex(batchfs.ReadError, "batch 190 of .*train.bin.*(changed|token file).*mount again"):
                train.read(190)
            with self.assertRaisesRegex(batchfs.ReadError, "train.bin"):
                for k in range(2, 100_000):  # the pipe still holds batches of old tokens
                    piped.read(k)

    def test_dead_mount(self) -> None:
        m = batchfs.mount(config=self.config, mountpoint=self.place)
        train = m.split("train")
        first = train[0]
        keeper = next(p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_keeper(p, str(self.place)))
        os.kill(keeper, signal.SIGKILL)

        def read() -> tuple[bool, object]:
            train.read(199)
            train.close()
            return False, "batch 199"

        with self.assertRaisesRegex(batchfs.ReadError, "batch 199 .*Mount again"):
            waiting.until("an error", read)
        with self.assertRaisesRegex(batchfs.MountError, "ount again|unmount"):
            m.split("train", seed=1)
        m.close()
        self.assertFalse(self.mounted())
        with batchfs.mount(config=self.config, mountpoint=self.place) as m:
            self.assertTrue(same(m.split("train")[0], first))

    def test_errors_without_a_program(self) -> None:
        """If the program, which would explain an error, is missing, the error itself is reported."""
        train = batchfs.mount(config=self.config, mountpoint=self.place).split("train")
        with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(self.directory / "none")}):
            self.assertRaisesRegex(batchfs.MountError, "No such file.*none/train.*is a batchfs mounted there", batchfs.split, self.directory / "none/train")
            with mock.patch("os.preadv", side_effect=OSError(errno.EINVAL, "Invalid argument")):
                self.assertRaisesRegex(batchfs.ReadError, "batch 1 of .*: Invalid argument", train.read, 1)

    def killed(self, mountpoint: Path) -> batchfs.Mount:
        """Returns a mount whose supervisor was killed."""
        m = batchfs.mount(config=self.config, mountpoint=mountpoint)
        (keeper,) = (p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_keeper(p, str(mountpoint)))
        os.kill(keeper, signal.SIGKILL)
        return m

    def test_nothing_stays_mounted(self) -> None:
        """Whatever happened to the supervisor, nothing is mounted after close, or it raises an error."""
        parent = self.directory / "a b\\c\r\nd"
        (parent / "mnt").mkdir(parents=True)
        with self.killed(parent / "mnt"):
            parent.rename(self.directory / "moved\r\nd e")
        self.assertEqual([place for place in mounts() if place.startswith(str(self.directory))], [])
        with self.killed(self.place), mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(self.directory / "none")}):
            pass
        self.assertEqual([place for place in mounts() if place.startswith(str(self.directory))], [])
        m = self.killed(self.place)
        with mock.patch("batchfs._mount.run", return_value=(b"", Report("failed", "permission denied"))):
            words = f"{self.place} is still mounted: permission denied; as root, run: umount -l {self.place}"
            with self.assertRaisesRegex(batchfs.MountError, words), m:
                pass
            self.assertRaisesRegex(batchfs.MountError, words, m.close)
        self.assertTrue(self.mounted())
        m.close()
        self.assertFalse(self.mounted())
        m.close()

    @unittest.skipUnless(os.geteuid() == 0, "a namespace of processes needs root")
    def test_mounts_of_other_containers(self) -> None:
        """A process with the number of another container's supervisor has not made its mount."""
        self.need_namespaces()
        code = """
            import re
            from batchfs._mount import _mounted_by
            pids = re.findall(rb'batchfs:([0-9]+):', open('/proc/self/mountinfo', 'rb').read())
            print(sys.argv[1] in [place for pid in pids for place in _mounted_by(int(pid))], len(pids) > 0)
        """
        container = self.script("container", f'exec unshare --pid --fork --mount-proc {sys.executable} "$@"')
        with batchfs.mount(config=self.config, mountpoint=self.place):
            self.assertEqual(waiting.end(python(code, str(self.place))), ("True True\n", ""))
            with mock.patch.object(sys, "executable", str(container)):
                self.assertEqual(waiting.end(python(code, str(self.place))), ("False True\n", ""))

    def test_killed_before_it_is_ready(self) -> None:
        """If the program is killed between mounting and saying so, nothing stays mounted."""
        silent = self.script("silent", f'command=$1\nshift 3 # with --status-fd\nexec {program()} $command "$@"')
        (places := self.directory / "tmp").mkdir()

        def kill() -> None:
            def look() -> tuple[bool, object]:
                return any(place.startswith(str(places)) for place in mounts()), mounts()

            waiting.until("a mount", look)
            (place,) = places.iterdir()
            (keeper,) = (p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_keeper(p, str(place)))
            os.kill(keeper, signal.SIGKILL)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        with mock.patch.object(tempfile, "tempdir", str(places)), mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(silent)}):
            self.assertRaisesRegex(batchfs.MountError, "mount was killed by signal 9", batchfs.mount, config=self.config)
        waiting.join(thread)
        self.assertEqual([*places.iterdir()], [])

    def script(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def test_kinds(self) -> None:
        """Each kind of failure reaches Python, from a mount and from a pipe, with the program's message."""
        (self.directory / "odd.bin").write_bytes(b"123")
        Path(self.directory / "broken.toml").write_text("[batch")
        none, odd = str(self.directory / "none"), str(self.directory / "odd.bin")
        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("config", "batch_size: must be", {"config": self.config, "batch_size": 0}),
            ("config", "none: no such directory", {"data": none}),
            ("config", "none: no such file", {"config": none}),
            ("config", "broken.toml:1", {"config": self.directory / "broken.toml"}),
            ("data", "none: no such file", {"config": self.config, "set": {"splits.train.tokens": none}}),
            ("data", "odd.bin", {"config": self.config, "set": {"splits.train.tokens": odd}}),
            ("data", "fingerprint", {"config": self.config, "set": {"splits.train.expect_fingerprint": "0" * 32}}),
            ("mountpoint", "does not exist", {"config": self.config, "mountpoint": none}),
            ("mountpoint", "is not empty", {"config": self.config, "mountpoint": self.directory}),
        ]
        for kind, words, args in cases:
            with self.subTest(kind, words=words):
                self.failed(kind, words, batchfs.mount, **args)
                if kind != "mountpoint":
                    batch = {key: value for key, value in args.items() if key == "batch_size"}
                    piped = batchfs.Piped(flags(args.get("data"), args.get("config"), batch, args.get("set", {})))
                    self.failed(kind, words, piped.split, "train")
        with batchfs.mount(config=self.config, mountpoint=self.place) as m:
            self.failed("busy", "already mounted", batchfs.mount, config=self.config, mountpoint=self.place)
            for split in (m.split, batchfs.Piped(["-c", self.config]).split):
                self.failed("config", 'no split "test"', split, "test")
                self.failed("config", "unknown setting", split, "train", colour="red")
                self.failed("config", "rank: must be below world", split, "train", rank=3, world=3)
        self.failed("mountpoint", "no batchfs is mounted there", batchfs.split, self.place / "train")

    def failed(self, kind: str, words: str, call: Callable[..., object], *args: Any, **settings: Any) -> None:
        with self.assertRaisesRegex(batchfs.Error, words) as caught:
            call(*args, **settings)
        error = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(error), error.kind, str(error)), (batchfs.MountError, kind, str(caught.exception)))

    def test_no_descriptors(self) -> None:
        """A process that may open no more files gets a clear error, and prints nothing else."""
        code = """
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            for fd in range(3, 64):
                os.dup2(2, fd)
            for fd in range(59, 64):
                try:
                    batchfs.mount('data', mountpoint='mnt')
                except batchfs.MountError as e:
                    print(e)
                os.close(fd)
        """
        out, err = waiting.end(python(code))
        self.assertRegex(out, "^(the program could not be started: .* Too many open files.*\n){5}$")
        self.assertEqual(err, "")

    def test_programs_that_report_nothing(self) -> None:
        """A program of another version, and one that was killed, are clear errors."""
        old = self.script("old", 'echo "batchfs: unknown flag: --status-fd" >&2\nexit 1')
        killed = self.script("killed", "kill -KILL $$")
        for script, words in (
            (old, f"batchfs (mount|cat) ended with status 1 .*{old} crashed, or is of another version.*its log: batchfs: unknown flag: --status-fd"),
            (killed, r"batchfs (mount|cat) was killed by signal 9 \(Killed\)"),
        ):
            piped = batchfs.Piped(["-c", self.config]).split("train")
            with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(script)}):
                for call in (batchfs.mount, batchfs.open):
                    self.failed("failed", words, call, config=self.config)
                self.failed("failed", words, batchfs.Piped(["-c", self.config]).split, "train")
                self.assertRaisesRegex(batchfs.ReadError, words, piped.read, 0)
        # A program may be killed after it has written some batches.
        piped = batchfs.Piped(["-c", self.config]).split("train")
        piped.read(0)
        os.kill(piped.reader.cat.process.pid, signal.SIGKILL)  # pyright: ignore
        with self.assertRaisesRegex(batchfs.ReadError, r"batch \d+: batchfs cat was killed by signal 9"):
            for k in range(1, 100_000):
                piped.read(k)
        self.assertEqual(piped.read(5).x.shape, (B, T))

    def test_program_for_another_machine(self) -> None:
        """As in an environment on a file system that machines with other processors share."""
        foreign = self.script("foreign", "")
        foreign.write_bytes(b"\x7fELF" + bytes(100))
        words = f"{foreign} is damaged, or for machines of another kind: here, pip install --force-reinstall batchfs"
        piped = batchfs.Piped(["-c", self.config]).split("train")
        with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": str(foreign)}):
            for call in (batchfs.mount, batchfs.open):
                self.failed("failed", words, call, config=self.config)
            self.assertRaisesRegex(batchfs.ReadError, words, piped.read, 0)
            ended = subprocess.run([sys.executable, "-m", "batchfs", "version"], cwd=HERE.parents[1], capture_output=True, text=True, timeout=waiting.LIMIT)
            self.assertEqual((ended.returncode, ended.stderr[:9]), (1, "batchfs: "))
            self.assertRegex(ended.stderr, words)

    def test_names_of_programs(self) -> None:
        """A directory is no program, and a name without a slash is that of a file here, not of one on the PATH."""
        (self.directory / "bin/batchfs").mkdir(parents=True)
        here, other = self.script("batchfs", "exit 0"), self.script("other", "exit 0")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.directory)
        for path in ("bin/batchfs", "none"):
            with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": path, "PATH": str(self.directory)}):
                self.assertRaisesRegex(batchfs.MountError, f"BATCHFS_PROGRAM: {path} is no program", program)
        os.chdir(self.directory / "data")
        other.rename("batchfs")
        with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": "batchfs", "PATH": str(self.directory)}):
            self.assertEqual(program(), str(self.directory / "data/batchfs"))
        with mock.patch.dict(os.environ, {"BATCHFS_PROGRAM": "", "PATH": str(self.directory)}):
            with mock.patch("sysconfig.get_path", return_value=str(self.directory / "bin")):
                self.assertEqual(program(), str(here))

    def test_ignored_children(self) -> None:
        """The failures of programs reach a process that ignores SIGCHLD, for which the kernel keeps no exit statuses."""
        self.addCleanup(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        piped = batchfs.Piped(["-c", self.config])
        self.failed("config", 'no split "test"', piped.split, "test")
        train = piped.split("train")
        train.info["state"]["seed"] = -1
        self.assertRaisesRegex(batchfs.Error, "seed was 1337 and is -1", train.steps().load_state_dict, piped.split("train").steps(3).state_dict())

    def test_end_of_a_pipe(self) -> None:
        config = self.directory / "data/mixture.toml"
        source = 'name = "a"\ntokens = "train.bin"\nweight = 1\nmax_epochs = 0.1\n'
        config.write_text(f"[batch]\nbatch_size = {B}\nblock_size = {T}\n[[splits.train.sources]]\n{source}")
        train = batchfs.Piped(["-c", str(config)]).split("train")
        with self.assertRaisesRegex(batchfs.ReadError, "batch .* of train: no batch is left.*max_epochs") as caught:
            for _ in train.steps():
                pass
        self.assertEqual(caught.exception.kind, "end")

    def test_paths_are_no_reason_for_pipes(self) -> None:
        for name in ("fusermount3", "dev/fuse", "cannot mount x: no such device", "root may not mount", "batchfs.open"):
            missing = self.directory / name / "none"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertRaisesRegex(batchfs.MountError, re.escape(name), batchfs.open, missing)
                self.assertRaisesRegex(batchfs.MountError, "does not exist", batchfs.open, config=self.config, mountpoint=missing)

    def test_open_without_a_mount(self) -> None:
        with batchfs.open(config=self.config) as m:
            self.assertIsInstance(m, batchfs.Mount)
            want = m.split("train")[3]
            error = batchfs.MountError("there is no FUSE", kind="no_fuse")
            with mock.patch.object(batchfs._mount, "mount", side_effect=error):  # pyright: ignore
                with self.assertWarnsRegex(RuntimeWarning, "read from pipes, because there is no mount: there is no FUSE"):
                    with batchfs.open(config=self.config) as p:
                        self.assertIsInstance(p, batchfs.Piped)
                        self.assertTrue(same(p.split("train")[3], want))
        with self.assertRaisesRegex(batchfs.MountError, "no such directory"):
            batchfs.open(self.directory / "none")

    @unittest.skipUnless(os.geteuid() == 0, "hiding /dev/fuse needs root")
    def test_without_fuse(self) -> None:
        out, err = self.elsewhere(
            f"""
            with batchfs.open(config={self.config!r}) as p:
                for step, batch in p.split('train').steps(3, 5):
                    print(step, batch.x.shape)
            """,
            "(cd /dev/shm; mount -t tmpfs dev /dev; mkdir /dev/shm; mount --no-canonicalize --bind . /dev/shm); mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/urandom c 1 9",
        )
        self.assertEqual(out, f"3 ({B}, {T})\n4 ({B}, {T})\n", err)
        self.assertRegex(err, "RuntimeWarning: batches are read from pipes.*/dev/fuse.*here, batchfs.open.*to mount.*modprobe fuse")

    @unittest.skipUnless(os.geteuid() == 0, "giving up what root may needs root")
    def test_no_permission(self) -> None:
        out, err = self.elsewhere(
            f"""
            try:
                batchfs.mount(config={self.config!r})
            except batchfs.MountError as e:
                print(e.kind, e)
            with batchfs.open(config={self.config!r}) as p:
                print(p.split('train')[1].x.shape)
            os.chmod({str(self.directory / "data/mask.bin")!r}, 0)
            try:
                batchfs.open(config={self.config!r}).split('more')
            except batchfs.MountError as e:
                print(e)
            """,
            run="setpriv --bounding-set -all --inh-caps -all",
        )
        self.assertRegex(out, f"no_fuse root may not mount.*here, batchfs.open.*/dev/fuse.*\n\\({B}, {T}\\)\n.*mask.bin: permission denied", err)

    @unittest.skipUnless(os.geteuid() == 0, "a full disk needs root")
    def test_full_disk(self) -> None:
        """On a full disk, only making a mountpoint fails. The log is not lost, because it is in memory."""
        out, err = self.elsewhere(
            f"""
            import tempfile
            tempfile.tempdir = {str(self.directory / "full")!r}
            try:
                batchfs.mount(config={self.config!r})
            except batchfs.MountError as e:
                print(e)
            with batchfs.mount(config={self.config!r}, mountpoint={str(self.place)!r}) as m:
                print(m.split('train')[1].x.shape)
                print('mounted' in m.log())
            """,
            f"mkdir {self.directory}/full; mount -t tmpfs -o nr_inodes=1 none {self.directory}/full",
        )
        self.assertRegex(out, f"(?i)no space left on device.*set TMPDIR.*name a mountpoint\n\\({B}, {T}\\)\nTrue\n", err)

    def need_namespaces(self) -> None:
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, timeout=waiting.LIMIT).returncode != 0:
            self.skipTest("no mount namespace can be made, as in a chroot")

    def elsewhere(self, code: str, before: str = "true", run: str = "") -> tuple[str, str]:
        """Returns what Python prints in its own mount namespace, where the shell first runs ``before`` and ``run`` is a prefix of the command."""
        self.need_namespaces()
        program = self.directory / "python"
        program.write_text(f"#!/bin/sh\nexec unshare -m sh -c 'umount -al -t fuse.batchfs; {before}; exec {run} \"$0\" \"$@\"' {sys.executable} \"$@\"\n")
        program.chmod(0o755)
        with mock.patch.object(sys, "executable", str(program)):
            return waiting.end(python(code))

    def test_reads_in_parts(self) -> None:
        """Bytes that come in any parts fill all arrays, and too few are an error."""
        data = np.random.default_rng(1).integers(0, 256, 100, np.uint8)
        for part in (1, 7, 60, 100):
            for size in (100, 99):

                def read(to: list[memoryview], done: int) -> int:
                    left = data[done : min(done + part, size)].tobytes()
                    count = len(left)
                    for view in to:
                        n = min(len(view), len(left))
                        view[:n], left = left[:n], left[n:]
                    return count

                arrays = [memoryview(bytearray(40)), memoryview(bytearray(60))]
                first = read([*arrays], 0)
                if size < 100:
                    with self.assertRaisesRegex(OSError, "ended after 99 of 100"):
                        read_rest(read, arrays, first, 100)
                    continue
                read_rest(read, arrays, first, 100)
                self.assertEqual(b"".join(a.tobytes() for a in arrays), data.tobytes())


def state_of(pid: int) -> tuple[bool, str]:
    """Reports whether a process has ended, and returns its /proc/PID/stat."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError as e:
        return True, str(e)
    return " Z " in stat, stat


def is_keeper(pid: int, mountpoint: str) -> bool:
    try:
        args = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return False
    # Before a child of the supervisor executes its program, it has the same arguments.
    return b"mount" in args and mountpoint.encode() in args and parent == os.getpid()


if __name__ == "__main__":
    unittest.main()
