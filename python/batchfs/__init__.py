"""Training batches by number, from token files, with exact resume.

A run mounts its data, reads batches in order, and unmounts at the end, whatever happens:

    import batchfs

    with batchfs.mount("data", batch_size=12, block_size=1024) as m:
        train = m.split("train", order="shuffle")          # rank and world as torchrun sets them
        for step, batch in train.steps(start):             # start: the number of batches read
            loss = train_step(batch.x, batch.y)            # NumPy arrays of shape (12, 1024)

    train = batchfs.split("/mnt/batches/train")            # an existing mount
    m = batchfs.open("data", batch_size=12)                # without /dev/fuse, reads a pipe

Batch k depends only on the tokens, the settings and k, so a checkpoint needs only the number of the next batch.

`Split` is a sequence: ``len(train)`` is the setting ``steps``, one epoch by default, ``train[k]`` is batch k. PyTorch's DataLoader, with
``batch_size=None``, and Grain's ``MapDataset.source`` accept it directly.

`Split.steps` returns an iterator with ``state_dict`` and ``load_state_dict``. A loop over a range that was read to its end, such as
``steps(0, 60)``, begins it again. PyTorch's DataLoader and StatefulDataLoader accept it as an iterable dataset; their workers divide the
numbers among themselves. Only the StatefulDataLoader can save the state of its workers. `Split.torch` returns tensors on a device.

`Split.metrics` returns how long this process has waited for batches, and what it has read, as numbers for a trainer's log.

`Batch` is a dict of arrays whose keys are also attributes: x and y; or tokens (``layout="tokens"``); or rows (``layout="rows"``); and
all other arrays of the split, such as mask, positions, cu_seqlens and source. Tokens have the dtype of their files, usually uint16,
unless ``dtype="int64"`` is set. NumPy has no bfloat16, so such numbers appear as uint16 with the same bits.

Every problem with data or the machine raises an `Error` whose text says what happened and what to do: `MountError` if there is no
mount to read from, `ReadError` if a batch cannot be read, `ArgumentError` if an argument is wrong. Its ``kind`` is for programs. Data known to be wrong is an error, never a batch.

`writer` makes token files from documents that a program has as ids, and `finish` joins those of several processes. `save_tokenizer`
writes a tokenizer.json for ``batchfs prepare``.

Threads may share a split, or an iterator over its steps, whose ``next`` gives each number to one of them. A process may fork while its
threads read, and the child may read too.

``python -m batchfs`` runs the program: ``python -m batchfs doctor``, ``prepare``, ``inspect`` and others.
"""

from typing import TYPE_CHECKING

from ._batch import Array, Batch
from ._errors import ArgumentError, Error, MountError, ReadError
from ._finish import finish
from ._pipe import Piped
from ._mount import Mount, mount, open, split
from ._split import Split
from ._steps import Steps
from ._tokenizer import save_tokenizer
from ._writer import Writer

writer = Writer

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
    "Writer",
    "finish",
    "mount",
    "open",
    "save_tokenizer",
    "split",
    "writer",
]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Returns the version of the installed package as ``__version__``. A clone that is not installed has none."""
        if name == "__version__":
            from importlib import metadata  # slow to import

            try:
                return metadata.version("batchfs")
            except metadata.PackageNotFoundError:
                pass
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
