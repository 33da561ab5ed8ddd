"""Collective operations among the workers of one stage, on pools that all-reduce.

Groups do not use torch's default group, so that a new generation can replace them without restarting a process.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from heterps_runtime.errors import PeerLostError, TransientError
from heterps_runtime.wire.host_port import join_host_port, split_host_port
from heterps_runtime.wire.messages import Rendezvous
from heterps_runtime.worker.exchange.rings import Ring, form_ring

__all__ = ["Collectives", "Group"]

T = TypeVar("T")


class Group:
    """A stage's workers in one generation. Operations run in a thread of the group, so that the engine never blocks.

    Forming the group, and an operation, cannot be interrupted while they wait for a stopped or lost peer, not even by
    gloo's `abort`. They end with the timeout, in the thread of their generation, which nothing waits for by then.

    Args:
        form: forms the process group; called in the thread. None for a stage of one worker.
        first_turn: of the first all-reduce.
    """

    def __init__(self, form: Callable[[], Ring] | None, first_turn: int) -> None:
        self._alone = form is None
        self._ring: Ring | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._next_turn = first_turn  # of the next operation
        self._held: dict[int, Callable[[], None]] = {}  # operations of later turns
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        if form is not None:
            threading.Thread(target=self._run, args=(form,), name="collectives", daemon=True).start()

    def submit(self, operation: Callable[[], T]) -> Future[T]:
        """Run a function that calls `broadcast` or `gather_numbers` in the group's thread.

        The future has a PeerLostError if the group could not be formed, or has been closed.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                self.check()
                future.set_result(operation())
            except Exception as error:  # gloo and NCCL raise RuntimeError and its relatives
                future.set_exception(error)

        self._call(run)
        return future

    def all_reduce(self, turn: int, tensor: torch.Tensor, done: Callable[[Exception | None], None]) -> None:
        """Sum a tensor over the group in place; `done` is called from the group's thread.

        Groups match operations by their order, so operations run in the order of their turns. A worker may finish a
        step before an earlier one, if it has no samples of it, or in `async`.
        """

        def run() -> None:
            try:
                self.check()
                if self._ring is not None:
                    self._ring.all_reduce(tensor)
                    self.check()  # one that was aborted may end without an error
                done(None)
            except Exception as error:
                done(error)

        self._held[turn] = run
        while (following := self._held.pop(self._next_turn, None)) is not None:
            self._call(following)
            self._next_turn += 1

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Broadcast the root's values; blocks."""
        if self._ring is not None:
            self._ring.broadcast(tensor, root)

    def gather_numbers(self, value: int, rank: int, size: int, device: torch.device) -> list[int]:
        """The number of each member, by rank; blocks."""
        numbers = torch.zeros(size, dtype=torch.int64, device=device)
        numbers[rank] = value
        if self._ring is not None:
            self._ring.all_reduce(numbers)
        return [int(n) for n in numbers.cpu()]

    def check(self) -> None:
        """Raise PeerLostError if the group was not formed, or has been closed."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise PeerLostError("the process group was closed")

    def close(self) -> None:
        """End the thread after its present operation; later ones fail."""
        self._closed = True
        if self._ring is not None:
            self._ring.abort()
        self._tasks.put(None)

    def _call(self, task: Callable[[], None]) -> None:
        if self._alone:
            task()
        else:
            self._tasks.put(task)

    def _run(self, form: Callable[[], Ring]) -> None:
        try:
            self._ring = form()
        except Exception as error:
            self._failure = PeerLostError(f"the process group could not be formed: {error}")
            self._failure.__cause__ = error
        while (task := self._tasks.get()) is not None:
            task()
        self._ring = None


class Collectives:
    """A worker's process groups, one per generation, and the rendezvous that it offers for them.

    The store of the rendezvous knows no authentication. It listens on `host` only, and the keys of a stage begin with
    `store_secret`, which other members learn from the coordinator. A peer of the network that can reach the port can
    still list keys, so a NetworkPolicy has to keep strangers away (docs/install.md).

    Args:
        host: address of the rendezvous.
        timeout_seconds: of an operation.
        port: of the rendezvous; 0: any free one.

    Raises:
        TransientError: the host is not an address of this machine, or the port is taken.

    Attributes:
        store_address: host:port of the rendezvous that this worker offers.
        store_secret: of that rendezvous.
    """

    def __init__(self, host: str, timeout_seconds: float, port: int = 0) -> None:
        self._host = host
        self._timeout = timedelta(seconds=timeout_seconds)
        # With a port instead of a socket, the store would listen on all addresses.
        try:
            listener = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            text = f"{join_host_port(host, port)} for the rendezvous: {os.strerror(error.errno or 0)}"
            raise TransientError(f"cannot listen on {text}") from error
        port = listener.getsockname()[1]
        self._store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listener.detach(),
        )
        self.store_address = join_host_port(host, port)
        self.store_secret = secrets.token_hex(16)
        self._group: Group | None = None

    def begin(
        self,
        generation: int,
        stage: int,
        rank: int,
        size: int,
        rendezvous: Rendezvous,
        device: torch.device,
        first_turn: int,
    ) -> Group:
        """Close the group of the previous generation, and begin to form the next one.

        Args:
            generation: of the group.
            stage: of the group.
            rank: of this worker.
            size: number of workers.
            rendezvous: of the group.
            device: of the tensors.
            first_turn: of the first all-reduce.
        """
        self.leave()

        def form() -> Ring:
            host, port = split_host_port(rendezvous.address)
            # A connection of its own: an operation that waits holds it, and may outlive the generation.
            shared = TCPStore(host, port, is_master=False, timeout=self._timeout)
            prefixed = PrefixStore(f"{rendezvous.secret}/generation-{generation}/stage-{stage}", shared)
            return form_ring(prefixed, rank, size, device, self._host, self._timeout)

        self._group = Group(None if size == 1 else form, first_turn)
        return self._group

    def leave(self) -> None:
        """Close the group."""
        if self._group is not None:
            self._group.close()
        self._group = None


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
