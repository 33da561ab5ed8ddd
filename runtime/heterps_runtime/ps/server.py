"""The parameter server's process: one thread between its sockets and its shard.

Pulls name the version (number of commits) that they must at least see. One that comes too early is parked and answered
right after the commit it waits for, which saves the worker a round trip.
"""

from __future__ import annotations

import os
from typing import Any

import zmq
from prometheus_client import CollectorRegistry, Counter, Gauge

from heterps_runtime.checkpoint import Storage, check_checkpoint
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ps_name
from heterps_runtime.link import ControlLink, Credentials
from heterps_runtime.metrics import MetricsServer
from heterps_runtime.process import Wakeup, log
from heterps_runtime.ps.shard import Push, Shard
from heterps_runtime.saver import Saver
from heterps_runtime.store.half import decode, encode
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.warm import ServerKernels, warm_up
from heterps_runtime.transport import Message, TokenAuthority, listen_socket, receive, send

__all__ = ["ParameterServer"]

POLL_MILLISECONDS = 1000
_NONE = -1  # generation of a server that does not take part


class ParameterServer:
    """One shard with its sockets."""

    def __init__(self, config: RunConfig, credentials: Credentials, index: int, pool: str, host: str) -> None:
        self._config = config
        self._shard = Shard(config, index)
        self._storage = Storage.open(config.checkpoint_path)
        self._generation = _NONE
        self._lineage = 0  # of the state of the shard; 0: it never took part
        self._parked: list[tuple[bytes, Message]] = []  # pulls that wait for a commit
        self._early: list[tuple[bytes, Message]] = []  # requests of a generation yet to be announced
        self._ended = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authority = TokenAuthority(self._context, credentials.token)
        self._socket, address = listen_socket(self._context, host, credentials.token)
        self._link = ControlLink(credentials, ps_name(index))
        self._link.totals = self._totals
        self._wakeup = Wakeup()
        self._saver = Saver(self._storage, self._link, self._wakeup.wake)
        self._registry = CollectorRegistry()
        self._pulled = Counter("heterps_ps_pulled_rows", "Rows sent to workers", registry=self._registry)
        self._pushed = Counter("heterps_ps_pushed_rows", "Row gradients received", registry=self._registry)
        self._commits = Counter("heterps_ps_commits", "Steps applied", registry=self._registry)
        self._refused = Counter("heterps_ps_refused_messages", "Messages of other generations", registry=self._registry)
        self._saturated = Counter(
            "heterps_ps_saturated_values", "Row values beyond the wire's range", registry=self._registry
        )
        rows = Gauge("heterps_ps_rows", "Rows stored", registry=self._registry)
        rows.set_function(lambda: self._shard.num_rows)
        memory = Gauge("heterps_ps_memory_bytes", "Memory of rows, state and dense parameters", registry=self._registry)
        memory.set_function(lambda: self._shard.num_bytes)
        self._metrics_server = MetricsServer(self._registry, host)
        self._introduction = {
            "role": "ps",
            "index": index,
            "pool": pool,
            "address": address,
            "metricsPort": self._metrics_server.port,
            "pid": os.getpid(),
        }

    def run(self) -> None:
        """Serve until the coordinator ends the job."""
        self._link.status = "compiling kernels"
        sparse = SparseOptimizer.from_manifest(self._config.sparse_optimizer)
        dense = DenseOptimizer.from_manifest(self._config.dense_optimizer)
        warm_up([ServerKernels(sparse, dense, self._config.dtype_name, self._config.wire_precision)])
        self._join()
        poller = zmq.Poller()
        for socket in (self._link.socket, self._socket, self._wakeup):
            poller.register(socket, zmq.POLLIN)
        while not self._ended:
            poller.poll(POLL_MILLISECONDS)
            # Control first: a commit lets parked pulls go, and a new generation makes queued messages void.
            while not self._ended and (message := self._link.receive()) is not None:
                self._control(message)
            while (received := receive(self._socket, routed=True)) is not None:
                self._request(*received)
            self._wakeup.drain()
            self._saver.report()
        self._saver.close()
        self._link.close()
        self._metrics_server.close()
        self._socket.close(linger=0)
        self._wakeup.close()
        self._context.term()

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _control(self, message: Message) -> None:
        fields = message.fields
        if message.op == "generation":
            self._begin_generation(fields)
        elif message.op == "shutdown":
            log(f"ending: {fields.get('reason', '')}")
            self._ended = True
        elif message.op == "rejoin":
            if self._link.must_rejoin(fields):
                log("joining again: the coordinator had given this process up for lost")
                self._join()
        elif fields.get("generation") != self._generation:
            return
        elif message.op in ("commit", "checkpoint") and fields["step"] != self._shard.committed:
            held = self._shard.committed
            log(f"joining again: {message.op} of step {fields['step']}, but this server stands at step {held}")
            self._join()
        elif message.op == "commit":
            # Workers can compute as soon as they have the dense parameters: those go out before the rows are touched.
            self._shard.commit_dense(fields["step"], fields["batchSize"])
            self._release()
            self._shard.commit_rows(fields["step"], fields["batchSize"])
            self._commits.inc()
            self._release()
        elif message.op == "checkpoint":
            self._saver.save(fields, self._shard.snapshot)

    def _join(self) -> None:
        """Ask to take part (again), and say which state this server holds; until then it takes part in nothing."""
        self._generation = _NONE
        self._parked.clear()
        self._link.join(**self._introduction, lineage=self._lineage, version=self._shard.committed)

    def _begin_generation(self, fields: dict[str, Any]) -> None:
        restore, held = fields["restore"], (self._lineage, self._shard.committed)
        if restore is None and held != (fields["lineage"], fields["committed"]):
            log(f"joining again: generation {fields['generation']} goes on with a state that this server lacks")
            self._join()
            return
        self._generation, self._lineage = fields["generation"], fields["lineage"]
        self._parked.clear()
        self._shard.begin_generation(len(fields["servers"]))
        if restore is not None:
            folder = restore["folder"]
            manifest = check_checkpoint(self._storage, folder, contents=False) if folder else None
            self._shard.reset(self._storage, manifest)
            log(
                f"generation {self._generation}: restoring {folder}"
                if folder
                else f"generation {self._generation}: starting empty"
            )
        self._link.status = "ready"
        self._link.send("ready", generation=self._generation)
        early, self._early = self._early, []
        for sender, message in early:
            self._request(sender, message)

    # --- the workers --------------------------------------------------------------------------------------------------

    def _request(self, sender: bytes, message: Message) -> None:
        generation = message.fields.get("generation", -1)
        if generation > self._generation:
            self._early.append((sender, message))  # the coordinator's word of it is still on its way to us
            return
        if generation < self._generation:
            self._refused.inc()
            return
        held = {"pull": self._shard.committed, "pull-dense": self._shard.dense_committed}.get(message.op)
        if held is not None and message.fields["version"] > held:
            self._parked.append((sender, message))
            return
        self._answer(sender, message)

    def _answer(self, sender: bytes, message: Message) -> None:
        fields, arrays = message.fields, message.arrays
        if message.op == "pull":
            rows = []
            for values in self._shard.pull(fields["dims"], arrays):
                encoded = encode(values, self._config.wire_precision)
                self._saturated.inc(encoded.num_saturated)
                self._pulled.inc(len(values))
                rows.append(encoded.data)
            send(self._socket, Message("rows", {"request": fields["request"], "dims": fields["dims"]}, rows), sender)
        elif message.op == "pull-dense":
            dense = self._shard.dense.pull(fields["names"])
            send(
                self._socket, Message("dense", {"request": fields["request"], "names": fields["names"]}, dense), sender
            )
        elif message.op == "push":
            self._shard.push(fields["step"], fields["worker"], self._read_push(fields, arrays))
            send(self._socket, Message("ack", {"step": fields["step"]}), sender)
        elif message.op == "define":
            self._shard.define(fields["tables"], dict(zip(fields["dense"], arrays, strict=True)))
            send(self._socket, Message("defined"), sender)

    def _read_push(self, fields: dict[str, Any], arrays: Any) -> Push:
        dims = fields["dims"]
        chunks = []
        for i, dim in enumerate(dims):
            keys, gradients = arrays[2 * i], arrays[2 * i + 1]
            self._pushed.inc(len(keys))
            if len(keys):
                chunks.append((dim, keys, decode(gradients, self._config.wire_precision, self._config.dtype_name)))
        return Push(tuple(chunks), dict(zip(fields["dense"], arrays[2 * len(dims) :], strict=True)))

    def _release(self) -> None:
        """Answer the pulls that waited for the commit just made."""
        parked, self._parked = self._parked, []
        for sender, message in parked:
            self._request(sender, message)

    def _totals(self) -> dict[str, float]:
        return {"rows": float(self._shard.num_rows), "bytes": float(self._shard.num_bytes)}
