"""The process groups of torch that all-reduce: NCCL between cards, gloo between hosts.

A ring's operations block the calling thread until the result is in the tensor, so that callers need not know about
streams. NCCL refuses two members on one card, and gloo knows only tensors of the host, so members that share a card,
and those of other accelerators, sum copies on the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

__all__ = ["Ring", "form_ring", "has_own_card"]


class Ring(Protocol):
    """A process group.

    If a member is lost, gloo's operations raise RuntimeError, at the latest after the timeout; NCCL's wait for `abort`.
    """

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Replace the values by those of a member."""

    def abort(self) -> None:
        """End operations of other threads, as far as possible."""


def form_ring(store: Store, rank: int, size: int, device: torch.device, host: str, timeout: timedelta) -> Ring:
    """Form a group with the other members; blocks until all have come, or for `timeout`.

    Args:
        store: rendezvous of this group alone.
        rank: of this member.
        size: number of members.
        device: of this member's tensors.
        host: address to listen on.
        timeout: of forming the group, and of each of gloo's operations.
    """
    if device.type == "cuda" and has_own_card(store, rank, size, device):
        return _NcclRing(store, rank, size, device, timeout)
    return _GlooRing(store, rank, size, host, timeout)


def has_own_card(store: Store, rank: int, size: int, device: torch.device) -> bool:
    """Whether each member has a card that no other member has; all members find the same."""
    store.set(f"card-{rank}", str(torch.cuda.get_device_properties(device).uuid))
    return len({store.get(f"card-{other}") for other in range(size)}) == size


class _GlooRing:
    """Gloo. Tensors of a device are copied to the host and back."""

    def __init__(self, store: Store, rank: int, size: int, host: str, timeout: timedelta) -> None:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timeout
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, options)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See `Ring`."""
        on_host = tensor.cpu()
        self._group.allreduce([on_host]).wait()
        if on_host is not tensor:
            tensor.copy_(on_host)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """See `Ring`."""
        on_host = tensor.cpu()
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._group.broadcast([on_host], options).wait()
        if on_host is not tensor:
            tensor.copy_(on_host)

    def abort(self) -> None:
        """See `Ring`; an operation that waits for a stopped member still ends with the timeout only."""
        if hasattr(self._group, "abort"):
            self._group.abort()


class _NcclRing:
    """NCCL, on a stream of its own.

    On the stream of the engine, an operation that waits for a lost member would hold up all that the engine computes
    afterwards, and so the engine itself, which could then not learn of the next generation.
    """

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, timeout: timedelta) -> None:
        # By default, NCCL's watchdog ends the process when an operation fails, and so one death would end all members.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        self._device = device
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """See `Ring`."""
        self._run(tensor, lambda: self._group.allreduce([tensor]))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """See `Ring`."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._run(tensor, lambda: self._group.broadcast([tensor], options))

    def abort(self) -> None:
        """See `Ring`."""
        self._group.abort()

    def _run(self, tensor: torch.Tensor, begin: Callable[[], Any]) -> None:
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            begin().wait()
        tensor.record_stream(self._stream)
        self._stream.synchronize()
