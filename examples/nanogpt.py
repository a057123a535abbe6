# Replaces get_batch in nanoGPT's train.py, below data_dir. After a kill, resume with
# --init_from=resume.
import batchfs
mount = batchfs.open(data_dir, batch_size=batch_size, block_size=block_size, order="shuffle")
def batches(split, training):  # starts with the first next(), when iter_num is known
    while True:  # training reads each batch once; every evaluation reads the same ones
        start, stop = (iter_num * gradient_accumulation_steps, None) if training else (0, eval_iters)
        yield from mount.split(split).torch(device, start, stop)
streams = {key: batches(*key) for key in [("train", True), ("train", False), ("val", False)]}
def get_batch(split):
    step, batch = next(streams[split, model.training])
    return batch.x, batch.y
