"""Arrays of messages as tensors of a device, and back.

Copies between a host and a CUDA device go through pinned memory, which the device reads and writes by itself: the
calling thread need not wait for copies to the device, and copies from it are several times as fast. torch keeps pinned
memory for the next copy, and knows when a copy has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike

__all__ = ["array_of", "arrays_of", "host_array", "host_tensor", "is_finite", "joined", "moved", "tensor_of"]

Array = np.ndarray[Any, Any]


def arrays_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """The tensors' values as arrays, for a message; bfloat16, which numpy does not have, as bit patterns.

    Waits once for the device, for all tensors.
    """
    on_host: dict[str, torch.Tensor] = {}
    waiting: set[torch.device] = set()
    for name, tensor in tensors.items():
        values = tensor.detach()
        if values.is_cuda:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            on_host[name] = pinned.copy_(values, non_blocking=True)
            waiting.add(values.device)
        else:
            on_host[name] = values.cpu()
    for device in waiting:
        torch.cuda.current_stream(device).synchronize()
    return {
        name: (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()
        for name, values in on_host.items()
    }


def array_of(tensor: torch.Tensor) -> Array:
    """As `arrays_of`, for one tensor."""
    return arrays_of({"": tensor})[""]


def host_array(shape: Sequence[int], dtype: DTypeLike, device: torch.device) -> Array:
    """An array of undefined values on the host, which `device` can read by itself once they are set."""
    if device.type != "cuda":
        return np.empty(shape, dtype)
    values = torch.empty(tuple(shape), dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
    return values.numpy()


def host_tensor(array: Array, device: torch.device, *, bfloat16: bool = False) -> torch.Tensor:
    """A copy of a received, read-only array on the host, from where `moved` copies it to `device`.

    Args:
        array: values, or bit patterns of bfloat16.
        device: that the tensor will be moved to.
        bfloat16: whether these are bit patterns.
    """
    copy = host_array(array.shape, array.dtype, device)
    np.copyto(copy, array)
    values = torch.from_numpy(copy)
    return values.view(torch.bfloat16) if bfloat16 else values


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device; the copy need not have ended."""
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def tensor_of(array: Array, device: torch.device, *, bfloat16: bool = False) -> torch.Tensor:
    """A tensor on a device from a copy of a received array; see `host_tensor`."""
    return moved(host_tensor(array, device, bfloat16=bfloat16), device)


def joined(pieces: Sequence[Array], shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """A tensor on a device from a copy of the received pieces of its flat values, in their order."""
    values = pieces[0].copy() if len(pieces) == 1 else np.concatenate(pieces)
    return moved(torch.from_numpy(values.reshape(shape)), device)


def is_finite(values: Array) -> bool:
    """Whether all values are finite, and their sum: that takes one pass over them."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity
        return bool(np.isfinite(values.sum()))
