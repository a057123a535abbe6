#!/usr/bin/env python3
"""Train in plain PyTorch. If it is killed, the same command resumes it.

    batchfs prepare book.txt --by byte --out data
    python3 examples/train_torch.py
"""
import os

import torch
import torch.nn.functional as F

import batchfs

train = batchfs.open("data", batch_size=12, block_size=64).split("train", order="shuffle")
batches = train.torch(stop=60)  # on the GPU, if there is one

torch.manual_seed(1337)
V = train.info["vocab_size"]
model = torch.nn.Sequential(torch.nn.Embedding(V, 256), torch.nn.GELU(), torch.nn.Linear(256, V)).to(batches.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

if os.path.exists("checkpoint.pt"):
    checkpoint = torch.load("checkpoint.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    batches.load_state_dict(checkpoint["batches"])  # rejects other tokens and settings

for step, batch in batches:
    loss = F.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item()}", flush=True)
    if (step + 1) % 20 == 0:  # with dropout, save torch.get_rng_state() too
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches.state_dict()}
        torch.save(state, "checkpoint.tmp")
        os.replace("checkpoint.tmp", "checkpoint.pt")  # atomic: a kill leaves the previous one
