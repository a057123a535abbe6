"""Batches of conversations for nanochat's scripts/chat_sft.py, from a batchfs mount.

    python -m nanochat.chat_sft_data sft --max-seq-len 2048    writes the tokens, and sft/config.toml for the mount

docs/recipes.md has all commands, and the two lines of the script that use `generator`.
"""
import argparse
import sys
from pathlib import Path

import batchfs
from nanochat.dataloader import epoch_of, open_split

CONFIG = """\
[batch]
block_size = {T}    # each row holds whole conversations
rows = "packed"
bos = {bos}
mask_targets = "mask"
ignore_index = -1
dtype = "int32"
[splits.train]
tokens = "train.bin"
[splits.val]
tokens = "val.bin"
"""


def generator(script):
    """Returns a function to replace sft_data_generator_bos_bestfit in the script with these globals().

    It yields x, int32, and y, int64 and -1 where nothing is learned. With the split train, it sets last_step, approx_progress and
    current_epoch in the script. The progress of an epoch counts rows.
    """
    def batches(split):
        args = script["args"]
        found = open_split(script["tokenizer"], split, args.max_seq_len, "mask", batch_size=args.device_batch_size)
        rows = found.info["rows_per_epoch"]
        for k, batch in found.torch(script["device"]):
            if split == "train":
                seen = (k + 1) * args.device_batch_size * script["ddp_world_size"]
                limit = args.num_iterations  # micro-batches
                script["current_epoch"] = epoch_of(found, k)
                script["approx_progress"] = (k + 1) / limit if limit > 0 else min(seen / rows, 1.0)
                script["last_step"] |= seen >= rows or 0 < limit <= k + 1
            yield batch.x.int(), batch.y

    return batches


def prepare(out, tokenizer, T, conversations, truncate=False):
    """Writes conversations, by split, as token files with a mask, and the configuration of their mount."""
    with batchfs.writer(out, tokenizer=tokenizer.enc) as files:
        for split, each in conversations.items():
            for i in range(len(each)):
                ids, mask = tokenizer.render_conversation(each[i], max_tokens=T + 1 if truncate else sys.maxsize)
                if len(ids) > T + 1:
                    raise ValueError(
                        f"conversation {i} of {split} has {len(ids)} tokens, and a row holds {T + 1}: set a larger --max-seq-len, or "
                        "--truncate to cut it there"
                    )
                files.add(ids, mask=mask, split=split)
    Path(out, "config.toml").write_text(CONFIG.format(T=T, bos=tokenizer.get_bos_token_id()))


def main():
    from nanochat.tokenizer import get_tokenizer
    from tasks.common import TaskMixture
    from tasks.gsm8k import GSM8K
    from tasks.mmlu import MMLU
    from tasks.smoltalk import SmolTalk

    parser = argparse.ArgumentParser(description="Write the conversations of chat_sft.py as token files")
    parser.add_argument("out", help="a new directory")
    parser.add_argument("--max-seq-len", type=int, default=2048, help="T of the mount and of chat_sft.py")
    parser.add_argument("--truncate", action="store_true", help="cut conversations of more than T+1 tokens, instead of rejecting them")
    parser.add_argument("--mmlu-epochs", type=int, default=3, help="as in chat_sft.py")
    parser.add_argument("--gsm8k-epochs", type=int, default=4, help="as in chat_sft.py")
    args = parser.parse_args()
    train = [
        SmolTalk(split="train"),
        *[MMLU(subset="all", split="auxiliary_train") for _ in range(args.mmlu_epochs)],
        *[GSM8K(subset="main", split="train") for _ in range(args.gsm8k_epochs)],
    ]
    val = [SmolTalk(split="test"), MMLU(subset="all", split="test", stop=5200), GSM8K(subset="main", split="test", stop=420)]
    conversations = {"train": TaskMixture(train), "val": TaskMixture(val)}
    prepare(args.out, get_tokenizer(), args.max_seq_len, conversations, args.truncate)


if __name__ == "__main__":
    main()
