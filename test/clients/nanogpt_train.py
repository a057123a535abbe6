"""Trains the way nanoGPT's train.py does, with get_batch from a file: nanogpt_train.py GET_BATCH"""

import os
import sys

import torch
from torch.nn import functional

data_dir, device, batch_size, block_size = "data", "cpu", 4, 32
gradient_accumulation_steps, eval_iters, eval_interval, max_iters = 2, 3, 20, 60

with open(sys.argv[1]) as f:
    exec(f.read())

torch.manual_seed(1337)
iter_num = 0
model = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.GELU(), torch.nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if os.path.exists("ckpt.pt"):
    checkpoint = torch.load("ckpt.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]


def loss_of(x, y):
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate():
    model.eval()
    for split in "train", "val":
        losses = [loss_of(*get_batch(split)).item() for _ in range(eval_iters)]
        print(f"step {iter_num} {split}: loss {sum(losses)}")
    model.train()


batch = get_batch("train")
while iter_num < max_iters:
    if iter_num % eval_interval == 0:
        evaluate()
        if iter_num:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, "ckpt.tmp")
            os.replace("ckpt.tmp", "ckpt.pt")
    for _ in range(gradient_accumulation_steps):
        loss = loss_of(*batch) / gradient_accumulation_steps
        batch = get_batch("train")
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {iter_num}: loss {loss.item()}", flush=True)
    iter_num += 1
