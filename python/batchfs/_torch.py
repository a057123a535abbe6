"""Steps as tensors on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import torch

from ._batch import Array, Batch, BatchBuffer, BufferPool, parts, layouts
from ._errors import Error
from ._meter import clock
from ._split import Split
from ._steps import StepIterator

Tensors = Batch[torch.Tensor]

from_numpy: Callable[[Array], torch.Tensor] = torch.from_numpy  # pyright: ignore

_BUFFERS = 3  # one being filled, one being sent, and one that was sent
_SIGNED = {"uint16": torch.int16, "uint32": torch.int32, "uint64": torch.int64}
_BITS = {"bfloat16": "int16"}  # NumPy dtypes with the bits of dtypes that it lacks
_MASKS = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}


def steps(split: Split, device: torch.device | str | int | None, start: SupportsIndex, stop: SupportsIndex | None) -> TorchSteps:
    """Returns the iterator for `Split.torch`."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    kinds = {"cuda": CudaSteps, "cpu": CPUSteps}
    return kinds.get(device.type, TorchSteps)(split, device, start, stop)


class TorchSteps(StepIterator, Iterator[tuple[int, Tensors]]):
    """Iterator over (step, batch) with tensors on a device: see `Split.torch`. The caller owns each batch."""

    def __init__(self, split: Split, device: torch.device, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        super().__init__(split, start, stop)
        self.device = device
        self.bytes = split.layouts[-1].end
        # The default device may be another.
        self.host = torch.empty(self.bytes, dtype=torch.uint8, device="cpu")
        self.memory = BatchBuffer(split.layouts, self.host.numpy())

    def _begin_in(self, worker: Any) -> None:
        if self.device.type != "cpu":
            raise Error(
                f"the worker of a DataLoader cannot send batches to {self.device}: read train.torch() without a DataLoader, as it reads ahead "
                'by itself, or give the DataLoader train.torch("cpu")'
            )
        super()._begin_in(worker)

    def __next__(self) -> tuple[int, Tensors]:
        begun = clock()
        with self.lock:
            k = self.step + self.worker
            if k >= self._limit:
                k = self._at_limit(k)
            self.split.reader.fill(k, self.memory.buffers)
            tensors = self.send()
            # If sending fails or is interrupted, the next call sends the batch again.
            self.step += self.workers
            self.counter.add(k, begun, self.memory)
            return k, tensors

    def send(self) -> Tensors:
        """Returns the batch that was read, on the device."""
        return self.batch(self.host.to(self.device))

    def batch(self, raw: torch.Tensor) -> Tensors:
        """Returns the batch in raw, its bytes on the device. Tokens become int64; x and y are converted together."""
        batch: Tensors = Batch()
        for p in parts(self.split.layouts):
            is_tokens = p.name in ("y", "tokens")
            start, shape = (0, (2, *p.shape)) if p.name == "y" else (p.start, p.shape)
            dtype_name = _SIGNED.get(p.dtype_name) if is_tokens else None
            tensor = raw[start : p.end].view(dtype_name or getattr(torch, p.dtype_name)).view(shape)
            if is_tokens:
                tensor = tensor.to(torch.int64)
                if p.dtype_name in _MASKS:
                    tensor &= _MASKS[p.dtype_name]
            if p.name == "y":
                batch["x"], batch["y"] = tensor
            else:
                batch[p.name] = tensor
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        state = super().__getstate__()
        names = "step worker workers shared _begun _loaded _iterated _resumed _loops _is_again _limit"
        return type(self), (self.split, self.device, self.start, self.stop), {name: state[name] for name in names.split()}


class CPUSteps(TorchSteps):
    """TorchSteps on the CPU. NumPy converts tokens to int64, into memory that is reused once no tensor refers to it."""

    def __init__(self, split: Split, device: torch.device, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        super().__init__(split, device, start, stop)
        kinds = {p.name: "int64" if p.name in ("x", "y", "tokens") else _BITS.get(p.dtype_name, p.dtype_name) for p in split.layouts}
        self.wide = BufferPool(layouts({"arrays": [{"name": p.name, "dtype": kinds[p.name], "shape": p.shape} for p in split.layouts]}))

    def send(self) -> Tensors:
        arrays = self.wide.memory().batch()
        batch: Tensors = Batch()
        for p, (name, narrow) in zip(self.split.layouts, self.memory.arrays):
            np.copyto(arrays[name], narrow, casting="same_kind")
            batch[name] = from_numpy(arrays[name])
            if p.dtype_name in _BITS:
                batch[name] = batch[name].view(getattr(torch, p.dtype_name))
        return batch


class CudaSteps(TorchSteps):
    """TorchSteps that reads the next batch into pinned memory in advance, and sends it on its own stream."""

    def __init__(self, split: Split, device: torch.device, start: SupportsIndex, stop: SupportsIndex | None) -> None:
        super().__init__(split, device, start, stop)
        self.stream = torch.cuda.Stream(device)
        self.buffers = deque(_Buffer(split, self.bytes) for _ in range(_BUFFERS))
        self.sent: deque[tuple[int, Tensors, _Buffer]] = deque()

    def __next__(self) -> tuple[int, Tensors]:
        begun = clock()
        with self.lock:
            if self.sent and self.sent[0][0] != self.step:  # a state was loaded
                self.sent.clear()
            for k in range(self.step + len(self.sent), min(self.step + 2, self.stop)):
                try:
                    self.prefetch(k)
                except Exception:
                    if not self.sent:
                        raise
                    # The batch before k is delivered, and the next call tries k again.
            if not self.sent:
                self._at_limit(self.step)
            k, batch, buffer = self.sent.popleft()
            now = torch.cuda.current_stream(self.device)
            now.wait_event(buffer.sent)
            for tensor in batch.values():
                tensor.record_stream(now)  # the other stream allocated the memory
            self.step = k + 1
            self.counter.add(k, begun, buffer.memory)
            return k, batch

    def prefetch(self, k: int) -> None:
        """Reads batch k into the buffer that was sent longest ago, and sends it."""
        buffer = self.buffers[0]
        buffer.sent.synchronize()
        self.split.reader.fill(k, buffer.memory.buffers)
        with torch.cuda.stream(self.stream):
            batch = self.batch(buffer.host.to(self.device, non_blocking=True))
            buffer.sent = torch.cuda.Event()
            buffer.sent.record(self.stream)
        self.sent.append((k, batch, buffer))
        self.buffers.rotate(-1)


class _Buffer:
    """Pinned memory, and the event that marks the end of its last transfer."""

    def __init__(self, split: Split, size: int) -> None:
        self.host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.memory = BatchBuffer(split.layouts, self.host.numpy())
        self.sent = torch.cuda.Event()
