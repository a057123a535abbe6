"""Tests of batchfs.writer, with the real program as the reader. test/commands/python_test.go runs them."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import copy
import errno
import fcntl
import importlib
import importlib.util
import io
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import batchfs
from batchfs._program import run as run_program
from batchfs._tokenizer import Vocabulary, vocabulary
from tests import waiting

_EOT = 999


def document(i: int) -> list[int]:
    """Returns document i, whose length differs from those of its neighbors."""
    return [(7 * i + k) % _EOT for k in range(i * i % 23 + 1)]


def arrays(i: int) -> dict[str, Any]:
    n = len(document(i))
    return {"mask": [k % 2 == i % 2 for k in range(n)], "logits": np.reshape(np.arange(i, i + 3 * n).astype(np.float16), (n, 3))}


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def run(*args: str) -> str:
    out, why = run_program(*args, timeout=waiting.LIMIT)
    if why:
        raise AssertionError(f"{args}: {why}\n{out.decode()}")
    return out.decode()


def write_shard(directory: Path, i: int, n: int, count: int = 10, vocab_size: int = 1000) -> None:
    with batchfs.writer(directory, vocab_size=vocab_size, shard=(i, n), val=0.2 if n > 4 else 0.0, resume=True) as out:
        for k in range(i * count + out.documents, (i + 1) * count):
            out.add(document(k), mask=arrays(k)["mask"])


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


class Case(waiting.Case):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        self.data = self.root / "data"

    def refused(self, why: str, call: Callable[[], object], kind: type[batchfs.Error] = batchfs.Error) -> None:
        with self.assertRaisesRegex(kind, why):
            call()

    def write(self, directory: Path, documents: range, **settings: Any) -> None:
        with batchfs.writer(directory, vocab_size=1000, **settings) as out:
            for i in documents:
                out.add(document(i), **arrays(i))


class TestFiles(Case):
    imports_torch = True

    def test_same_bytes_as_prepare(self) -> None:
        lines = [{"p": "é" * (i % 5), "c": "word " * (i % 7 + 1)} for i in range(300)]
        text = self.root / "text.jsonl"
        text.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for options in ([], ["--mask", "p:0,c:1"], ["--mask", "p:0,c:1", "--shard-tokens", "500", "--format", "megatron"]):
            for eot in ("end", "begin"):
                made = self.root / f"{len(options)}{eot}"
                run("prepare", str(text), "--field", "c", "--by", "gpt2", "--val", "0", "--eot", eot, "--out", str(made), *options)
                found = json.loads((made / "vocab.json").read_text())
                limit = 500 if "megatron" in options else None
                tokens = [base64.b64decode(token) for token in found["token_bytes"]]
                ours = self.root / f"{made.name}-ours"
                with mock.patch("batchfs._writer.vocabulary", return_value=Vocabulary("gpt2", tokens, found["eot"])):
                    out = batchfs.writer(ours, tokenizer="gpt2", shard_tokens=limit)
                names = [path.name for path in made.glob("train*.bin") if "mask" not in path.name]
                for name in sorted(names):
                    ids = np.fromfile(made / name, np.uint16)
                    # Each document has the end-of-text token at one end.
                    at = np.flatnonzero(ids == found["eot"])
                    ends = at + 1 if eot == "end" else np.append(at[1:], len(ids))
                    masks = np.fromfile(made / name.replace(".bin", ".mask.bin"), np.uint8) if options else None
                    for start, end in zip([0, *ends], ends):
                        given: dict[str, Any] = {} if masks is None else {"mask": masks[start:end]}
                        out.add(ids[start:end], **given)
                out.close()
                theirs, mine = files(made), files(ours)
                a, b = (json.loads(of.pop("vocab.json")) for of in (theirs, mine))
                if limit:  # its index has another format
                    theirs, mine = ({name: raw for name, raw in of.items() if not name.endswith(("idx", "index"))} for of in (theirs, mine))
                    a["format"] = b["format"]
                self.assertEqual(theirs, mine)
                del a["run"], b["writer"]
                self.assertEqual(a, b)

    def test_arrays_reach_a_batch(self) -> None:
        self.write(self.data, range(200), shard_tokens=300)
        names = sorted(self.data.glob("train*.bin"))
        self.assertGreater(len(names), 9)
        run("check", "train", "--data", str(self.data), "--set", "batch.block_size=32")
        self.assertIn("    0 7 8 14 15 16 17 18 ", run("inspect", "train", "0", "--data", str(self.data), "--set", "batch.block_size=8", "--set", "batch.order=sequential"))
        with batchfs.mount(self.data, batch_size=2, block_size=32, order="sequential") as m:
            train = m.split("train")
            self.assertEqual(train.info["vocab_size"], 1000)
            tokens = np.concatenate([np.fromfile(name, np.uint16) for name in names if name.name.count(".") == 1])
            logits = np.concatenate([np.reshape(np.fromfile(name, np.float16), (-1, 3)) for name in names if "logits" in name.name])
            batch = train[1]
            self.assertEqual(batch.x.tolist(), np.reshape(tokens[64:128], (2, 32)).tolist())
            self.assertEqual(batch.y.tolist(), np.reshape(tokens[65:129], (2, 32)).tolist())
            self.assertEqual(batch.logits.tolist(), np.reshape(logits[65:129], (2, 32, 3)).tolist())

    def test_dtypes(self) -> None:
        for size, dtype in ((65_536, np.uint16), (65_537, np.uint32)):
            directory = self.root / str(size)
            with batchfs.writer(directory, vocab_size=size) as out:
                for ids in ([size - 1, 0], np.array([5, 6], np.int64)[::-1], (np.uint8(7), 8), np.array([9], ">u4")):
                    out.add(ids, weight=[0.5] * len(ids))
            self.assertEqual(np.fromfile(directory / "train.bin", dtype).tolist(), [size - 1, 0, 6, 5, 7, 8, 9])
            self.assertEqual(np.fromfile(directory / "train.bin.index", np.uint64).tolist(), [2, 4, 6, 7])
            self.assertEqual(np.fromfile(directory / "train.weight.bin", np.float64).tolist(), [0.5] * 7)

    @unittest.skipUnless(installed("torch"), "no torch")
    def test_bfloat16(self) -> None:
        torch: Any = importlib.import_module("torch")
        with batchfs.writer(self.data, vocab_size=9, shard_tokens=2) as out:
            for k in range(4):
                out.add(torch.tensor([k, k]), top8=torch.full((2, 8), k, dtype=torch.bfloat16))
            for other in (torch.ones((2, 8), dtype=torch.float16), np.ones((2, 8), np.uint16)):
                self.refused("but in the first document it is bfloat16", lambda: out.add([1, 1], top8=other), batchfs.ArgumentError)
        # A glob of the tokens also matches the files of this array.
        places: list[dict[str, Any]] = [{"data": self.data}, {"set": {"splits.train.tokens": f"{self.data}/train_*.bin"}}]
        for place in places:
            with batchfs.mount(batch_size=4, block_size=1, order="sequential", **place) as m:
                train = m.split("train")
                self.assertEqual(train.info["arrays"][-1]["dtype"], "bfloat16")
                self.assertEqual(torch.from_numpy(train[0].top8).view(torch.bfloat16).flatten().tolist(), [float(k) for k in range(4) for _ in range(8)])

    def test_end_of_text(self) -> None:
        """A reader may take end-of-text tokens for ends of documents only if that is what they are."""
        described = Vocabulary("small", [b""] * 10, 9)
        for documents, at, inside in (
            ([[1, 9], [9], [2, 3, 9]], "end", None),
            ([[9, 1], [9, 2]], "begin", None),
            ([[1, 9], [2]], "none", None),
            ([[1, 9, 2, 9], [3, 9]], "none", 1),  # turns that end with it
            ([[9, 1, 9]], "none", 1),
            ([[9, 1, 9, 2], [9, 9, 3]], "none", 2),
        ):
            directory = Path(tempfile.mkdtemp(dir=self.root))
            with mock.patch("batchfs._writer.vocabulary", return_value=described), batchfs.writer(directory, tokenizer="small") as out:
                for ids in documents:
                    out.add(ids)
            made = json.loads((directory / "vocab.json").read_text())
            self.assertEqual((made["eot_at"], made["splits"]["train"].get("eot_inside")), (at, inside), documents)

    def test_end_of_text_names(self) -> None:
        """The end-of-text token is the one that prepare takes."""
        names = ["<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"]
        for first in range(len(names)):
            ids = {name: i for i, name in enumerate(reversed(names[first:]))}

            class Tokenizer:
                __module__ = "tokenizers"

                def to_str(self) -> str:
                    added = [{"content": name, "id": i, "special": True} for name, i in ids.items()]
                    return json.dumps({"decoder": None, "pre_tokenizer": None, "added_tokens": added})

                def get_vocab(self) -> dict[str, int]:
                    return ids

            self.assertEqual(vocabulary(Tokenizer()).eot, ids[names[first]])

    def test_mask_ones(self) -> None:
        """The tokens with mask 1 are counted only where there is a mask."""
        with batchfs.writer(self.root / "weights", vocab_size=9) as out:
            out.add([1], weight=[0.5])
        with batchfs.writer(self.root / "masks", vocab_size=9) as out:
            out.add([1, 2], mask=[0, 1])
        found = [json.loads((self.root / name / "vocab.json").read_text())["splits"]["train"]["shards"][0] for name in ("weights", "masks")]
        self.assertEqual([shard.get("mask_ones") for shard in found], [None, 1])

    def test_val(self) -> None:
        self.write(self.data, range(1000), val=0.1)
        self.write(self.root / "half", range(500), val=0.1)
        splits = {name: json.loads((self.root / name / "vocab.json").read_text())["splits"] for name in ("data", "half")}
        self.assertTrue(60 < splits["data"]["val"]["documents"] < 140)
        whole, half = (np.fromfile(self.root / name / "val.bin", np.uint16) for name in ("data", "half"))
        self.assertEqual(whole[: len(half)].tolist(), half.tolist())  # more documents move none
        with batchfs.writer(self.root / "chosen", vocab_size=1000) as out:
            out.add([1], split="val")
            out.add([2])
        self.assertEqual((self.root / "chosen/val.bin").read_bytes(), b"\1\0")


class TestRefused(Case):
    def test_documents(self) -> None:
        out = batchfs.writer(self.data, vocab_size=100)
        out.add([1, 2], mask=[0, 1], weight=np.zeros((2, 3), np.float32))
        good: dict[str, Any] = {"mask": [1], "weight": np.zeros((1, 3), np.float32)}
        refused: list[tuple[Any, dict[str, Any], str]] = [
            ([3, -1], {}, "document 1 has the id -1 at position 1"),
            ([100], {}, "document 1 has the id 100 at position 0: ids must be from 0 to 99"),
            ([70_000], {}, "has the id 70000"),
            ([2**70], {}, "integers"),
            ([1.0], {}, "the ids of document 1 must be .* list of integers .got float64"),
            ([], {}, "non-empty"),
            ([[1]], {}, "one-dimensional"),
            (np.ma.masked_array([1, 2], [False, True]), {}, "ids that is a masked array"),
            ([[1], [2, 3]], {}, "cannot represent"),
            ("text", {}, "integers"),
            ([1], {"mask": [1, 0]}, r"array mask of shape \(2,\): must be \(1,\)"),
            ([1], {"mask": [2]}, "not 0 or 1"),
            ([1], {"mask": [0.5]}, "not 0 or 1"),
            ([1], {"mask": [[1]]}, r"array mask of shape \(1, 1\): must be \(1,\)"),
            ([1], {"weight": np.zeros((1, 2), np.float32)}, r"shape \(1, 2\): must be \(1, 3\)"),
            ([1], {"weight": np.zeros((1, 3))}, "of float64, but in the first document it is float32"),
            ([1], {"more": [1]}, "has the arrays .*more"),
            ([1], {"split": "test"}, "must be 'train' or 'val'"),
            ([1], {"split": ["val"]}, "must be 'train' or 'val'"),
        ]
        for ids, changed, why in refused:
            self.refused(why, lambda: out.add(ids, **{**good, **changed}), batchfs.ArgumentError)
        self.refused("but the first document has", lambda: out.add([1]), batchfs.ArgumentError)
        out.add([3], **good)  # nothing of the wrong ones was added
        out.close()
        self.assertEqual(np.fromfile(self.data / "train.bin", np.uint16).tolist(), [1, 2, 3])
        self.refused("this writer is closed", lambda: out.add([3], **good))

    def test_arguments(self) -> None:
        refused: list[tuple[dict[str, Any], str]] = [
            ({}, "give one of them"),
            ({"vocab_size": 0}, "vocab_size must be from 1"),
            ({"vocab_size": 9, "val": 1}, "val must be"),
            ({"vocab_size": 9, "val": "0.1"}, "val must be"),
            ({"vocab_size": 9, "shard": (2, 2)}, "number of the shard must be from 0 to 1"),
            ({"vocab_size": 9, "shard": 3}, r"shard must be \(i, n\)"),
            ({"vocab_size": 9, "shard": (1,)}, r"shard must be \(i, n\)"),
            ({"tokenizer": "gpt2"}, "tokenizer must be .*got a str.*vocab_size"),
        ]
        for settings, why in refused:
            self.refused(why, lambda: batchfs.writer(self.data, **settings), batchfs.ArgumentError)
        for name, value in (("x", 1), ("Mask", 1), ("a" * 33, 1), ("train", 1), ("my_val_2", 1), ("1_document", 1), ("mask", [1, 0, 0]), ("c", 1j)):
            out = batchfs.writer(self.data, vocab_size=9)
            given: dict[str, Any] = {name: [value]}
            why = {"mask": "shape", "c": "dtype complex128 .* dtypes are bool,"}.get(name, "cannot name an array")
            self.refused(why, lambda: out.add([1], **given), batchfs.ArgumentError)
            out.__exit__(ValueError)
        self.assertFalse(any(self.data.iterdir()))  # nothing is left

    def test_ends(self) -> None:
        refused: list[tuple[list[tuple[list[int], list[int]]], dict[str, Any], str]] = [
            ([], {}, "there are no documents"),
            ([([1, 2], [0, 0]), ([3], [0])], {}, "mask is 0 for all 3 tokens"),
            ([([1, 2], [0, 1])], {"val": 0.5}, r"val=0.5 of 1 documents leaves . tokens for train and . for val"),
        ]
        for documents, settings, why in refused:
            directory = Path(tempfile.mkdtemp(dir=self.root))
            out = batchfs.writer(directory, vocab_size=9, **settings)
            for ids, mask in documents:
                out.add(ids, mask=mask)
            self.refused(why, out.close)
            self.assertEqual([path.name for path in directory.iterdir()], [".prepare"] if documents else [])
            if documents:  # the way out that the message names
                with batchfs.writer(directory, vocab_size=9, resume=True, **settings) as out:
                    for i in range(20):
                        out.add([i % 8, 1], mask=[1, 0])
                self.assertTrue((directory / "train.bin").exists())

    @mock.patch("batchfs._workdir._LOCK_LIMIT", 0.1)
    def test_directories(self) -> None:
        for name in ("train.bin", "fineweb_val_000001.bin", "train.mask.bin", "vocab.json", "val_text_document.idx"):
            directory = self.root / name[:4] / name
            directory.parent.mkdir(exist_ok=True)
            directory.touch()
            self.refused(f"{name} already exists", lambda: batchfs.writer(directory.parent, vocab_size=9))
            self.assertEqual([path.name for path in directory.parent.iterdir()], [name])
            directory.unlink()
        work = self.data / ".prepare"
        work.mkdir(parents=True)
        (work / ".state.json").touch()
        self.refused("belongs to an unfinished batchfs prepare", lambda: batchfs.writer(self.data, vocab_size=9, resume=True))
        (work / ".state.json").rename(work / "mine")
        self.refused("contains mine, which batchfs did not create", lambda: batchfs.writer(self.data, vocab_size=9))
        (work / "mine").unlink()
        work.chmod(0o777)
        self.refused("others may write to it", lambda: batchfs.writer(self.data, vocab_size=9))
        work.rmdir()
        work.symlink_to(self.root)
        self.refused("Not a directory: [^:]*$", lambda: batchfs.writer(self.data, vocab_size=9))
        work.unlink()
        self.refused("upload the files", lambda: batchfs.writer("s3://bucket/data", vocab_size=9))
        for path, why in (("", "is empty"), ("~", "not expanded"), ("~/data", "not expanded"), ("$HOME/data", "not expanded"), ("/a/${B}", "not expanded")):
            self.refused(f"dir: .*{why}", lambda: batchfs.writer(path, vocab_size=9), batchfs.ArgumentError)
            self.refused(f"dir: .*{why}", lambda: batchfs.finish(path), batchfs.ArgumentError)
        for state in ("[]", "{", '{"settings": {}}'):
            work.mkdir(exist_ok=True)
            (work / ".writer.json").write_text(state)
            self.refused("not a state that this version", lambda: batchfs.writer(self.data, vocab_size=9, resume=True))
        shutil.rmtree(work)

        out = batchfs.writer(self.data, vocab_size=9)
        self.refused("another batchfs.writer or batchfs prepare is running", lambda: batchfs.writer(self.data, vocab_size=9))
        text = self.root / "text"
        text.write_text("text")
        _, failure = run_program("prepare", str(text), "--val", "0", "--out", str(self.data), timeout=waiting.LIMIT)
        self.assertIn("another batchfs prepare or batchfs.writer is running", str(failure))
        out.add([1])
        child = waiting.forked(self.refused, "belongs to process", lambda: out.add([1]))
        waiting.join(child)
        self.assertEqual(child.exitcode, 0)
        out.close()

    def test_checkpoint_while_waiting(self) -> None:
        """A prepare that ends while a writer waits for its lock may leave a checkpoint."""
        work = self.data / ".prepare"
        work.mkdir(parents=True)

        def prepare(path: str, fd: int, operation: int) -> None:
            (work / ".state.json").touch()
            fcntl.flock(fd, operation)

        with mock.patch("batchfs._workdir._lock", prepare):
            self.refused("belongs to an unfinished batchfs prepare", lambda: batchfs.writer(self.data, vocab_size=9, resume=True))
        self.assertEqual([path.name for path in work.iterdir()], [".state.json"])

    def test_threads(self) -> None:
        """Threads may share a writer: each document is written once, whole."""
        out = batchfs.writer(self.data, vocab_size=1000)
        with mock.patch("batchfs._writer._BUFFER", 10_000), concurrent.futures.ThreadPoolExecutor(8) as pool:
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            try:
                for done in [pool.submit(out.add, [i] * 20) for i in range(1000)]:
                    done.result()
            finally:
                sys.setswitchinterval(interval)
        out.close()
        tokens: Any = np.fromfile(self.data / "train.bin", np.uint16)
        self.assertEqual(sorted(tokens.reshape(-1, 20).tolist()), [[i] * 20 for i in range(1000)])
        self.assertEqual(out.documents, 1000)

    def test_copies(self) -> None:
        """A copy of a writer would write to the same files."""
        out = batchfs.writer(self.data, vocab_size=9)
        ways: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickle.dumps]
        for way in ways:
            self.assertRaisesRegex(TypeError, r"a writer cannot be copied .* its own writer\(", way, out)
        out.__exit__(ValueError)

    def test_not_closed(self) -> None:
        with self.assertWarnsRegex(RuntimeWarning, "was not closed, so its files are incomplete"):
            batchfs.writer(self.data, vocab_size=9)

    def test_interrupted_save(self) -> None:
        """A process that cannot write a whole tokenizer.json, or is killed meanwhile, leaves the previous one."""
        path, link = self.root / "tokenizer.json", self.root / "link.json"
        path.write_text("previous")
        link.symlink_to(path.name)
        code = """
            import resource
            class Tokenizer:
                def __init__(self, text): self.backend_tokenizer, self.text = self, text
                def to_str(self): return self.text
            batchfs.save_tokenizer(Tokenizer(sys.argv[2]), sys.argv[1])
            signal.signal(signal.SIGXFSZ, getattr(signal, sys.argv[3]))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
            batchfs.save_tokenizer(Tokenizer("x" * 10_000), sys.argv[1])
        """
        for action, words in (("SIG_IGN", "File too large"), ("SIG_DFL", "")):
            process = waiting.python(code, str(link), action, action)
            _, err = waiting.end(process)
            self.assertEqual(process.returncode, 1 if words else -signal.SIGXFSZ, err)
            self.assertIn(words, err)
            self.assertEqual((path.read_text(), link.is_symlink()), (action, True))
            self.assertEqual(len([*self.root.iterdir()]), 2 if words else 3)


class TestResume(Case):
    def test_exception(self) -> None:
        self.write(self.root / "want", range(300), val=0.1)
        for stop in (3, 50, 299):
            with self.assertRaises(KeyboardInterrupt), batchfs.writer(self.data, vocab_size=1000, val=0.1, resume=stop > 3) as out:
                for i in range(out.documents, stop):
                    out.add(document(i), **arrays(i))
                raise KeyboardInterrupt
            self.refused(f"unfinished work of {stop} documents: continue with resume=True", lambda: batchfs.writer(self.data, vocab_size=1000, val=0.1))
        for size, val, why in ((1000, 0.2, "started with val=0.1 .now 0.2.: pass"), (999, 0.1, "vocab_size=1000")):
            self.refused(why, lambda: batchfs.writer(self.data, vocab_size=size, val=val, resume=True))
        self.refused("writer of the whole directory", lambda: batchfs.finish(self.data))
        self.refused("writer of the whole directory", lambda: write_shard(self.data, 0, 1))
        with batchfs.writer(self.data, vocab_size=1000, val=0.1, resume=True) as out:
            self.assertEqual(out.documents, 299)
            self.refused("but in the first document it is float16", lambda: out.add([1], mask=[1], logits=np.zeros((1, 3))), batchfs.ArgumentError)
            out.add(document(299), **arrays(299))
        self.assertEqual(files(self.data), files(self.root / "want"))
        # A rerun of the program changes nothing.
        out = batchfs.writer(self.data, vocab_size=1000, val=0.1, resume=True)
        self.assertEqual(out.documents, 300)
        out.close()
        self.refused("is closed", lambda: out.add([1]))
        self.refused("already exists", lambda: batchfs.writer(self.data, vocab_size=1000, val=0.2, resume=True))
        self.assertEqual(files(self.data), files(self.root / "want"))

    def test_failed_write(self) -> None:
        """After a write that failed or was interrupted, the last checkpoint counts."""
        self.write(self.root / "want", range(100))
        for error, seen in ((KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, "No space left on device"), batchfs.Error)):
            directory = self.root / seen.__name__
            with self.assertRaises(seen), batchfs.writer(directory, vocab_size=1000) as out:
                for i in range(40):
                    out.add(document(i), **arrays(i))
                    out._due = 0 if i in (29, 39) else out._due  # pyright: ignore
                    if i == 39:
                        with mock.patch("os.fsync", side_effect=error):
                            out.add(document(40), **arrays(40))
            with batchfs.writer(directory, vocab_size=1000, resume=True) as out:
                self.assertEqual(out.documents, 31)
                for i in range(out.documents, 100):
                    out.add(document(i), **arrays(i))
            self.assertEqual(files(directory), files(self.root / "want"))

    def test_close_after_failure(self) -> None:
        """A writer that failed releases its directory when it is closed."""
        out = batchfs.writer(self.data, vocab_size=9)
        out._due = 0  # pyright: ignore
        with mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")), self.assertRaises(batchfs.Error):
            out.add([1])
        self.refused("an earlier write failed", out.close)
        with batchfs.writer(self.data, vocab_size=9, resume=True) as again:
            again.add([2])

    def test_files_of_others(self) -> None:
        """Files that appeared while no program was running are not replaced."""
        other, rename = self.data / "train.bin", os.rename

        def fail(old: str, new: str) -> None:
            if Path(new) == other:
                raise OSError(errno.EIO, "broken")
            rename(old, new)

        out = batchfs.writer(self.data, vocab_size=9)
        out.add([1, 2])
        with mock.patch("os.rename", fail):
            self.refused("broken: look at the disk, then continue with resume=True", out.close)
        other.write_bytes(b"precious")
        for _ in range(2):
            self.refused(f"{other} already exists: move it away", lambda: batchfs.writer(self.data, vocab_size=9, resume=True))
        self.assertEqual(other.read_bytes(), b"precious")
        other.unlink()
        self.assertEqual(batchfs.writer(self.data, vocab_size=9, resume=True).documents, 1)
        self.assertEqual(other.read_bytes(), bytes([1, 0, 2, 0]))

    def test_kill(self) -> None:
        """A writer that is killed at any moment continues to the same bytes."""
        n = 6000
        settings: dict[str, Any] = {"val": 0.1, "shard_tokens": 5000}
        self.write(self.root / "want", range(n), **settings)

        def write(told: Any) -> None:
            times = dict.fromkeys(("_FIRST_CHECKPOINT", "_CHECKPOINTS"), 0.002)
            with mock.patch.multiple("batchfs._writer", _BUFFER=20_000, **times):
                with batchfs.writer(self.data, vocab_size=1000, resume=True, **settings) as out:
                    told.send(out.documents)
                    for i in range(out.documents, n):
                        out.add(document(i), **arrays(i))
                        if i % 50 == 0:
                            told.send(i)

        rng, kills, safe = random.Random(1), 0, [0]
        while True:
            seen, told = multiprocessing.Pipe(False)
            process = waiting.forked(write, told)
            told.close()
            safe.append(waiting.message(seen))
            enough = kills >= 20 and len({*safe}) > 5
            if not enough:
                # Documents rather than seconds, because a busy machine may run the process for only
                # a few milliseconds in a second.
                with contextlib.suppress(EOFError):  # it has ended
                    for _ in range(rng.randrange(10)):
                        waiting.message(seen)
                process.join(rng.uniform(0, 0.01))
                process.kill()
            waiting.join(process)
            kills += process.exitcode == -signal.SIGKILL
            self.assertLess(kills, 300)
            self.assertIn(process.exitcode, (0, -signal.SIGKILL))
            self.assertGreaterEqual(safe[-1], safe[-2])
            if not (self.data / ".prepare").exists():
                self.assertEqual(files(self.data), files(self.root / "want"))
                if enough:
                    break
                shutil.rmtree(self.data)
                safe.append(0)

    def test_kill_while_finishing(self) -> None:
        """A rerun of a program while finish is incomplete changes nothing."""

        def killed(changes: int, call: Callable[..., object], *args: Any) -> None:
            """Calls a function in a process that is killed before it makes another change than the first ones."""
            left = changes

            def counted(change: Callable[..., object]) -> Callable[..., object]:
                def changed(path: str, *args: Any) -> None:
                    nonlocal left
                    left -= not path.endswith("json.new")
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    change(path, *args)

                return changed

            def run() -> None:
                functions = os.rename, os.remove, shutil.rmtree
                os.rename, os.remove, shutil.rmtree = map(counted, functions)  # pyright: ignore
                call(*args)

            process = waiting.forked(run)
            waiting.join(process)
            self.assertEqual(process.exitcode, -signal.SIGKILL)

        for i in range(5):
            write_shard(self.data, i, 5)
            write_shard(self.root / "shards", i, 5)
        batchfs.finish(self.root / "shards")
        want = files(self.root / "shards")
        for steps in (0, 1, 4, len(want)):  # the last kill is before the state is removed
            killed(steps, batchfs.finish, self.data)
            write_shard(self.data, 3, 5)  # a rerun of the program changes nothing
            self.refused("belongs to writers of shards", lambda: batchfs.writer(self.data, vocab_size=1000, resume=True))
        self.assertEqual([*files(self.data / ".prepare")], [".finish.json"])
        for _ in range(2):
            batchfs.finish(self.data)
            write_shard(self.data, 3, 5)
        self.assertEqual(files(self.data), want)


class TestShards(Case):
    def test_processes(self) -> None:
        n = 8
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            waiting.result(pool.starmap_async(write_shard, [(self.data, i, n, 100) for i in range(n)]))
        self.assertEqual([path.name for path in self.data.iterdir()], [".prepare"])
        self.refused("of shards", lambda: batchfs.writer(self.data, vocab_size=1000, resume=True))
        batchfs.finish(self.data)
        batchfs.finish(self.data)  # changes nothing
        run("check", "train", "val", "--data", str(self.data), "--set", "batch.block_size=32")
        found: list[list[int]] = []
        for i in range(n):  # document k is in one of the two splits of its shard
            for split in ("train", "val"):
                ids, ends = (np.fromfile(self.data / f"{split}_{i + 1:06d}.bin{end}", t) for end, t in (("", np.uint16), (".index", np.uint64)))
                found += [part.tolist() for part in np.split(ids, ends[:-1].astype(int))]
        self.assertEqual(sorted(found), sorted(document(k) for k in range(100 * n)))
        with batchfs.mount(self.data, batch_size=4, block_size=16, documents=True) as m:
            batch = m.split("train")[3]
            self.assertEqual(batch.x[:, 1:].tolist(), batch.y[:, :-1].tolist())
            self.assertEqual(batch.mask.shape, (4, 16))

    @mock.patch("batchfs._workdir._LOCK_LIMIT", waiting.LIMIT)
    def test_rerun(self) -> None:
        """A program that is run again after its end changes nothing, even if its processes run at the same time."""
        for _ in range(2):
            with multiprocessing.get_context("fork").Pool(8) as pool:
                waiting.result(pool.starmap_async(write_shard, [(self.data, i, 64) for i in range(64)]))
            batchfs.finish(self.data)
        self.assertEqual(json.loads((self.data / "vocab.json").read_text())["writer"]["documents"], [10] * 64)
        self.assertFalse((self.data / ".prepare").exists())

    def test_more_documents(self) -> None:
        """A complete shard accepts more documents, also if finish found that something is missing."""
        for i, masks in enumerate(([0, 0], [0])):
            with batchfs.writer(self.data, vocab_size=9, shard=(i, 2)) as out:
                for k, mask in enumerate(masks):
                    out.add([k + 1] * 2, mask=[mask] * 2, weight=[k] * 2)
        self.refused("mask is 0 for all 6 tokens.*add documents with resume=True", lambda: batchfs.finish(self.data))
        with batchfs.writer(self.data, vocab_size=9, shard=(0, 2), resume=True) as out:
            self.assertEqual(out.documents, 2)
            out.add([8, 8], weight=[3, 3], mask=[1, 1])  # in another order
        batchfs.finish(self.data)
        self.assertEqual(b"".join((self.data / f"train_{i:06d}.bin").read_bytes() for i in (1, 2, 3)), bytes([1, 0, 1, 0, 2, 0, 2, 0, 8, 0, 8, 0, 1, 0, 1, 0]))
        run("check", "train", "--data", str(self.data), "--set", "batch.block_size=1")

    @mock.patch("batchfs._workdir._LOCK_LIMIT", 0.1)
    def test_refused(self) -> None:
        work = self.data / ".prepare"
        self.refused("No such file or directory: [^:]*$", lambda: batchfs.finish(self.data))
        for i in (0, 1):
            write_shard(self.data, i, 4)
        self.refused("shards 2, 3 of 4 are missing or not complete: run", lambda: batchfs.finish(self.data))
        self.refused("has a complete shard of 10 documents: continue with resume=True, or remove", lambda: batchfs.writer(self.data, vocab_size=1000, shard=(1, 4)))
        write_shard(self.data, 2, 4)
        out = batchfs.writer(self.data, vocab_size=1000, shard=(3, 4))
        self.refused("is running there: .* or close it if it is a writer in this process", lambda: batchfs.finish(self.data))
        self.refused("is running there", lambda: write_shard(self.data, 3, 4))
        out.add([1], other=[1])
        out.__exit__(ValueError)
        self.refused("shard 3 of 4 is missing or not complete: run", lambda: batchfs.finish(self.data))
        with batchfs.writer(self.data, vocab_size=1000, shard=(3, 4), resume=True):
            pass
        self.refused("shards 0 and 3 were written with arrays=.*mask.* and .*other", lambda: batchfs.finish(self.data))
        shutil.rmtree(work / "shard_00003_of_00004")
        write_shard(self.data, 3, 4, vocab_size=1001)
        self.refused("shards 0 and 3 were written with vocab_size=1000 and 1001", lambda: batchfs.finish(self.data))
        (work / "shard_00003_of_00004").rename(work / "shard_00004_of_00005")
        self.refused("shards of 4 and of 5: remove those", lambda: batchfs.finish(self.data))


def published_files() -> list[Path]:
    """Returns the tokenizer.json files that .ci/tokenizers has downloaded; outside a soak, one of each kind, because each takes seconds."""
    found = [path for path in Path(sys.prefix).glob("*.json") if path.stem != "tekken" and ".config" not in path.name]
    return found if os.environ.get("BATCHFS_SOAK") == "1" else [path for path in found if path.stem in ("llama2", "olmo_1", "qwen3")]


@unittest.skipUnless(any(map(installed, ("tiktoken", "tokenizers", "sentencepiece"))), "there are no tokenizers")
class TestTokenizers(Case):
    texts = ["Hello, hello world", "naïve 中文 👍🏽", "a  b\n\n\tc", "\0\x7f"]

    def kinds(self) -> Iterator[tuple[str, Any, Callable[[str], list[int]], int | None]]:
        """Yields a name, a tokenizer, how it encodes, and its end-of-text token."""
        if installed("tiktoken"):
            tiktoken: Any = importlib.import_module("tiktoken")
            ranks = {bytes([b]): b for b in range(256)} | {b"he": 256, b"ll": 257}
            encoding: Any = tiktoken.Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 260})
            yield "tiktoken", encoding, encoding.encode_ordinary, 260
        if installed("sentencepiece"):
            sentencepiece: Any = importlib.import_module("sentencepiece")
            model = io.BytesIO()
            options: dict[str, Any] = {"vocab_size": 280, "byte_fallback": True, "add_dummy_prefix": False, "remove_extra_whitespaces": False, "minloglevel": 2}
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(["hello world a b c"]), model_writer=model, normalization_rule_name="identity", hard_vocab_limit=False, **options
            )
            pieces: Any = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
            yield "sentencepiece", pieces, pieces.encode, 2
        if not installed("tokenizers"):
            return
        module: Any = importlib.import_module("tokenizers")
        decoders, models, pre, trainers = module.decoders, module.models, module.pre_tokenizers, module.trainers
        level = module.Tokenizer(models.BPE())
        level.pre_tokenizer, level.decoder = pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre.ByteLevel.alphabet()
        level.train_from_iterator(["hello world"] * 9, trainers.BpeTrainer(special_tokens=["<|endoftext|>", "<unknown>"], initial_alphabet=alphabet))
        vocab = {f"<0x{b:02X}>": b for b in range(256)} | {"▁": 256, "a": 257, "b": 258, "▁a": 259, "</s>": 260, "▁▁": 261, "<eos>": 262}
        fallback = module.Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
        # Gemma 3 adds such tokens.
        fallback.add_tokens([module.AddedToken(text, normalized=False) for text in ("</s>", "▁▁")])
        fallback.add_special_tokens(["<eos>"])
        fallback.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
        fallback.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        for name, tokenizer in [("byte-level", level), ("byte fallback", fallback)]:
            encode, ids = self.encoder(tokenizer), tokenizer.get_vocab()
            yield name, tokenizer, encode, self.end_of_text(ids)
            if installed("transformers"):
                transformers: Any = importlib.import_module("transformers")
                yield name, transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="a"), encode, ids["a"]

    @staticmethod
    def encoder(tokenizer: Any) -> Callable[[str], list[int]]:
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    @staticmethod
    def end_of_text(ids: dict[str, int]) -> int | None:
        return next((ids[eot] for eot in ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "</s>") if eot in ids), None)

    def test_bytes(self) -> None:
        for name, tokenizer, encode, eot in self.kinds():
            with self.subTest(name, kind=type(tokenizer).__module__):
                self.check_bytes(tokenizer, encode, eot)

    def check_bytes(self, tokenizer: Any, encode: Callable[[str], list[int]], eot: int | None) -> None:
        found = vocabulary(tokenizer)
        self.assertEqual(found.eot, eot)
        prefix = b" " if b"".join(found.tokens[i] for i in encode("a")) == b" a" else b""
        for text in self.texts:
            self.assertEqual(b"".join(found.tokens[i] for i in encode(text)), prefix + text.encode())
        if type(tokenizer).__module__ == "tokenizers":
            a = tokenizer.token_to_id("a")  # at the beginning of a text, a space may be dropped
            for i, token in enumerate(found.tokens):
                self.assertEqual(tokenizer.decode([a, i], skip_special_tokens=False), "a" + token.decode(errors="replace"), i)

    @unittest.skipUnless(installed("tokenizers"), "there is no tokenizers")
    def test_published(self) -> None:
        """A manifest equals that of prepare, for the tokenizers of models. Each is loaded once, because that takes long."""
        module: Any = importlib.import_module("tokenizers")
        text = self.root / "text"
        text.write_text("Hello, hello world")
        for path in published_files():
            theirs, ours = self.root / path.stem, self.root / f"{path.stem}-ours"
            run("prepare", str(text), "--by", str(path), "--val", "0", "--eot", "none", "--out", str(theirs))
            tokenizer = module.Tokenizer.from_file(str(path))
            encode = self.encoder(tokenizer)
            with self.subTest(path.stem):
                self.check_bytes(tokenizer, encode, self.end_of_text(tokenizer.get_vocab()))
            if installed("transformers"):
                transformers: Any = importlib.import_module("transformers")
                tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
            with batchfs.writer(ours, tokenizer=tokenizer) as out:
                out.add(encode("Hello, hello world"))
            self.assertEqual((theirs / "train.bin").read_bytes(), (ours / "train.bin").read_bytes())
            a, b = (json.loads((made / "vocab.json").read_text()) for made in (theirs, ours))
            self.assertEqual(a["token_bytes"], b["token_bytes"])

    @unittest.skipUnless(installed("tokenizers") and installed("tiktoken"), "there is no tokenizers or tiktoken")
    def test_saved_tokenizer(self) -> None:
        tokenizers: Any = importlib.import_module("tokenizers")
        tiktoken: Any = importlib.import_module("tiktoken")
        published = Path(sys.prefix, "gpt35turbo.json")
        tokens = vocabulary(tokenizers.Tokenizer.from_file(str(published))).tokens[:100_256] if published.exists() else [bytes([b]) for b in range(256)]
        ranks = {token: i for i, token in enumerate(tokens)}
        self.assertNotIn(b"zqxj", ranks)
        whole = {b"zqxj": len(ranks)}  # no merge makes it
        nanochat = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        parts = [*"aZ1٣²!_ \n\t中é'", "  ", "\r\n", "12345", "'S", "ſ", "e\u0301", " word", "zqxj", "zqxjz", "<|bos|>", "👍🏽"]
        rng = random.Random(1)
        texts = ["".join(rng.choices(parts, k=rng.randint(1, 60))) for _ in range(300)]
        lines = self.root / "texts.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        path = self.root / "tokenizer.json"
        for name, pattern, more, special in [("nanochat", nanochat, whole, {"<|user|>": len(ranks) + 2, "<|bos|>": len(ranks) + 1}), ("cl100k", cl100k, {}, {"<|bos|>": len(ranks) + 9})]:
            with self.subTest(name):
                encoding: Any = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks={**ranks, **more}, special_tokens=special)
                batchfs.save_tokenizer(encoding, path)
                loaded = tokenizers.Tokenizer.from_file(str(path))
                self.assertEqual([loaded.token_to_id(named) for named in special], [*special.values()])
                for text in texts:
                    self.assertEqual(loaded.encode(text).ids, encoding.encode(text, allowed_special="all"))
                run("prepare", str(lines), "--by", str(path), "--eot", "begin", "--eot-token", "<|bos|>", "--val", "0", "--force", "--out", str(self.data))
                want = [i for text in texts for i in [special["<|bos|>"], *encoding.encode_ordinary(text)]]
                self.assertEqual(np.fromfile(self.data / "train.bin", "<u4" if published.exists() else "<u2").tolist(), want)
                copies = [loaded]
                if installed("transformers"):
                    transformers: Any = importlib.import_module("transformers")
                    copies.append(transformers.PreTrainedTokenizerFast(tokenizer_object=loaded))
                for copy in copies:
                    batchfs.save_tokenizer(copy, path)
                    self.assertEqual(tokenizers.Tokenizer.from_file(str(path)).encode(texts[0]).ids, encoding.encode(texts[0], allowed_special="all"))
        self.refused("got a Case", lambda: batchfs.save_tokenizer(Case(), path), batchfs.ArgumentError)

    @unittest.skipUnless(installed("tokenizers") and installed("tiktoken"), "there is no tokenizers or tiktoken")
    def test_saved_names(self) -> None:
        """Names of special tokens are ordinary text, even if the pattern does not split them and ids are left out."""
        tokenizers: Any = importlib.import_module("tokenizers")
        tiktoken: Any = importlib.import_module("tiktoken")
        ranks = {bytes([b]): b for b in range(256)} | {b"he": 256, b"ll": 257, b"hell": 258}
        path = self.root / "tokenizer.json"

        def encoding(special: dict[str, int], **more: int) -> Any:
            return tiktoken.Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks | {token.encode(): i for token, i in more.items()}, special_tokens=special)

        for special in {"<|bos|>": 259, "SEP": 260}, {"<|bos|>": 263, "SEP": 270}, {"<|bos|>": 260, "SEP": 259}:
            batchfs.save_tokenizer(encoding(special), path)
            loaded = tokenizers.Tokenizer.from_file(str(path))
            for text in "<|bos|>", "SEP", "hello <|bos|> SEP hell", "SEPSEP hell<|bos|>":
                for names in True, False:
                    loaded.encode_special_tokens = not names
                    self.assertEqual(loaded.encode(text).ids, encoding(special).encode(text, allowed_special="all" if names else set(), disallowed_special=()))
        self.refused("the token b'zqx', which no merges make", lambda: batchfs.save_tokenizer(encoding({"SEP": 270}, zqx=259), path), batchfs.ArgumentError)
        self.refused("the special token 'X', and an ordinary one", lambda: batchfs.save_tokenizer(encoding({"X": 259}), path), batchfs.ArgumentError)

    @unittest.skipUnless(installed("tokenizers"), "there is no tokenizers")
    def test_another_tokenizer(self) -> None:
        """Shards are joined only if equal texts have equal tokens in all of them."""
        module: Any = importlib.import_module("tokenizers")
        vocab = {"a": 0, "b": 1, "ab": 2, "ba": 3}
        kinds = [module.Tokenizer(module.models.BPE(vocab, merges)) for merges in ([("a", "b"), ("b", "a")], [("b", "a"), ("a", "b")])]
        same = module.Tokenizer.from_str(kinds[0].to_str())
        same.enable_padding()
        for i, tokenizer in enumerate((kinds[0], same, kinds[1])):
            with batchfs.writer(self.data, tokenizer=tokenizer, shard=(i, 3)) as out:
                out.add(tokenizer.encode("aba").ids)
        self.refused("shards 0 and 2 were written with different tokenizers", lambda: batchfs.finish(self.data))
        self.refused("another tokenizer: pass the same one", lambda: batchfs.writer(self.data, tokenizer=same, shard=(2, 3), resume=True))

    @unittest.skipUnless(installed("tiktoken"), "there is no tiktoken")
    def test_another_pattern(self) -> None:
        tiktoken: Any = importlib.import_module("tiktoken")
        ranks = {bytes([b]): b for b in range(256)}
        definitions = {
            vocabulary(tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)).definition
            for pattern in (".", "..") for special in ({}, {"<|a|>": 256}, {"<|b|>": 256})
        }
        self.assertEqual(len(definitions), 6)

    @unittest.skipUnless(installed("tokenizers"), "there is no tokenizers")
    def test_other_objects(self) -> None:
        module: Any = importlib.import_module("tokenizers")
        tokenizer = module.Tokenizer(module.models.BPE({"a": 0}, []))
        fast = type("Fast", (), {"__module__": "transformers.a", "backend_tokenizer": tokenizer, "name_or_path": "", "eos_token_id": None})
        processor = type("Processor", (), {"__module__": "transformers.a", "tokenizer": fast()})
        self.assertEqual(vocabulary(processor()).tokens, [b"a"])
        for other, why in ((module.Tokenizer(module.models.BPE()), "empty vocabulary"), (type("Model", (), {"__module__": "transformers.a"})(), "got a Model")):
            self.refused(why, lambda: vocabulary(other), batchfs.ArgumentError)


if __name__ == "__main__":
    unittest.main()
