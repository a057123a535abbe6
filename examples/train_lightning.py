#!/usr/bin/env python3
"""Train with Lightning. If it is killed, the same command resumes it.

    batchfs mount -d --data data /mnt/batches
    python3 examples/train_lightning.py /mnt/batches/train
"""
import sys

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint

import batchfs


class Batches(L.LightningDataModule):
    state = None
    first = 0  # the number that the batch of step 0 would have with the current settings

    def setup(self, stage):
        t = self.trainer
        self.train = batchfs.split(sys.argv[1], order="shuffle", batch_size=12, block_size=64, rank=t.global_rank, world=t.world_size)

    # The state is loaded before the first batch is requested. A generator has no sampler that
    # Lightning could replace on several GPUs.
    def train_dataloader(self):
        batches = self.train.torch(self.trainer.strategy.root_device)
        if self.state:
            batches.load_state_dict(self.state)
        # Earlier steps may have had another batch_size, accumulation or number of devices.
        self.first = batches.step - self.trainer.global_step * self.trainer.accumulate_grad_batches
        for _, batch in batches:
            yield batch

    # Lightning fetches a batch in advance, so the state of these batches would be one batch ahead.
    # global_step is right.
    def state_dict(self):
        return self.train.steps(self.first + self.trainer.global_step * self.trainer.accumulate_grad_batches).state_dict()

    def load_state_dict(self, state):
        self.state = state


class Model(L.LightningModule):
    def __init__(self, V):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(V, 256), torch.nn.GELU(), torch.nn.Linear(256, V))

    def training_step(self, batch):
        loss = F.cross_entropy(self.layers(batch.x).flatten(0, 1), batch.y.flatten())
        print(f"step {self.global_step}: loss {loss.item()}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(1337)
saved = ModelCheckpoint("checkpoints", every_n_train_steps=20, save_last=True)
trainer = L.Trainer(max_steps=60, callbacks=[saved], logger=False, enable_progress_bar=False)
# Processes do not know their ranks yet, and the vocabulary is the same on all of them.
V = batchfs.split(sys.argv[1], rank=0, world=1).info["vocab_size"]
trainer.fit(Model(V), datamodule=Batches(), ckpt_path="last")
