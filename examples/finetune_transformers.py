#!/usr/bin/env python3
"""Fine-tune a Hugging Face model on packed documents with a loss mask. If it is killed, the same command resumes it.

    batchfs prepare chat.jsonl --mask prompt:0,completion:1 --by byte --format datatrove --out data
    # or, with the template of a model: python3 examples/prepare_chat.py ... --out data
    python3 examples/finetune_transformers.py

A row holds whole documents. Attention stays within each, and only completions count in the loss.
"""
import os

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig

import batchfs

# The tail of a document that is cut would train without its prompt. info["long_documents"] counts
# what is dropped: choose block_size accordingly.
documents = {"rows": "packed", "documents": True, "mask_targets": "mask", "too_long": "drop"}
train = batchfs.open("data", batch_size=4, block_size=128, dtype="int64", **documents).split("train", order="shuffle")
batches = train.torch(stop=60)

torch.manual_seed(1337)
# With its default cache, the model ignores that positions restart, and attends to earlier
# documents.
size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=train.info["vocab_size"], use_cache=False, **size)
# On a GPU, with bfloat16 weights, use "flash_attention_2" instead of "sdpa".
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(batches.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

if os.path.exists("checkpoint.pt"):
    checkpoint = torch.load("checkpoint.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    batches.load_state_dict(checkpoint["batches"])

for step, batch in batches:
    # flash_attention_2 needs all rows in one. When positions restart, it begins a new sequence, and
    # sdpa begins a new block of its mask.
    x, y, positions = (batch[name].reshape(1, -1) for name in ("x", "y", "positions"))
    logits = model(input_ids=x, position_ids=positions.long()).logits
    # y is already shifted, and -100 in prompts and at the end of a document. The model's own loss
    # would shift it again.
    loss = F.cross_entropy(logits[0], y[0])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item()}", flush=True)
    if (step + 1) % 20 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches.state_dict()}
        torch.save(state, "checkpoint.tmp")
        os.replace("checkpoint.tmp", "checkpoint.pt")
