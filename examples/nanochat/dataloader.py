"""Replaces nanochat/dataloader.py: reads the batches of a batchfs mount, whose path is in NANOCHAT_BATCHES.

docs/recipes.md has the commands, and the configuration of the mount.
"""
import json
import os

import batchfs
from nanochat.common import get_dist_info

PRINTED = ("epoch", "pq_idx", "rg_idx")  # what nanochat prints of a state


def tokenizing_distributed_data_loader_with_state_bos_bestfit(
    tokenizer, B, T, split,
    tokenizer_threads=4, tokenizer_batch_size=128,
    device="cuda", resume_state_dict=None,
    buffer_size=1000
):
    """Yields x and y, int64 of shape (B, T) on the device, and the state of the run before that batch.

    nanochat fetches the next batch before it saves, so a run that resumes begins with the batch of the state. y is -1 if the token is
    in another document than x, or is padding. In a state, pq_idx is the number of the batch, and rg_idx the global number of its
    first row. tokenizer_threads, tokenizer_batch_size and buffer_size have no effect, because the tokens exist.
    """
    batches = open_split(tokenizer, split, T, True, batch_size=B, block_size=T)
    steps = batches.torch(device)
    if resume_state_dict is not None:
        saved = {key: value for key, value in resume_state_dict.items() if key not in PRINTED}
        if not saved:
            raise batchfs.ArgumentError(
                "the checkpoint's loader state is that of nanochat's own loader and names no row of a mount: resume with the loader that "
                "saved it, or begin a new run"
            )
        steps.load_state_dict(saved)
    while True:
        state = steps.state_dict()
        epoch = epoch_of(batches, state["step"])
        _, batch = next(steps)
        yield batch.x, batch.y, {**state, "epoch": epoch, "pq_idx": state["step"], "rg_idx": state["row"]}


def tokenizing_distributed_data_loader_bos_bestfit(*args, **kwargs):
    """Yields x and y without the state."""
    for x, y, _ in tokenizing_distributed_data_loader_with_state_bos_bestfit(*args, **kwargs):
        yield x, y


def open_split(tokenizer, split, T, mask_targets, **settings):
    """Returns this rank's split of the mount, in random order to train and in sequential order to validate.

    Raises batchfs.MountError if there is none, or if its rows are not those that nanochat expects of this tokenizer.
    """
    if not (mount := os.environ.get("NANOCHAT_BATCHES")):
        raise batchfs.MountError("set NANOCHAT_BATCHES to the path of a mount")
    _, rank, _, world = get_dist_info()
    order = "shuffle" if split == "train" else "sequential"
    found = batchfs.split(f"{mount}/{split}", rank=rank, world=world, order=order, dtype="int32", **settings)
    want = {
        "rows": "packed", "layout": "xy", "block_size": T, "bos": tokenizer.get_bos_token_id(), "mask_targets": mask_targets,
        "ignore_index": -1, "vocab_size": tokenizer.get_vocab_size(),
    }
    has = {**found.info["state"], **found.info}
    wrong = [f"{key} = {json.dumps(value)} instead of {json.dumps(has.get(key))}" for key, value in want.items() if has.get(key) != value]
    if wrong:
        raise batchfs.MountError(f"{mount}/{split} does not fit nanochat and its tokenizer: it needs {', '.join(wrong)}")
    return found


def epoch_of(batches, k):
    """Returns the epoch, counted from 1, in which the global batch k of a split begins."""
    return 1 + k * batches.info["batch_size"] * batches.info["world"] // batches.info["rows_per_epoch"]
