"""Steps as tensors on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from ._split import Array, Batch, Position, Split, sizes

Tensors = Batch[torch.Tensor]

_ALIGNMENT = 64
_BUFFERS = 3  # one is filled, one is sent, and one was sent
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
        self.sizes = sizes(split.info)
        self.offsets: list[int] = []
        self.bytes = 0
        for size in self.sizes:
            self.offsets.append(self.bytes)
            self.bytes += -(-size // _ALIGNMENT) * _ALIGNMENT

    def __next__(self) -> tuple[int, Tensors]:
        k = self.step + self.worker
        if k >= self.stop:
            raise StopIteration
        host = torch.empty(self.bytes, dtype=torch.uint8)
        self.split.reader.fill(k, self.arrays(host))
        self.step += self.workers
        return k, self.batch(host.to(self.device))

    def arrays(self, host: torch.Tensor) -> list[Array]:
        """Returns the arrays of a batch that lie in a buffer of bytes."""
        raw: Array = host.numpy()
        return [np.ndarray(shape, dtype, raw, offset) for (shape, dtype), offset in zip(self.split.specs, self.offsets)]

    def batch(self, raw: torch.Tensor) -> Tensors:
        """Returns the tensors of a batch that lie in a buffer of bytes, with tokens as int64, which do not."""
        batch: Tensors = Batch()
        for array, offset, size in zip(self.split.info["arrays"], self.offsets, self.sizes):
            name, dtype = array["name"], array["dtype"]
            tensor = raw[offset : offset + size]
            if name in ("x", "y", "tokens"):
                tensor = tensor.view(_SIGNED.get(dtype) or getattr(torch, dtype)).to(torch.int64)
                if dtype in _MASKS:
                    tensor &= _MASKS[dtype]
            else:
                tensor = tensor.view(getattr(torch, dtype))
            batch[name] = tensor.view(array["shape"])
        return batch


class CudaSteps(TorchSteps):
    """TorchSteps that reads the next batch into pinned memory, and sends it on a stream of its own, before it is asked for."""

    def __init__(self, split: Split, device: torch.device, start: int, stop: int | None) -> None:
        super().__init__(split, device, start, stop)
        self.stream = torch.cuda.Stream(device)
        self.hosts = deque(torch.empty(self.bytes, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS))
        self.events = deque(torch.cuda.Event() for _ in range(_BUFFERS))
        self.sent: deque[tuple[int, Tensors, torch.cuda.Event]] = deque()

    def __next__(self) -> tuple[int, Tensors]:
        if self.sent and self.sent[0][0] != self.step:  # a state was loaded
            self.sent.clear()
        for k in range(self.step + len(self.sent), min(self.step + 2, self.stop)):
            self.send(k)
        if not self.sent:
            raise StopIteration
        k, batch, event = self.sent.popleft()
        now = torch.cuda.current_stream(self.device)
        now.wait_event(event)
        for tensor in batch.values():
            tensor.record_stream(now)  # its memory is of the other stream
        self.step = k + 1
        return k, batch

    def send(self, k: int) -> None:
        """Reads batch k and sends it, with the buffer that was sent longest ago."""
        host, event = self.hosts[0], self.events[0]
        event.synchronize()
        self.split.reader.fill(k, self.arrays(host))
        with torch.cuda.stream(self.stream):
            batch = self.batch(host.to(self.device, non_blocking=True))
            event.record(self.stream)
        self.sent.append((k, batch, event))
        self.hosts.rotate(-1)
        self.events.rotate(-1)
