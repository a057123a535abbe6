#!/usr/bin/env python3
"""Train with JAX, Grain and Orbax. If it is killed, the same command resumes it.

    batchfs prepare book.txt --by byte --out data
    python3 examples/train_jax.py
"""
import os

import grain
import jax
import optax
import orbax.checkpoint as ocp

import batchfs

# steps is the length of the whole run. With .repeat(), each epoch would have the order of the
# first.
train = batchfs.open("data", batch_size=12, block_size=64).split("train", order="shuffle", steps=60)
batches = iter(grain.MapDataset.source(train).map(lambda batch: (batch.x, batch.y)).to_iter_dataset())

V = train.info["vocab_size"]
keys = jax.random.split(jax.random.key(1337))
params = {"embed": jax.random.normal(keys[0], (V, 256)), "out": jax.random.normal(keys[1], (256, V)) / 16}
optimizer = optax.adamw(1e-3)
state = {"params": params, "optimizer": optimizer.init(params)}


@jax.jit
def train_step(state, x, y):
    def loss_of(params):
        logits = jax.nn.gelu(params["embed"][x]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}, loss


checkpoints = ocp.CheckpointManager(os.path.abspath("checkpoints"))
begin = checkpoints.latest_step() or 0
if begin:
    restore = ocp.args.Composite(state=ocp.args.StandardRestore(state), batches=grain.checkpoint.CheckpointRestore(batches))
    state = checkpoints.restore(begin, args=restore)["state"]

for step, (x, y) in enumerate(batches, begin):
    state, loss = train_step(state, x, y)
    print(f"step {step}: loss {loss.item()}", flush=True)
    if (step + 1) % 20 == 0:
        save = ocp.args.Composite(state=ocp.args.StandardSave(state), batches=grain.checkpoint.CheckpointSave(batches))
        checkpoints.save(step + 1, args=save)

checkpoints.wait_until_finished()
