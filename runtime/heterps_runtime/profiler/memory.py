"""Memory of layers: what autograd keeps between forward and backward, and what a worker holds at all times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["LayerBytes", "SavedBytes", "anonymous_bytes", "device_bytes"]


@dataclass(frozen=True)
class LayerBytes:
    """Memory of one layer in a worker.

    Attributes:
        resident: weights, their gradients, and what else is there whatever the batch.
        activation: per sample in flight: what backward needs, outputs, and rows with their gradients.
    """

    resident: float
    activation: float


class SavedBytes:
    """Counts the memory that autograd keeps for backward, each piece of memory once.

    Args:
        known: addresses of memory that is counted already, such as parameters; extended.
    """

    def __init__(self, known: set[int]) -> None:
        self._known = known
        self.total = 0

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                self.total += storage.nbytes()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what autograd saves in this context."""

        def note(tensor: torch.Tensor) -> torch.Tensor:
            self.add([tensor])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            yield


def anonymous_bytes() -> int | None:
    """Memory of this process that is not backed by files (`RssAnon` of proc(5)); None if the system does not tell.

    Unlike pages of files, it cannot be dropped when memory runs short.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return None


def device_bytes(device: torch.device) -> tuple[int, int] | None:
    """Memory of an accelerator, and the part of it that is taken before any tensor is; None for the CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total, max(0, total - free - torch.cuda.memory_reserved(device))
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).total_memory), 0
    return None
