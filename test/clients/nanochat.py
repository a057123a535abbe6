"""Tests examples/nanochat, called the way nanochat's scripts call it: python3 nanochat.py -v"""

import itertools
import json
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))

import batchfs


def get_dist_info():
    env = os.environ
    if "RANK" not in env:
        return False, 0, 0, 1
    return True, int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"])


sys.modules["nanochat"] = types.ModuleType("nanochat")
sys.modules["nanochat"].__path__ = [str(ROOT / "examples/nanochat")]
sys.modules["nanochat.common"] = types.ModuleType("nanochat.common")
sys.modules["nanochat.common"].get_dist_info = get_dist_info

from nanochat.chat_sft_data import generator, prepare
from nanochat.dataloader import tokenizing_distributed_data_loader_bos_bestfit as val_loader
from nanochat.dataloader import tokenizing_distributed_data_loader_with_state_bos_bestfit as train_loader

BOS, VOCAB, T = 0, 1 << 15, 16
CPU = torch.device("cpu")
MOUNT = {"rows": "packed", "bos": BOS, "mask_targets": True, "ignore_index": -1, "dtype": "int32"}


class Encoding:
    __module__ = "tiktoken"
    name, n_vocab, _pat_str, _special_tokens = "test", VOCAB, "", {}

    def decode_single_token_bytes(self, token):
        return b"%d" % token


class Tokenizer:
    enc = Encoding()

    def get_bos_token_id(self):
        return BOS

    def get_vocab_size(self):
        return VOCAB

    def render_conversation(self, conversation, max_tokens=2048):
        ids, mask = conversation
        return ids[:max_tokens], mask[:max_tokens]


def write_documents(directory, lengths, splits=("train", "val")):
    """Writes documents in which each token is its own position, except the first, BOS. Returns the targets of an epoch."""
    targets, start = [], 0
    with batchfs.writer(directory, vocab_size=VOCAB) as files:
        for length in lengths:
            tokens = [*range(start + 1, start + length)]
            for split in splits:
                files.add([BOS, *tokens], split=split)
            targets += tokens
            start += length
    return targets


def in_rank(rank, world):
    return mock.patch.dict(os.environ, {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)})


