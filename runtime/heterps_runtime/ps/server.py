"""The process of a parameter server: one thread between its sockets and its shards, and others that compute with it.

It answers for one shard. With `parameterServer.replication` it also holds copies of those of the servers before it. All
copies of a shard get the same pushes and commits, so a server that has lost its state copies it from another one. If
the number of servers changes, each copies what it is to have in addition (`holding`, `recovery`).

A pull names the version (number of commits) that it needs. A pull that arrives too early is parked, and answered right
after the commit that it waits for, which saves a round trip.
"""

from __future__ import annotations

from dataclasses import replace

import zmq
from prometheus_client import CollectorRegistry, Counter, Gauge

from heterps_runtime.checkpoint import DamagedError, Storage, read_manifest, verify_file
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import Role, ps_name
from heterps_runtime.cores import computing_threads
from heterps_runtime.errors import ProtocolError
from heterps_runtime.member import Member
from heterps_runtime.processes import work
from heterps_runtime.processes.metrics import MetricsServer
from heterps_runtime.processes.process import Wakeup, log
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.ps.holding import Division, Holding
from heterps_runtime.ps.recovery import Recovery, answer
from heterps_runtime.ps.requests import Waiting, check, read_push
from heterps_runtime.ps.shard import Shard
from heterps_runtime.saver import Part, Saver
from heterps_runtime.store.half import encode
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.team import Team
from heterps_runtime.store.warm import warm_up_server
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import (
    Ack,
    Array,
    Checkpoint,
    Commit,
    CopiedAhead,
    CopyAhead,
    CopyRows,
    CopyShard,
    Define,
    Defined,
    Dense,
    Generation,
    Go,
    Join,
    Message,
    Order,
    Pull,
    PullDense,
    Push,
    Ready,
    Rows,
    ToServer,
)
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.wire.transport import Listener, TokenAuthority, listen_socket

__all__ = ["ParameterServer"]

POLL_MILLISECONDS = 1000
_NONE = -1  # generation of a server that takes part in none


