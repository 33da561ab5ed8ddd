"""Collective operations among the workers of one stage, on pools that all-reduce.

Groups do not use torch's default group, so that a new generation can replace them without restarting a process.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from heterps_runtime.errors import PeerLostError
from heterps_runtime.wire.messages import Peer

__all__ = ["Collectives"]


class Collectives:
    """Collective operations of a stage's workers, in a separate thread, so that the engine never blocks.

    A group and its thread live for one generation. An operation that waits for a stopped peer cannot be interrupted,
    not even by gloo's `abort`. It ends with the timeout, in the thread of its generation.

    The store of the rendezvous knows no authentication. It listens on `host` only, and the keys of a stage begin with
    `store_secret`, which other members learn from the coordinator. A peer of the network that can reach the port can
    still list keys, so a NetworkPolicy has to keep strangers away (docs/install.md).

    Args:
        host: address of the rendezvous.
        timeout_seconds: of an operation.

    Attributes:
        store_address: host:port of the rendezvous that this worker offers.
        store_secret: of that rendezvous.
    """

    def __init__(self, host: str, timeout_seconds: float) -> None:
        self._host = host
        self._timeout = timedelta(seconds=timeout_seconds)
        # With a port instead of a socket, the store would listen on all addresses.
        listener = socket.create_server((host, 0), family=_family(host))
        port = listener.getsockname()[1]
        self.store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listener.detach(),
        )
        self.store_address = f"{host}:{port}"
        self.store_secret = secrets.token_hex(16)
        self._group: Any = None
        self._next_step = 0  # step of the next operation
        self._held: dict[int, Callable[[], None]] = {}  # operations of later steps
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def join(
        self,
        generation: int,
        stage: int,
        rank: int,
        size: int,
        store: Peer,
        device: torch.device,
        first_step: int,
    ) -> None:
        """Form the stage's group of a generation; blocks until all members have called this.

        Args:
            generation: of the group.
            stage: of the group.
            rank: of this worker.
            size: number of workers.
            store: the member whose rendezvous all use.
            device: of the tensors.
            first_step: step of the first operation.

        Raises:
            PeerLostError: a member did not join.
        """
        self.leave()
        self._next_step, self._held = first_step, {}
        if size == 1:
            return
        self._tasks = SimpleQueue()
        threading.Thread(target=_carry_out, args=(self._tasks,), name="collectives", daemon=True).start()
        host, port = store.store_address.rsplit(":", 1)
        try:
            shared = self.store if rank == 0 else TCPStore(host, int(port), is_master=False, timeout=self._timeout)
            prefixed = PrefixStore(f"{store.store_secret}/generation-{generation}/stage-{stage}", shared)
            if device.type == "cuda":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                self._group = dist.ProcessGroupNCCL(prefixed, rank, size, options)
            else:
                gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
                gloo._timeout = self._timeout
                self._group = dist.ProcessGroupGloo(prefixed, rank, size, gloo)
        except RuntimeError as error:
            raise PeerLostError(f"the process group of stage {stage} could not be formed: {error}") from error

    def leave(self) -> None:
        """Drop the group and its thread, which ends after its operations."""
        if self._group is not None and hasattr(self._group, "abort"):
            self._group.abort()
        self._group = None
        self._tasks.put(None)

    def all_reduce(self, step: int, flat: torch.Tensor, done: Callable[[Exception | None], None]) -> None:
        """Sum a step's `flat` over the group in place; `done` is called from another thread.

        Groups match operations by their order, so operations run in the order of steps. A worker may finish a step
        before an earlier one, if it has no samples of it, or in `async`.
        """
        group = self._group
        if group is None:
            done(None)
            return

        def run() -> None:
            try:
                group.allreduce([flat]).wait()
                if flat.is_cuda:
                    torch.cuda.current_stream(flat.device).synchronize()
                done(None)
            except Exception as error:  # gloo and NCCL raise RuntimeError and its relatives
                done(error)

        self._held[step] = run
        while (following := self._held.pop(self._next_step, None)) is not None:
            self._tasks.put(following)
            self._next_step += 1

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Broadcast the root's values; blocks."""
        if self._group is not None:
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._group.broadcast([tensor], options).wait()

    def gather_numbers(self, value: int, rank: int, size: int, device: torch.device) -> list[int]:
        """The number of each member, by rank; blocks."""
        numbers = torch.zeros(size, dtype=torch.int64, device=device)
        numbers[rank] = value
        if self._group is not None:
            self._group.allreduce([numbers]).wait()
        return [int(n) for n in numbers.cpu()]


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _carry_out(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
