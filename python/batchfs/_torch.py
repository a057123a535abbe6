"""Steps as tensors on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ._batch import Batch, Memory, Place, parts
from ._split import Position, Split

Tensors = Batch[torch.Tensor]

_BUFFERS = 3  # one is filled, one is sent, and one was sent
_TOKENS = ("y", "tokens")
_SIGNED = {"uint16": torch.int16, "uint32": torch.int32, "uint64": torch.int64}
_MASKS = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}


def steps(split: Split, device: torch.device | str | None, start: int, stop: int | None) -> TorchSteps:
    """Returns what `Split.torch` does."""
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return (CudaSteps if device.type == "cuda" else TorchSteps)(split, device, start, stop)


class TorchSteps(Position, Iterator[tuple[int, Tensors]]):
    """Iterator over (step, batch) with tensors on a device: see `Split.torch`. Each batch is the caller's."""

    def __init__(self, split: Split, device: torch.device, start: int, stop: int | None) -> None:
        super().__init__(split, start, stop)
        self.device = device
        self.bytes = split.places[-1].end
        self.host = torch.empty(self.bytes, dtype=torch.uint8)
        self.memory = Memory(split.places, self.host.numpy())
        self.parts = self.parts_of(self.host)

    def __next__(self) -> tuple[int, Tensors]:
        k = self.step + self.worker
        if k >= self.stop:
            raise StopIteration
        self.split.reader.fill(k, self.memory.buffers)
        self.step += self.workers
        if self.device.type == "cpu":
            return k, self.batch(self.parts, copy=True)
        return k, self.batch(self.parts_of(self.host.to(self.device)))

    def parts_of(self, raw: torch.Tensor) -> list[tuple[Place, torch.Tensor]]:
        """Returns the tensors in the bytes of a batch: x and y as one, whose place is that of y; and each other array."""
        tensors: list[tuple[Place, torch.Tensor]] = []
        for p in parts(self.split.places):
            kind = _SIGNED.get(p.kind) if p.name in _TOKENS else None
            start, shape = (0, (2, *p.shape)) if p.name == "y" else (p.start, p.shape)
            tensors.append((p, raw[start : p.end].view(kind or getattr(torch, p.kind)).view(shape)))
        return tensors

    def batch(self, parts: list[tuple[Place, torch.Tensor]], copy: bool = False) -> Tensors:
        """Returns a batch of parts, with tokens as int64. With copy it shares no memory with them."""
        batch: Tensors = Batch()
        for place, tensor in parts:
            if place.name in _TOKENS:
                tensor = tensor.to(torch.int64, copy=copy)
                if place.kind in _MASKS:
                    tensor &= _MASKS[place.kind]
            elif copy:
                tensor = tensor.clone()
            if place.name == "y":
                batch["x"], batch["y"] = tensor
            else:
                batch[place.name] = tensor
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.split, self.device, self.step, self.stop)


class CudaSteps(TorchSteps):
    """TorchSteps that reads the next batch into pinned memory, and sends it on a stream of its own, before it is asked for."""

    def __init__(self, split: Split, device: torch.device, start: int, stop: int | None) -> None:
        super().__init__(split, device, start, stop)
        self.stream = torch.cuda.Stream(device)
        self.buffers = deque(_Buffer(split, self.bytes) for _ in range(_BUFFERS))
        self.sent: deque[tuple[int, Tensors, torch.cuda.Event]] = deque()

    def __next__(self) -> tuple[int, Tensors]:
        if self.sent and self.sent[0][0] != self.step:  # a state was loaded
            self.sent.clear()
        for k in range(self.step + len(self.sent), min(self.step + 2, self.stop)):
            self.send(k)
        if not self.sent:
            raise StopIteration
        k, batch, sent = self.sent.popleft()
        now = torch.cuda.current_stream(self.device)
        now.wait_event(sent)
        for tensor in batch.values():
            tensor.record_stream(now)  # its memory is of the other stream
        self.step = k + 1
        return k, batch

    def send(self, k: int) -> None:
        """Reads batch k and sends it, with the buffer that was sent longest ago."""
        buffer = self.buffers[0]
        buffer.sent.synchronize()
        self.split.reader.fill(k, buffer.memory.buffers)
        with torch.cuda.stream(self.stream):
            batch = self.batch(self.parts_of(buffer.host.to(self.device, non_blocking=True)))
            buffer.sent = torch.cuda.Event()
            buffer.sent.record(self.stream)
        self.sent.append((k, batch, buffer.sent))
        self.buffers.rotate(-1)


class _Buffer:
    """Pinned memory, and when it was last sent."""

    def __init__(self, split: Split, size: int) -> None:
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.memory = Memory(split.places, self.host.numpy())
        self.sent = torch.cuda.Event()
