"""A worker as a member of the job: it joins, takes part in generations, and ends."""

from __future__ import annotations

from dataclasses import dataclass

import zmq
from prometheus_client import CollectorRegistry, Gauge

from heterps_runtime.checkpoint import DamagedError
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import Role
from heterps_runtime.errors import PeerLostError, ProtocolError, SupersededError
from heterps_runtime.member import Member
from heterps_runtime.processes import work
from heterps_runtime.processes.metrics import MetricsServer
from heterps_runtime.processes.process import log, resident_bytes
from heterps_runtime.saver import Part, Saver
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import (
    Checkpoint,
    Commit,
    CopyAhead,
    Evaluate,
    Generation,
    Go,
    Join,
    NewAllocation,
    Order,
    Ready,
)
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.wire.transport import TokenAuthority, listen_socket
from heterps_runtime.worker.exchange.collectives import Collectives
from heterps_runtime.worker.exchange.peers import Upstream
from heterps_runtime.worker.generation import GenerationSetup
from heterps_runtime.worker.inbox import Inbox
from heterps_runtime.worker.model import Workload
from heterps_runtime.worker.steps.context import WorkerProcess
from heterps_runtime.worker.steps.engine import Engine
from heterps_runtime.worker.steps.round_trip import RoundTrip
from heterps_runtime.worker.steps.runs import Clock
from heterps_runtime.worker.steps.source import BatchSource, Data

__all__ = ["Place", "WorkerMember"]

POLL_MILLISECONDS = 1000


@dataclass(frozen=True)
class Place:
    """A worker's position in the plan, its address and its ports."""

    stage: int
    index: int  # among the workers of the stage
    pool: str
    host: str  # address to listen on
    ports: Ports = FREE_PORTS
    all_reduces: bool = False  # whether the workers of the stage hold replicas of dense parameters


