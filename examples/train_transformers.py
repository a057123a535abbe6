#!/usr/bin/env python3
"""Train with Hugging Face's Trainer. If it is killed, the same command resumes it, without reading earlier batches.

    batchfs mount -d --data data /mnt/batches
    python3 examples/train_transformers.py /mnt/batches/train
"""
import sys

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

import batchfs

train = batchfs.split(sys.argv[1], order="shuffle", batch_size=4, block_size=64)


class BatchTrainer(Trainer):
    # Trainer's own loader would shuffle again, and begin at batch 0 if it resumed without skipping.
    # This one is a generator, so it runs only once the checkpoint is loaded.
    def get_train_dataloader(self):
        batches = train.torch(self.args.device)
        batches.load_state_dict(self.state.stateful_callbacks["Progress"]["attributes"]["batches"])
        # Earlier steps may have had another batch_size, accumulation or number of ranks.
        Progress.first = batches.step - self.state.global_step * self.args.gradient_accumulation_steps
        for _, batch in batches:
            yield {"input_ids": batch.x, "labels": batch.x}  # x as labels: the model shifts them


class Progress(TrainerCallback, ExportableState):  # a checkpoint holds its state
    batches = train.steps().state_dict()
    first = 0  # the number that the batch of step 0 would have with the current settings

    def on_step_end(self, args, state, control, **_):  # Trainer fetches batches in advance
        self.batches = train.steps(self.first + state.global_step * args.gradient_accumulation_steps).state_dict()

    def state(self):
        return {"args": {}, "attributes": {"batches": self.batches}}

    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            print(f"step {state.global_step - 1}: loss {logs['loss']}", flush=True)


set_seed(1337)
model = GPT2LMHeadModel(GPT2Config(vocab_size=train.info["vocab_size"], n_positions=64, n_embd=32, n_layer=2, n_head=2))
args = TrainingArguments(
    "checkpoints", max_steps=60, save_steps=20, logging_steps=1, gradient_accumulation_steps=2, ignore_data_skip=True,
    learning_rate=1e-3, report_to="none", disable_tqdm=True,
)
trainer = BatchTrainer(model, args, callbacks=[Progress()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
