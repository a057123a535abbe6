#!/usr/bin/env python3
"""Train with Hugging Face's Trainer. The same command again resumes a run that was killed, without reading the batches before.

    batchfs mount -d --data data /mnt/batches
    python3 examples/train_transformers.py /mnt/batches/train
"""
import sys

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import batchfs

train = batchfs.split(sys.argv[1], order="shuffle", batch_size=4, block_size=64)


class BatchTrainer(Trainer):
    # Trainer's own loader would shuffle again, and begin at batch 0 if it resumed without skipping.
    # This one begins at the batch of the step. It is a generator, so it runs only once the
    # checkpoint is loaded.
    def get_train_dataloader(self):
        for _, batch in train.torch(self.args.device, self.state.global_step * self.args.gradient_accumulation_steps):
            yield {"input_ids": batch.x, "labels": batch.x}  # x as labels: the model shifts them


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            print(f"step {state.global_step - 1}: loss {logs['loss']}", flush=True)


set_seed(1337)
model = GPT2LMHeadModel(GPT2Config(vocab_size=train.info["vocab_size"], n_positions=64, n_embd=32, n_layer=2, n_head=2))
args = TrainingArguments(
    "checkpoints", max_steps=60, save_steps=20, logging_steps=1, gradient_accumulation_steps=2, ignore_data_skip=True,
    learning_rate=1e-3, report_to="none", disable_tqdm=True,
)
trainer = BatchTrainer(model, args, callbacks=[Print])
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