def train(steps, rank=0, world=1, resume=None, save=None):
    """Trains like base_train, which fetches the next batch before it saves. Returns the rows of each step, and the state of step save."""
    with in_rank(rank, world):
        loader = train_loader(Tokenizer(), 8 // world, T, split="train", device=CPU, resume_state_dict=resume and json.loads(resume))
        x, y, state = next(loader)
    seen, saved = [], None
    for step in range(steps):
        if step == save:
            saved = json.dumps(state)
        rows = []
        for _ in range(2):  # gradient accumulation
            assert x.dtype == y.dtype == torch.int64 and x.shape == y.shape == (8 // world, T)
            rows += torch.cat((x, y), 1).tolist()
            x, y, state = next(loader)
        seen.append(rows)
    return seen, saved


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.data = directory.name + "/data"
        self.mountpoint = directory.name + "/mnt"
        os.mkdir(self.mountpoint)
        self.enterContext(mock.patch.dict(os.environ, {"NANOCHAT_BATCHES": self.mountpoint}))

    def mount(self, data=None, **settings):
        self.mounted = batchfs.mount(data, mountpoint=self.mountpoint, **settings)
        self.addCleanup(self.mounted.close)

    def refuses(self, text, call, *args):
        with self.assertRaisesRegex(batchfs.Error, text) as caught:
            call(*args)
        self.assertNotIn("\n", str(caught.exception))


class BaseTrain(Case):
    def setUp(self):
        super().setUp()
        self.targets = write_documents(self.data, [1, 2, T, T + 1, T + 2, 5 * T, *(7 * n % 61 + 1 for n in range(300))])
        self.mount(self.data, **MOUNT)

    def test_epoch(self):
        rows = batchfs.split(self.mountpoint + "/train", block_size=T).info["rows_per_epoch"]
        seen = list(itertools.chain(*train(rows // 16 + 1)[0]))
        self.assertEqual({row[0] for row in seen}, {BOS})
        self.assertCountEqual([y for row in seen[:rows] for y in row[T:] if y != -1], self.targets)
        loader = train_loader(Tokenizer(), 8, T, split="train", device=CPU)
        states = [state for _, _, state in itertools.islice(loader, rows // 8 + 2)]
        self.assertEqual([state["rg_idx"] for state in states], [8 * k for k in range(len(states))])
        self.assertEqual([state["epoch"] for state in states], [1 + 8 * k // rows for k in range(len(states))])

    def test_resume_on_other_ranks(self):
        want, saved = train(12, save=5)
        for world in 1, 2, 4:
            runs = [train(7, rank, world, resume=saved, save=3) for rank in range(world)]
            for step, rows in enumerate(want[5:]):
                self.assertCountEqual([row for seen, _ in runs for row in seen[step]], rows)
            states = {state for _, state in runs}
            self.assertEqual(len(states), 1, "the ranks save different states")
            self.assertEqual(train(4, resume=states.pop())[0], want[8:])

    def test_validation(self):
        loaders = [val_loader(Tokenizer(), 4, T, split="val", device=CPU) for _ in range(2)]
        batches = [[torch.cat(batch).tolist() for batch in itertools.islice(loader, 3)] for loader in loaders]
        self.assertEqual(*batches)
        self.assertNotEqual(*batches[0][:2])

    def test_refused_states(self):
        saved = train(1, save=0)[1]
        self.refuses("nanochat's own loader", train, 1, 0, 1, json.dumps({"pq_idx": 3, "rg_idx": 7, "epoch": 1}))
        self.refuses("block_size was 8 and is 16", train, 1, 0, 1, saved.replace(f'"block_size": {T}', '"block_size": 8'))
        self.mounted.close()
        write_documents(self.data + "2", [40] * 99)
        self.mount(self.data + "2", **MOUNT)
        self.refuses("fingerprint was .* and is", train, 1, 0, 1, saved)

    def test_refused_mounts(self):
        self.mounted.close()
        for key, value in {"rows": "document", "bos": -1, "mask_targets": False, "ignore_index": -100, "vocab_size": VOCAB + 1}.items():
            given = {k: v for k, v in {**MOUNT, key: value}.items() if v != -1 or k == "ignore_index"}
            if key == "mask_targets":
                del given["ignore_index"]
            self.mount(self.data, **given)
            self.refuses(f"{key} = .* instead of", train, 1)
            self.mounted.close()
        self.refuses("no batchfs is mounted there", train, 1)
        write_documents(self.data + "2", [40] * 99, ["train"])
        self.mount(self.data + "2", **MOUNT)
        self.refuses('no split "val"', next, val_loader(Tokenizer(), 4, T, split="val", device=CPU))
        with mock.patch.dict(os.environ, {"NANOCHAT_BATCHES": ""}):
            self.refuses("set NANOCHAT_BATCHES", train, 1)

    def test_mount_disappears(self):
        want = train(99)[0]
        loader = train_loader(Tokenizer(), 16, T, split="train", device=CPU)
        next(loader)
        self.mounted.close()
        got = [want[0]]
        with self.assertRaisesRegex(batchfs.ReadError, "^batch [0-9]+ of .*/train"):
            for x, y, _ in loader:  # the kernel has read ahead
                got.append(torch.cat((x, y), 1).tolist())
        self.assertEqual(got, want[: len(got)])


class ChatSFT(Case):
    def setUp(self):
        super().setUp()
        self.conversations, start = {"train": [], "val": []}, 1
        for n in range(400):
            ids = [BOS, *range(start, start + 2 + 5 * n % (T - 1))]
            start += len(ids)
            self.conversations["val" if n % 4 == 3 else "train"].append((ids, [0, *(ids[i] // 3 % 2 for i in range(1, len(ids) - 1)), 1]))

    def script(self, world=1, num_iterations=-1):
        """Returns what the generator uses of the globals of chat_sft.py."""
        args = types.SimpleNamespace(max_seq_len=T, device_batch_size=4, num_iterations=num_iterations)
        return {
            "args": args, "tokenizer": Tokenizer(), "device": CPU, "ddp_world_size": world,
            "last_step": False, "approx_progress": 0.0, "current_epoch": 1,
        }

    def test_epoch(self):
        """Each conversation and its mask appear whole, once per epoch."""
        prepare(self.data, Tokenizer(), T, self.conversations)
        self.mount(config=self.data + "/config.toml")
        for split, world in ("train", 1), ("train", 2), ("val", 1):
            found = []
            for rank in range(world):
                with in_rank(rank, world):
                    rows = batchfs.split(f"{self.mountpoint}/{split}").info["rows_per_epoch"]
                    script = self.script(world)
                    for k, (x, y) in enumerate(itertools.islice(generator(script)(split), -(-rows // (4 * world)))):
                        self.assertEqual((x.dtype, y.dtype), (torch.int32, torch.int64))
                        first = 4 * (k * world + rank)  # global row
                        found += [c for row in torch.cat((x, y), 1).tolist()[: max(rows - first, 0)] for c in conversations_of(row)]
                        ended = 4 * world * (k + 1) >= rows
                        want = (ended, min(4 * world * (k + 1) / rows, 1), 1) if split == "train" else (False, 0.0, 1)
                        self.assertEqual((script["last_step"], script["approx_progress"], script["current_epoch"]), want)
            self.assertCountEqual(found, self.conversations[split])

    def test_num_iterations(self):
        prepare(self.data, Tokenizer(), T, self.conversations)
        self.mount(config=self.data + "/config.toml")
        script = self.script(num_iterations=3)
        batches = generator(script)("train")
        for k in range(3):
            next(batches)
            self.assertEqual((script["last_step"], script["approx_progress"]), (k == 2, (k + 1) / 3))

    def test_refusals(self):
        long = [BOS, *range(5000, 5001 + T)], [0] + [1] * (T + 1)
        self.conversations["train"].append(long)
        with self.assertRaisesRegex(ValueError, f"conversation 300 of train has {T + 2} tokens"):
            prepare(self.data, Tokenizer(), T, self.conversations)
        prepare(self.data + "2", Tokenizer(), T, self.conversations, truncate=True)
        self.mount(config=self.data + "2/config.toml")
        script = self.script()
        batches = itertools.takewhile(lambda _: not script["last_step"], generator(script)("train"))
        found = [c for x, y in batches for row in torch.cat((x, y), 1).tolist() for c in conversations_of(row)]
        self.assertIn((long[0][:-1], long[1][:-1]), found)
        script["args"].max_seq_len = T - 1
        self.refuses(f"block_size = {T - 1} instead of {T}", next, generator(script)("train"))


def conversations_of(row):
    """Returns the conversations in a row, the T tokens of x and then of y. The last token of a conversation is always learned."""
    ids = row[:T] + [max(row[-1], BOS)]
    mask = [0, *(int(target != -1) for target in row[T:])]
    starts = [i for i, token in enumerate(ids) if token == BOS] + [T + 1]
    return [(ids[i:j], mask[i:j]) for i, j in itertools.pairwise(starts) if j - i > 1]


if __name__ == "__main__":
    unittest.main()