class WorkerMember(Member):
    """A worker process.

    Args:
        config: the job.
        link: line to the coordinator.
        context: ZeroMQ context of the process.
        credentials: of the job.
        place: position in the plan.
        workload: the model and the device.
        data: of the first stage; None in later stages.
    """

    def __init__(
        self,
        config: RunConfig,
        link: ControlLink,
        context: zmq.Context[zmq.Socket[bytes]],
        credentials: Credentials,
        place: Place,
        workload: Workload,
        data: Data | None,
    ) -> None:
        self._inbox = Inbox()
        super().__init__(link, self._inbox.wake)
        self._config = config
        self._context = context
        self._place = place
        self._model = workload.model
        self._data = data
        self._source = BatchSource(config, data, workload.model.layered.tables, workload.device) if data else None
        self._authority = TokenAuthority(context, credentials.security)
        socket, self._address = listen_socket(context, place.host, credentials.security, place.ports.messages)
        self._upstream = Upstream(socket)
        self._clock = Clock()
        self._round_trip = RoundTrip(self._clock)
        self._process = WorkerProcess(link, self._inbox, self._clock, self._round_trip)
        timeout, port = config.hang_timeout_seconds, place.ports.rendezvous
        self._collectives = Collectives(place.host, timeout, port) if place.all_reduces else None
        self._setup = GenerationSetup(
            config,
            self._process,
            context,
            credentials.security,
            stage=place.stage,
            index=place.index,
            upstream=self._upstream,
            collectives=self._collectives,
            workload=workload,
        )
        self._saver = Saver(self._setup.storage, link, self._inbox.wake)
        self._engine: Engine | None = None  # of the generation that this worker takes part in
        self._running = False
        self._poller = zmq.Poller()
        self._export_metrics(place)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _take_part(self) -> None:
        self._join()
        while not self._ended:
            engine = self._engine
            worked = engine is not None and self._running and engine.work()
            self._clock.switch("wait" if engine is None or not self._running else engine.waiting_for())
            self._poller.poll(0 if worked else POLL_MILLISECONDS)
            self._clock.switch("messages")
            self._follow_coordinator()
            self._inbox.run()
            self._saver.report()
            if self._engine is not None:
                self._poll(self._engine)
        self._close()

    def _poll(self, engine: Engine) -> None:
        """Handle messages of servers and peers; join again if some may be lost."""
        try:
            engine.poll()
            engine.probe()
            lost = engine.lost()
        except ProtocolError as error:
            lost = str(error)
        if lost:
            self._join_again(lost)

    def _close(self) -> None:
        self._saver.close()
        self._link.close()
        self._leave_generation()
        if self._data is not None:
            self._data.forget()  # now that no feed reads any more
        if self._collectives is not None:
            self._collectives.leave()
        self._metrics_server.close()
        self._upstream.socket.close(linger=0)
        self._inbox.close()
        self._context.term()

    def _join(self) -> None:
        self._running = False
        self._leave_generation()
        version = self._setup.parameters.version
        self._link.join(
            Join(
                role=Role.WORKER,
                index=self._place.index,
                pool=self._place.pool,
                address=self._address,
                metrics_port=self._metrics_server.port,
                lineage=self._setup.parameters.lineage,
                version=-1 if version is None else version,
                stage=self._place.stage,
                store_address=self._collectives.store_address if self._collectives else "",
                store_secret=self._collectives.store_secret if self._collectives else "",
                model=self._model.describe(),
                data=self._data.size if self._data else None,
            )
        )

    # --- the coordinator ----------------------------------------------------------------------------------------------

    @property
    def takes_part(self) -> bool:
        """See `Member.takes_part`."""
        return self._engine is not None

    def _carry_out(self, order: Order | CopyAhead) -> None:
        engine = self._engine
        if engine is None or order.generation != engine.context.generation:
            return
        at = self._committed(engine)
        if isinstance(order, Commit | Checkpoint) and order.step != at:
            self._join_again(f"{order.op} of step {order.step}, but this worker is at step {at}")
            return
        match order:
            case Go():
                self._running = True
                self._link.status = "running"
                engine.start()
            case Commit():
                engine.commit(order)
            case NewAllocation():
                engine.allocate(order.allocation)
            case Checkpoint():
                self._saver.save(
                    order, lambda: self._committed(engine), lambda: Part(self._setup.files(engine.committed))
                )
            case Evaluate():
                engine.start_evaluation(order.rows)

    def _committed(self, engine: Engine) -> int:
        """Return the number of committed steps in this worker's state."""
        replica = self._setup.parameters.version
        return engine.committed if replica is None else replica

    def _begin_generation(self, announced: Generation) -> None:
        self._running = False
        self._leave_generation()
        try:
            context, stage = self._setup.enter(announced)
        except SupersededError as error:
            log(f"generation {announced.generation}: {error}")
            return
        except PeerLostError as error:
            self._join_again(f"generation {announced.generation}: {error}")
            return
        except DamagedError as error:
            assert announced.restore is not None, "nothing else is read from a checkpoint"
            self._setup.parameters.forget()
            self._cannot_restore(announced.generation, announced.restore.folder or "", error)
            return
        self._engine = Engine(self._config, context, stage, self._source, self._process)
        self._rebuild_poller()
        self._link.send(Ready(announced.generation))

    def _leave_generation(self) -> None:
        """Drop work in progress and the connections to other members."""
        self._saver.forget()
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._rebuild_poller()

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _rebuild_poller(self) -> None:
        self._poller = zmq.Poller()
        sockets = [*self._link.pollables, self._inbox]
        if self._engine is not None:
            # Outside a generation, messages of other members wait in these sockets.
            sockets += [self._upstream.socket, *self._engine.context.servers.pollables]
            if self._engine.context.downstream is not None:
                sockets += self._engine.context.downstream.pollables
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def _export_metrics(self, place: Place) -> None:
        registry = CollectorRegistry()
        samples = Gauge("heterps_worker_samples", "Samples computed since the process started", registry=registry)
        samples.set_function(lambda: float(self._setup.samples))
        refused = Gauge("heterps_worker_refused_messages", "Messages of generations that are over", registry=registry)
        refused.set_function(lambda: self._upstream.refused)
        operations = Gauge(
            "heterps_worker_operations_per_sample", "Floating-point operations, forward and backward", registry=registry
        )
        operations.set_function(lambda: self._setup.operations_per_sample)
        read = Gauge(
            "heterps_worker_rows_read",
            "Rows read from the files of the data since the process started",
            registry=registry,
        )
        read.set_function(lambda: float(self._data.rows_read if self._data else 0))
        seconds = Gauge(
            "heterps_worker_activity_seconds", "Time spent since the process started", ["activity"], registry=registry
        )

        def totals() -> dict[str, float]:
            """Counters for the pulse; also updates this process's own metrics."""
            spent = dict(self._clock.seconds)
            measured = {
                "memory": resident_bytes(),
                "operations": self._setup.operations_per_sample or None,
                "round-trip": self._round_trip.seconds,
            }
            for activity, value in spent.items():
                seconds.labels(activity).set(value)
            return {
                "samples": float(self._setup.samples),
                work.TOTAL: float(self._setup.work + (self._data.rows_read if self._data else 0)),
                **({"rows-read": float(self._data.rows_read)} if self._data and self._config.streams_data else {}),
                **{name: float(value) for name, value in measured.items() if value is not None},
                **{f"seconds:{a}": v for a, v in spent.items()},
            }

        self._link.totals = totals
        self._metrics_server = MetricsServer(registry, place.host, place.ports.metrics)