class ParameterServer(Member):
    """A shard with its sockets.

    Args:
        config: the job.
        credentials: of the job.
        index: among the servers.
        pool: that it runs on.
        host: address to listen on.
        ports: to listen on.

    Raises:
        TransientError: it cannot listen there.
    """

    def __init__(
        self,
        config: RunConfig,
        credentials: Credentials,
        index: int,
        pool: str,
        host: str,
        ports: Ports = FREE_PORTS,
    ) -> None:
        self._wakeup = Wakeup()
        self._index = index
        self._security = credentials.security
        super().__init__(ControlLink(credentials, ps_name(index)), self._wakeup.wake)
        self._config = config
        spill = config.spill
        self._spill = SpillSpace(spill.directory, spill.memory, spill.max_bytes) if spill else None
        self._holding = Holding(config, index, self._spill, Team(computing_threads()))
        self._recovery: Recovery | None = None  # in progress; until its end, this server is not ready
        self._ahead: Recovery | None = None  # in progress, while the generation trains
        self._work = WorkCounter()
        self._storage = Storage.open(config.checkpoint_path, self._work)
        self._generation = _NONE
        self._lineage = 0  # of the state; 0: it has none
        self._parked: Waiting[Pull | PullDense] = Waiting()  # pulls that need a commit
        self._early: Waiting[ToServer] = Waiting()  # of a generation that is not announced yet
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authority = TokenAuthority(self._context, credentials.security)
        socket, address = listen_socket(self._context, host, credentials.security, ports.messages)
        self._listener = Listener(socket)
        self._link.totals = self._totals
        self._saver = Saver(self._storage, self._link, self._wakeup.wake)
        self._registry = CollectorRegistry()
        self._pulled = Counter("heterps_ps_pulled_rows", "Rows sent to workers", registry=self._registry)
        self._pushed = Counter("heterps_ps_pushed_rows", "Row gradients received", registry=self._registry)
        self._commits = Counter("heterps_ps_commits", "Steps applied", registry=self._registry)
        self._refused = Counter("heterps_ps_refused_messages", "Messages of other generations", registry=self._registry)
        self._saturated = Counter(
            "heterps_ps_saturated_values", "Row values beyond the wire's range", registry=self._registry
        )
        by_table = ("table",)
        self._admitted = Counter(
            "heterps_ps_admitted_rows", "Rows that ids got after some steps", by_table, registry=self._registry
        )
        self._evicted = Counter(
            "heterps_ps_evicted_rows", "Rows that no step used any more", by_table, registry=self._registry
        )
        self._moved = {"admitted": 0, "evicted": 0}  # of all tables
        candidates = Gauge("heterps_ps_candidates", "Ids that have no row yet", registry=self._registry)
        candidates.set_function(lambda: self._holding.own.num_candidates)
        rows = Gauge("heterps_ps_rows", "Rows stored", registry=self._registry)
        rows.set_function(lambda: self._holding.own.num_rows)
        memory = Gauge("heterps_ps_memory_bytes", "Memory of rows, state and dense parameters", registry=self._registry)
        memory.set_function(lambda: self._holding.num_bytes)
        if (space := self._spill) is not None:
            disk = Gauge("heterps_ps_disk_bytes", "Disk of rows and state", registry=self._registry)
            disk.set_function(lambda: space.nbytes)
            read = Gauge("heterps_ps_disk_rows_read", "Rows read from disk", registry=self._registry)
            read.set_function(lambda: space.num_read)
            written = Gauge("heterps_ps_disk_rows_written", "Rows written to disk", registry=self._registry)
            written.set_function(lambda: space.num_written)
        self._metrics_server = MetricsServer(self._registry, host, ports.metrics)
        self._poller = zmq.Poller()
        self._pool = pool
        self._address = address

    def _take_part(self) -> None:
        self._link.status = "compiling kernels"
        sparse = SparseOptimizer.from_manifest(self._config.sparse_optimizer)
        dense = DenseOptimizer.from_manifest(self._config.dense_optimizer)
        warm_up_server(
            sparse,
            dense,
            self._config.dtype_name,
            self._config.wire_precision,
            rules=bool(self._config.tables),
            disk=self._config.spill.directory if self._config.spill else None,
        )
        self._join()
        try:
            self._serve()
        finally:  # the thread that writes would wait for rows
            self._holding.own.cancel_copies("the server ends")
        self._end_recovery()
        self._saver.close()
        self._link.close()
        self._metrics_server.close()
        self._listener.socket.close(linger=0)
        self._wakeup.close()
        self._context.term()

    def _serve(self) -> None:
        for socket in (*self._link.pollables, self._listener.socket, self._wakeup):
            self._poller.register(socket, zmq.POLLIN)
        copying = False
        while not self._ended:
            self._poller.poll(0 if copying else POLL_MILLISECONDS)
            # The coordinator first: a commit releases parked pulls, and a new generation invalidates queued requests.
            self._follow_coordinator()
            try:
                self._recover()
                self._go_on_ahead()
                self._take_requests()
            except ProtocolError as error:
                self._join_again(str(error))
            except DamagedError as error:  # `define` reads in whichever generation comes first
                self._restore_failed(self._restores_from, error)
            self._listener.probe()
            self._wakeup.drain()
            self._saver.report()
            busy = any(recovery is not None and recovery.is_busy for recovery in (self._recovery, self._ahead))
            copying = self._holding.own.copy_rows() or self._holding.drop_rows() or busy

    # --- the coordinator ----------------------------------------------------------------------------------------------

    @property
    def takes_part(self) -> bool:
        """See `Member.takes_part`."""
        return self._generation != _NONE

    def _carry_out(self, order: Order | CopyAhead) -> None:
        if isinstance(order, CopyAhead):
            self._begin_ahead(order)
        if order.generation != self._generation:
            return
        own = self._holding.own
        if isinstance(order, Commit | Checkpoint) and order.step != own.committed:
            self._join_again(f"{order.op} of step {order.step}, but this server is at step {own.committed}")
            return
        match order:
            case Go():
                self._holding.finish_change()
            case Commit(skipped=True):
                for shard in (own, *self._holding.copies):
                    shard.skip(order.step)
                self._release()
            case Commit():
                # Workers can compute once they have the dense parameters, so these are sent before rows are updated.
                own.commit_dense(order.step, order.batch_size)
                self._release()
                self._count(own.commit_rows(order.step, order.batch_size))
                self._commits.inc()
                self._release()
                for shard in self._holding.copies:  # no worker waits for them
                    shard.commit_dense(order.step, order.batch_size)
                    shard.commit_rows(order.step, order.batch_size)
            case Checkpoint():
                self._saver.save(order, lambda: own.committed, lambda: self._snapshot(order))

    def _count(self, moved: dict[str, tuple[int, int]]) -> None:
        for table, (admitted, evicted) in moved.items():
            self._admitted.labels(table).inc(admitted)
            self._evicted.labels(table).inc(evicted)
            self._moved["admitted"] += admitted
            self._moved["evicted"] += evicted

    def _snapshot(self, order: Checkpoint) -> Part:
        newest = order.newest if self._config.checkpoint_increments else None
        self._holding.finish_dropping()
        part = self._holding.own.snapshot(self._lineage, order.folder, newest, self._wakeup.wake)
        return replace(part, totals=self._totals())

    def _join(self) -> None:
        self._leave_generation()
        self._holding.drop_ahead()
        self._link.join(
            Join(
                role=Role.PS,
                index=self._index,
                pool=self._pool,
                address=self._address,
                metrics_port=self._metrics_server.port,
                lineage=self._lineage,
                version=self._holding.committed,
                divisions=self._holding.complete,
            )
        )

    def _begin_generation(self, announced: Generation) -> None:
        restore, num_servers = announced.restore, len(announced.servers)
        before = len(announced.held_by) or num_servers  # among which the state is divided
        missing = restore is None and self._index in announced.missing
        if restore is None and not missing and not self._has(announced.lineage, announced.committed, before):
            self._join_again(f"generation {announced.generation} needs a state that this server does not have")
            return
        self._leave_generation()
        self._generation, self._lineage = announced.generation, 0 if missing else announced.lineage
        self._listener.begin(announced.generation)
        if restore is not None:
            self._holding.restart(num_servers, announced.earlier_steps)
            try:
                self._reset(restore.folder)
            except DamagedError as error:
                self._restore_failed(restore.folder or "", error)
                return
        else:
            self._holding.begin_generation(num_servers, before, announced.earlier_steps, missing=missing)
        if missing or before != num_servers:
            self._begin_recovery(announced)
        else:
            self._become_ready()

    def _has(self, lineage: int, committed: int, num_servers: int) -> bool:
        """Whether this server has the state of a commit, in the division among so many servers."""
        held = (self._lineage, self._holding.committed)
        return held == (lineage, committed) and num_servers in self._holding.complete

    def _leave_generation(self) -> None:
        self._generation = _NONE
        self._end_recovery()
        self._saver.forget()
        self._parked = Waiting()

    def _become_ready(self) -> None:
        self._link.status = "ready"
        self._link.send(Ready(self._generation))

    # --- recovery -----------------------------------------------------------------------------------------------------

    def _begin_recovery(self, announced: Generation) -> None:
        """Copy the state that this server lacks from the others."""
        log(f"generation {announced.generation}: copying the state of step {announced.committed} from other servers")
        self._recovery = recovery = self._new_recovery(announced)
        self._link.status = lambda: f"copying rows: {recovery.progress}"

    def _new_recovery(self, announced: Generation | CopyAhead) -> Recovery:
        place = (self._context, self._security, self._link.name)
        recovery = Recovery(*place, announced, self._holding, self._config.replication, self._storage)
        for socket in recovery.pollables:
            self._poller.register(socket, zmq.POLLIN)
        return recovery

    def _recover(self) -> None:
        """Go on with the recovery, if one is in progress."""
        if self._recovery is not None and self._recovery.advance():
            log(f"generation {self._generation}: copied {self._recovery.num_rows:,} rows")
            self._lineage = self._recovery.lineage
            self._holding.note_complete()
            self._end_recovery()
            self._become_ready()

    def _end_recovery(self) -> None:
        """End what is being copied, at the beginning of a generation or ahead."""
        for recovery in (self._recovery, self._ahead):
            if recovery is not None:
                for socket in recovery.pollables:
                    self._poller.unregister(socket)
                recovery.close()
        self._recovery = self._ahead = None
        self._holding.give_up_ahead()

    def _begin_ahead(self, order: CopyAhead) -> None:
        """Begin to copy rows that this server will have, while the others train, or all do."""
        if self.takes_part and order.generation != self._generation:
            return
        self._end_recovery()
        log(f"generation {order.generation}: copying rows ahead, for {len(order.servers)} servers")
        self._ahead = recovery = self._new_recovery(order)
        self._link.status = lambda: f"copying rows ahead: {recovery.progress}"

    def _go_on_ahead(self) -> None:
        """Go on with the copy ahead, if one is in progress. If it fails, the generation copies what it lacks."""
        if self._ahead is None:
            return
        generation, num_rows = self._ahead.generation, 0
        try:
            if not self._ahead.advance():
                return
            num_rows = self._ahead.num_rows
            log(f"generation {generation}: copied {num_rows:,} rows ahead")
        except ProtocolError as error:
            log(f"generation {generation}: rows are not copied ahead: {error}")
        self._end_recovery()
        self._link.status = "ready" if self.takes_part else "waiting for the other members"
        self._link.send(CopiedAhead(generation, num_rows))

    @property
    def _restores_from(self) -> str:
        """Folder of the checkpoint that is being read; empty if there is none."""
        if self._recovery is not None:
            return self._recovery.checkpoint
        shards = self._holding.in_use.shards.values()
        return next((shard.restores_from for shard in shards if shard.restores_from), "")

    def _restore_failed(self, folder: str, error: DamagedError) -> None:
        self._holding.drop()
        self._lineage = 0
        self._cannot_restore(self._generation, folder, error)

    def _reset(self, folder: str | None) -> None:
        """Start from a checkpoint, of which this server verifies files that it will read, or from scratch."""
        if folder is None:
            log(f"generation {self._generation}: starting empty")
            return
        log(f"generation {self._generation}: restoring {folder}")
        manifest = read_manifest(self._storage, folder)
        shards = self._holding.in_use.shards.values()
        files = {entry: None for shard in shards for entry in shard.files_to_verify(manifest)}
        self._show_progress(f"verifying {folder}", sum(entry.bytes for entry in files))
        for entry in files:
            verify_file(self._storage, folder, entry, manifest.origin)
        for shard in shards:
            shard.reset(self._storage, manifest)

    def _show_progress(self, doing: str, size: int) -> None:
        """Show how many of some bytes are read."""
        begun = self._work.total
        self._link.status = lambda: f"{doing}: {(self._work.total - begun) / 1e9:.1f} of {size / 1e9:.1f} GB"

    # --- workers and other servers ------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        """Handle every request that has arrived, first those that came before this server was ready for them.

        Raises:
            ProtocolError: one of them is damaged, lost, or no request.
            DamagedError: a checkpoint that rows are read from is damaged.
        """
        for sender, waiting in self._early.take(lambda _: True):
            self._request(sender, waiting)
        while (received := self._listener.receive()) is not None:
            sender, request = received
            if not isinstance(request, ToServer):
                raise ProtocolError(f"a peer sent an unexpected {request.op!r} message")
            self._request(sender, request)

    def _request(self, sender: bytes, request: ToServer) -> None:
        if request.generation < self._generation:
            self._refused.inc()
            return
        copies = isinstance(request, CopyShard | CopyRows)
        if request.generation > self._generation or (self._recovery is not None and not copies):
            self._early.add(sender, request)  # the coordinator's announcement, or the state, has not arrived yet
            return
        match request:
            case Pull() | PullDense():
                check(sender, request, self._holding.own)
                if self._is_early(request):
                    self._parked.add(sender, request)
                    if isinstance(request, Pull):
                        self._holding.own.read_ahead(request.keys)
                else:
                    self._answer(sender, request)
            case Push():
                shard = self._held(request, self._holding.in_use)
                gradients = read_push(sender, request, shard, self._config)
                shard.push(request.step, request.worker, gradients)
                if request.shard == self._index:
                    self._pushed.inc(sum(len(keys) for _, keys, _ in gradients.chunks))
                self._send(sender, Ack(request.step, request.shard))
            case Define():
                shard = self._held(request, self._holding.in_use)
                check(sender, request, shard)
                self._show_progress("loading rows", shard.bytes_to_load)
                shard.define(request.tables, request.dense, request.statistics)
                self._link.status = "ready"
                self._send(sender, Defined(request.shard))
            case CopyShard() | CopyRows():
                self._holding.finish_dropping()
                self._send(sender, answer(self._held(request, self._holding.present), request))

    def _held(self, request: Define | Push | CopyShard | CopyRows, division: Division) -> Shard:
        """The shard that a request is for.

        Raises:
            ProtocolError: this server does not hold it.
        """
        shard = division.shards.get(request.shard)
        if shard is None or not division.complete:
            held = sorted(division.shards)
            raise ProtocolError(f"a {request.op} is for shard {request.shard}, this server holds {held}")
        return shard

    def _is_early(self, request: Pull | PullDense) -> bool:
        """Whether a pull has to wait for a commit."""
        own = self._holding.own
        made = own.committed if isinstance(request, Pull) else own.dense_committed
        return request.version > made

    def _answer(self, sender: bytes, request: Pull | PullDense) -> None:
        match request:
            case Pull():
                self._send(sender, Rows(request.request, self._pull(request)))
            case PullDense():
                self._send(sender, Dense(request.request, self._holding.own.pull_dense(request.names)))

    def _pull(self, request: Pull) -> dict[int, Array]:
        rows = {}
        for dim, values in self._holding.own.pull(request.keys).items():
            encoded = encode(values, self._config.wire_precision)
            self._saturated.inc(encoded.num_saturated)
            self._pulled.inc(len(values))
            rows[dim] = encoded.data
        return rows

    def _send(self, sender: bytes, message: Message) -> None:
        self._listener.send(sender, message)

    def _release(self) -> None:
        """Answer pulls that waited for the latest commit."""
        for sender, request in self._parked.take(lambda waiting: not self._is_early(waiting)):
            self._answer(sender, request)

    def _totals(self) -> dict[str, float]:
        return {
            "rows": float(self._holding.own.num_rows),
            "bytes": float(self._holding.num_bytes),
            "candidates": float(self._holding.own.num_candidates),
            **{name: float(count) for name, count in self._moved.items()},
            work.TOTAL: float(self._work.total),
        }
