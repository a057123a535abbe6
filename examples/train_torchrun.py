#!/usr/bin/env python3
"""Train on several GPUs, or processes, with DistributedDataParallel. If it is killed, the same command resumes it.

    batchfs mount -d --data data /mnt/batches        once on each host
    torchrun --nproc-per-node 2 examples/train_torchrun.py /mnt/batches/train
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import batchfs

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
dist.init_process_group(device_id=device if device.type == "cuda" else None)
rank, world = dist.get_rank(), dist.get_world_size()

# batch_size counts the rows of a rank. A step has the same 24 rows on 1, 2, 4 or 8 ranks.
train = batchfs.split(sys.argv[1], order="shuffle", batch_size=24 // world, block_size=64, rank=rank, world=world)
batches = train.torch(device, stop=60)

torch.manual_seed(1337)
V = train.info["vocab_size"]
model = torch.nn.Sequential(torch.nn.Embedding(V, 64), torch.nn.GELU(), torch.nn.Linear(64, V)).to(device)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

if os.path.exists("checkpoint.pt"):  # the state of batches is the same on all ranks
    checkpoint = torch.load("checkpoint.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    batches.load_state_dict(checkpoint["batches"])

for step, batch in batches:
    loss = F.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach_(), dist.ReduceOp.SUM)
    if rank == 0:
        print(f"step {step}: loss {loss.item() / world}", flush=True)
        if (step + 1) % 20 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": batches.state_dict()}
            torch.save(state, "checkpoint.tmp")
            os.replace("checkpoint.tmp", "checkpoint.pt")

dist.destroy_process_group()
