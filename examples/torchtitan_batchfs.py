"""A data loader for torchtitan, 0.3 or its main branch, that reads a split of a mount. These lines of a
configuration select it:

    from torchtitan_batchfs import BatchfsDataLoader
    config.dataloader = BatchfsDataLoader.Config(split="/mnt/batches/train")
    config.validator.dataloader = BatchfsDataLoader.Config(split="/mnt/batches/val/order=sequential")

The mount has rows = "packed", documents = true and mask_targets = true.
"""
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.loss import IGNORE_INDEX

import batchfs

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ModuleNotFoundError:  # torchtitan 0.3
    from torchtitan.components.dataloader import BaseDataLoader


class BatchfsDataLoader(BaseDataLoader):
    """Each batch is a micro-batch of one data-parallel rank. The state is the same on all ranks, and
    any number of ranks with the same global batch continues it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        split: str
        """Path of the split in its mount; it may end with settings, such as order=shuffle"""
        repeat: bool = True
        """Whether to continue with further epochs. torchtitan's validator sets it."""
        infinite: bool = True
        """What the validator of torchtitan 0.3 sets instead of repeat"""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **sizes: Any) -> None:
        if "seq_len" in sizes:  # torchtitan 0.3
            rows, block_size = self.shape = sizes["local_batch_size"], sizes["seq_len"]
        else:
            tokens, block_size = sizes["num_tokens_per_batch"], sizes["max_context_length"]
            self.shape = (tokens,)  # one row after the other
            rows, rest = divmod(tokens, block_size)
            if rest or not rows:
                raise ValueError(
                    "num_tokens_per_microbatch_per_dp_rank must be a multiple of max_context_length, because a batch has whole rows "
                    f"(got {tokens} and {block_size})"
                )
        self.split = batchfs.split(config.split, rank=dp_rank, world=dp_world_size, batch_size=rows, block_size=block_size)
        info = self.split.info
        if not info["documents"] or not info["mask_targets"] or info["state"]["ignore_index"] != IGNORE_INDEX:
            raise ValueError(
                f"{config.split}: torchtitan needs the positions of documents, and targets of {IGNORE_INDEX} where nothing is learned: "
                'mount it with rows = "packed", documents = true, mask_targets = true and the default ignore_index'
            )
        self.steps = self.split.torch("cpu", stop=None if config.repeat and config.infinite else len(self.split))

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for _, batch in self.steps:
            # For torchtitan, a position of 0 begins a document, and so does each row.
            x, positions, y = (a.reshape(self.shape) for a in (batch.x, batch.positions.long(), batch.y))
            yield {"input": x, "positions": positions}, y

    def state_dict(self) -> dict[str, Any]:
        return self.steps.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps.load_state_dict(state_dict)

    def close(self) -> None:
        self.split.close()
