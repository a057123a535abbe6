# In nanoGPT's train.py, in place of get_batch, below data_dir. A run that was killed resumes with --init_from=resume.
import batchfs
mount = batchfs.open(data_dir, batch_size=batch_size, block_size=block_size, order="shuffle")
def batches(split, training):  # begins when its first batch is asked for: iter_num is that of the checkpoint by then
    while True:  # training reads each batch once, and each evaluation the same ones
        start, stop = (iter_num * gradient_accumulation_steps, None) if training else (0, eval_iters)
        yield from mount.split(split).torch(device, start, stop)
streams = {key: batches(*key) for key in [("train", True), ("train", False), ("val", False)]}
def get_batch(split):
    step, batch = next(streams[split, model.training])
    return batch.x, batch.y
