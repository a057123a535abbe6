#!/usr/bin/env python3
"""Train a sharded model (FSDP) with torchdata's StatefulDataLoader and distributed checkpoints (DCP).
If it is killed, the same command resumes it.

    batchfs mount -d --data data /mnt/batches        once on each host
    torchrun --nproc-per-node 2 examples/train_dcp.py /mnt/batches/train
"""
import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader

import batchfs

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()

# The workers of this iterable share the numbers. If they read the file next instead, batches would
# arrive in any order.
train = batchfs.split(sys.argv[1], order="shuffle", batch_size=12 // world, block_size=64, dtype="int64", rank=rank, world=world)
loader = StatefulDataLoader(train.steps(stop=60), batch_size=None, num_workers=2)

torch.manual_seed(1337)
V = train.info["vocab_size"]
model = torch.nn.Sequential(torch.nn.Embedding(V, 256), torch.nn.GELU(), torch.nn.Linear(256, V)).to(device)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def state():
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


if saved := sorted(Path("checkpoints").glob("*/.metadata")):  # .metadata is written last
    loaded = {**state(), "loader": b""}
    dcp.load(loaded, checkpoint_id=saved[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    loader.load_state_dict(pickle.loads(loaded["loader"]))

for step, batch in loader:
    loss = F.cross_entropy(model(batch["x"].to(device)).flatten(0, 1), batch["y"].to(device).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach_())
    if rank == 0:
        print(f"step {step}: loss {loss.item() / world}", flush=True)
    if (step + 1) % 20 == 0:
        # DCP loads only keys that exist already, and a loader has its keys only after its first
        # batch, so its state is pickled. It is the same on all ranks.
        dcp.save({**state(), "loader": pickle.dumps(loader.state_dict())}, checkpoint_id=f"checkpoints/{step + 1:08}")

dist.destroy_process_group()
