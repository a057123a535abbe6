#!/usr/bin/env python3
"""Fine-tune with TRL's SFTTrainer on packed documents with a loss mask. If it is killed, the same command resumes it.

    batchfs prepare chat.jsonl --mask prompt:0,completion:1 --by byte --format datatrove --out data
    # or, with the template of a model: python3 examples/prepare_chat.py ... --out data
    python3 examples/finetune_trl.py

The rows are packed and masked already, so TRL neither tokenizes nor packs them.
"""
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

import batchfs

# The tail of a document that is cut would train without its prompt. info["long_documents"] counts
# what is dropped: choose block_size accordingly.
documents = {"rows": "packed", "documents": True, "mask_targets": "mask", "too_long": "drop"}
train = batchfs.open("data", batch_size=4, block_size=128, dtype="int64", **documents).split("train", order="shuffle")


class BatchTrainer(SFTTrainer):
    # A generator runs only once the checkpoint is loaded. TRL's own loader would shuffle again.
    def get_train_dataloader(self):
        batches = train.torch(self.args.device)
        batches.load_state_dict(self.state.stateful_callbacks["Progress"]["attributes"]["batches"])
        # Earlier steps may have had another batch_size, accumulation or number of ranks.
        Progress.first = batches.step - self.state.global_step * self.args.gradient_accumulation_steps
        for _, batch in batches:
            # The rows become one, because the model uses positions to separate documents only if
            # the batch has a single row. It shifts labels itself, but y is already shifted.
            x, y, positions = (batch[name].reshape(1, -1) for name in ("x", "y", "positions"))
            labels = torch.nn.functional.pad(y[:, :-1], (1, 0), value=-100)
            yield {"input_ids": x, "labels": labels, "position_ids": positions.long()}


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
size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=train.info["vocab_size"], **size), attn_implementation="sdpa")
# For a model of the Hub, its own: AutoTokenizer.from_pretrained(name). TRL only saves it.
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"<|endoftext|>": 0}, [])), eos_token="<|endoftext|>")
args = SFTConfig(
    "checkpoints", max_steps=60, save_steps=20, logging_steps=1, ignore_data_skip=True,
    dataset_kwargs={"skip_prepare_dataset": True}, learning_rate=1e-3, bf16=False, report_to="none", disable_tqdm=True,
)
unread = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})  # TRL insists on a Dataset
trainer = BatchTrainer(model, args, train_dataset=unread, processing_class=tokenizer, callbacks=[Progress()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints"))
