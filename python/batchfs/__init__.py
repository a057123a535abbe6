"""Training batches by number, from token files, with resume that is exact.

A run mounts its data, reads batches in order, and unmounts at the end, whatever happens:

    import batchfs

    with batchfs.mount("data", batch_size=12, block_size=1024) as m:
        train = m.split("train", order="shuffle")          # rank and world from RANK and WORLD_SIZE
        for step, batch in train.steps(start):             # start: the steps that are done
            loss = train_step(batch.x, batch.y)            # NumPy arrays of shape (12, 1024)

    train = batchfs.split("/mnt/batches/train")            # a mount that is there already
    m = batchfs.open("data", batch_size=12)                # mounts if it can, and else reads a pipe

Batch k is a function of the tokens, the settings and k, so the number of the next step is all there is to save.

`Split` is a sequence: ``len(train)`` is the number of batches of an epoch, ``train[k]`` is batch k. PyTorch's DataLoader, with
``batch_size=None``, and Grain's ``MapDataset.source`` take it as it is.

`Split.steps` is an iterator with ``state_dict`` and ``load_state_dict``. PyTorch's DataLoader and StatefulDataLoader take it as an
iterable dataset; their workers share the numbers, and none is read twice. Only the StatefulDataLoader knows the state
of its workers. `Split.torch` gives tensors on a device.

`Batch` is a dict of arrays whose keys are also attributes: x and y; or tokens (``layout="tokens"``); or rows (``layout="rows"``); and
all others that the split has, such as mask, positions, cu_seqlens and source. Tokens have the dtype of their files (uint16 for most),
or ``dtype="int64"``. bfloat16 numbers are uint16 in NumPy, which shows their bits.

What can go wrong with data or a machine is an `Error`, whose text says what happened and what to do: `MountError` when there is no mount
to read from, `ReadError` when a batch cannot be read, `ArgumentError` when an argument is wrong. Wrong data never looks like a batch.

Threads may share a split, or an iterator over its steps, which then gives each number to one of them. A process may fork while
its threads read, and the child may read too.

``python -m batchfs`` runs the program: ``python -m batchfs doctor``, ``prepare``, ``inspect`` and others.
"""

from ._batch import Array, Batch
from ._pipe import Piped
from ._mount import Mount, mount, open, split
from ._program import ArgumentError, Error, MountError, ReadError
from ._split import Split, Steps

__all__ = [
    "ArgumentError",
    "Array",
    "Batch",
    "Error",
    "Mount",
    "MountError",
    "Piped",
    "ReadError",
    "Split",
    "Steps",
    "mount",
    "open",
    "split",
]
