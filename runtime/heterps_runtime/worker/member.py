"""A worker's life: join, set up for each generation, run it, end."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
import zmq
from prometheus_client import CollectorRegistry, Gauge

from heterps_runtime.allocation import MicroBatch
from heterps_runtime.checkpoint import (
    CheckpointManifest,
    StateFile,
    Storage,
    check_checkpoint,
    dense_arrays,
    read_dense,
)
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PlanDocument, Role, worker_name
from heterps_runtime.data import BatchOrder, Dataset, Metrics, metrics_for
from heterps_runtime.errors import PeerLostError, TransientError
from heterps_runtime.intake import LossSum, StageModule
from heterps_runtime.link import ControlLink, Credentials
from heterps_runtime.messages import (
    Checkpoint,
    Commit,
    DataSize,
    Evaluate,
    Evaluated,
    FromCoordinator,
    Generation,
    Go,
    Join,
    NewAllocation,
    Ready,
    Rejoin,
    Shutdown,
)
from heterps_runtime.metrics import MetricsServer
from heterps_runtime.process import Wakeup, log
from heterps_runtime.saver import Saver
from heterps_runtime.slots import dense_assignment
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.transport import TokenAuthority, listen_socket
from heterps_runtime.worker.collectives import Collectives
from heterps_runtime.worker.context import WorkerContext
from heterps_runtime.worker.engine import Engine
from heterps_runtime.worker.lookups import LookupBlock
from heterps_runtime.worker.model import UserModel
from heterps_runtime.worker.peers import Downstream, Upstream
from heterps_runtime.worker.replica import Replica
from heterps_runtime.worker.runs import Clock, Prepared
from heterps_runtime.worker.servers import Initialised, ServerClient

__all__ = ["Data", "WorkerMember"]

POLL_MILLISECONDS = 1000


class Data:
    """The data sets of a first-stage worker."""

    def __init__(self, train: Dataset, evaluation: Dataset | None) -> None:
        self.train = train
        self.evaluation = evaluation


class WorkerMember:
    """One worker process.

    Args:
        config: the job.
        link: line to the coordinator.
        context: ZeroMQ context of the process.
        credentials: the job's token.
        stage, index: position in the plan.
        pool: device pool that the worker belongs to.
        host: address to listen on.
        device: where to compute.
        model: the user's model.
        loss: sum of the loss over samples.
        data: the data, for workers of the first stage.
    """

    def __init__(
        self,
        config: RunConfig,
        link: ControlLink,
        context: zmq.Context[zmq.Socket[bytes]],
        credentials: Credentials,
        *,
        stage: int,
        index: int,
        pool: str,
        host: str,
        device: torch.device,
        model: UserModel,
        loss: LossSum,
        data: Data | None,
    ) -> None:
        self._config = config
        self._link = link
        self._context = context
        self._token = credentials.token
        self._stage = stage
        self._index = index
        self._name = worker_name(stage, index)
        self._pool = config.pools[pool]
        self._device = device
        self._model = model
        self._loss = loss
        self._data = data
        self._order = BatchOrder(data.train.num_rows, config.global_batch_size, config.seed) if data else None
        self._authority = TokenAuthority(context, self._token)
        socket, self._address = listen_socket(context, host, self._token)
        self._upstream = Upstream(socket)
        self._wakeup = Wakeup()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._collectives = Collectives(host, config.hang_timeout_seconds) if self._pool.all_reduces else None
        self._storage = Storage.open(config.checkpoint_path)
        self._saver = Saver(self._storage, link, self._wakeup.wake)
        self._clock = Clock()
        self._module: StageModule | None = None
        self._layers: tuple[int, int] | None = None
        self._replica: Replica | None = None
        self._engine: Engine | None = None
        self._running = False
        self._ended = False
        self._lineage = 0  # of the state that the replica holds; 0: this worker never took part
        self._control_messages: deque[FromCoordinator] = deque()  # that came while a generation was set up
        self._metrics: Metrics = metrics_for(config.loss)
        self._unique = UniqueKeys()  # of the feed's thread
        self._poller = zmq.Poller()
        self._past_samples = 0  # of engines of earlier generations
        self._export_metrics(host)

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take part until the coordinator ends the job."""
        self._join()
        while not self._ended:
            engine = self._engine
            worked = engine is not None and self._running and engine.work()
            self._clock.switch("wait" if engine is None or not self._running else engine.waiting_for())
            self._poller.poll(0 if worked else POLL_MILLISECONDS)
            self._clock.switch("messages")
            while not self._ended and (message := self._next_control()) is not None:
                self._control(message)
            self._wakeup.drain()
            while not self._posted.empty():
                self._posted.get()()
            self._saver.report()
            if self._engine is not None:
                self._engine.poll()
        self._close()

    def _close(self) -> None:
        self._saver.close()
        self._link.close()
        self._leave_generation()
        if self._collectives is not None:
            self._collectives.leave()
        self._metrics_server.close()
        self._upstream.socket.close(linger=0)
        self._wakeup.close()
        self._context.term()

    def _join(self) -> None:
        """Ask to take part (again), and say which parameters this worker holds; until then it takes part in nothing."""
        self._running = False
        self._leave_generation()
        data = self._data
        self._link.join(
            Join(
                role=Role.WORKER,
                index=self._index,
                pool=self._pool.name,
                address=self._address,
                metrics_port=self._metrics_server.port,
                lineage=self._lineage,
                version=self._replica.version if self._replica is not None else -1,
                stage=self._stage,
                store_address=self._collectives.store_address if self._collectives else "",
                model=self._model.describe(),
                data=None
                if data is None
                else DataSize(data.train.num_rows, data.evaluation.num_rows if data.evaluation else 0),
            )
        )

    def _next_control(self) -> FromCoordinator | None:
        return self._control_messages.popleft() if self._control_messages else self._link.receive()

    def _control(self, message: FromCoordinator) -> None:
        match message:
            case Generation():
                self._begin_generation(message)
            case Shutdown():
                log(f"ending: {message.reason}")
                self._ended = True
            case Rejoin():
                if self._link.must_rejoin(message):
                    log("joining again: the coordinator had given this process up for lost")
                    self._join()
            case Go() | Commit() | NewAllocation() | Checkpoint() | Evaluate():
                if self._engine is not None and message.generation == self._engine.context.generation:
                    self._carry_out(message, self._engine)

    def _carry_out(self, order: Go | Commit | NewAllocation | Checkpoint | Evaluate, engine: Engine) -> None:
        """Follow an order for the generation in force."""
        match order:
            case Go():
                self._running = True
                self._link.status = "running"
                engine.start()
            case Commit():
                held = order.step if self._replica is None else self._replica.version
                if held != order.step:
                    log(f"joining again: commit of step {order.step}, but this worker stands at {held}")
                    self._join()
                else:
                    engine.commit(order.step, order.batch_size)
            case NewAllocation():
                engine.allocate(order.allocation)
            case Checkpoint():
                self._saver.save(order, self._snapshot)
            case Evaluate():
                self._metrics = metrics_for(self._config.loss)
                engine.start_evaluation(order.rows, self._take_scores, self._evaluated)

    # --- generations --------------------------------------------------------------------------------------------------

    def _begin_generation(self, announced: Generation) -> None:
        """Set up for a new set of members; survivors keep process, model, replica and caches."""
        generation, plan, restore = announced.generation, announced.plan, announced.restore
        self._running = False
        self._leave_generation()
        self._take_stage(plan)
        manifest = None
        if restore is not None and restore.folder:
            manifest = check_checkpoint(self._storage, restore.folder, contents=False)
        rank = [m.name for m in announced.stages[self._stage]].index(self._name)
        self._link.status = f"setting up generation {generation}"
        try:
            replica = self._take_replica(announced, rank, manifest)
            servers = self._define(announced, rank)
        except PeerLostError as error:
            log(f"generation {generation}: {error}; waiting for the next one")
            return
        assert self._module is not None
        if manifest is not None and manifest.files_of("buffers"):
            buffers = read_dense(self._storage, manifest, role="buffers")
            self._module.load_buffers({n: torch.from_numpy(v) for n, v in buffers.items()})
        downstream = None
        if self._stage + 1 < len(plan.stages):
            addresses = [m.address for m in announced.stages[self._stage + 1]]
            downstream = Downstream(self._context, self._token, self._name, generation, addresses)
        context = WorkerContext(
            generation=generation,
            stage=self._stage,
            num_stages=len(plan.stages),
            rank=rank,
            committed=announced.committed,
            total=announced.total,
            num_rows=announced.num_rows,
            allocation=announced.allocation,
            servers=servers,
            downstream=downstream,
            upstream=self._upstream,
            replica=replica,
        )
        self._engine = Engine(
            self._config,
            self._module,
            self._model.tables,
            self._device,
            context,
            self._collectives,
            self._loss,
            self._prepare if self._data is not None else None,
            self._link.send,
            self._wakeup.wake,
            self._post,
            self._clock,
        )
        self._rebuild_poller()
        self._link.send(Ready(generation))

    def _leave_generation(self) -> None:
        """Drop what is under way and the connections to the other members."""
        if self._engine is not None:
            self._engine.close()
            self._past_samples += self._engine.samples
            self._engine.context.servers.close()
            if self._engine.context.downstream is not None:
                self._engine.context.downstream.close()
            self._engine = None
        self._rebuild_poller()

    def _take_stage(self, plan: PlanDocument) -> None:
        stage = plan.stages[self._stage]
        layers = (stage.firstLayer, stage.lastLayer)
        if self._layers != layers:
            self._module = self._model.layered.stage(*layers).to(self._device)
            self._layers = layers
            self._replica = None

    def _take_replica(self, announced: Generation, rank: int, manifest: CheckpointManifest | None) -> Replica | None:
        """Form the stage's process group and agree on the dense parameters (pools that all-reduce)."""
        if self._collectives is None:
            self._lineage = announced.lineage
            return None
        assert self._module is not None
        members = announced.stages[self._stage]
        if self._replica is None or self._lineage != announced.lineage:
            optimizer = DenseOptimizer.from_manifest(self._config.dense_optimizer)
            initial = self._module.initial_parameters()
            self._replica = Replica(initial, optimizer, self._device)
            if announced.restore is not None:
                self._replica.version = announced.committed
                if manifest is not None and self._module.parameter_names:
                    values = read_dense(self._storage, manifest, self._module.parameter_names)
                    self._replica.load(values, announced.committed)
        self._lineage = announced.lineage
        replica, committed = self._replica, announced.committed
        self._collectives.join(
            announced.generation, self._stage, rank, len(members), members[0].store_address, self._device, committed
        )
        try:
            versions = self._collectives.gather_numbers(replica.version, rank, len(members), self._device)
            if any(v != committed for v in versions):
                # Newcomers take parameters and optimizer state from a survivor.
                if committed not in versions:
                    raise TransientError(f"no worker of stage {self._stage} holds the parameters of step {committed}")
                root = versions.index(committed)
                flat = replica.flat_state()  # of the right size in everybody
                self._collectives.broadcast(flat, root)
                if rank != root and replica.version != committed:
                    replica.load_flat_state(flat, committed)
        except RuntimeError as error:
            raise PeerLostError(
                f"a member of stage {self._stage} was lost while parameters were handed on: {error}"
            ) from error
        return replica

    def _define(self, announced: Generation, rank: int) -> ServerClient:
        """Connect to the servers; the first worker of a stage tells them tables and initial dense parameters."""
        assert self._module is not None
        addresses = [s.address for s in announced.servers]
        servers = ServerClient(
            self._context,
            self._token,
            self._name,
            announced.generation,
            addresses,
            np.dtype(self._config.dtype_name),
            self._config.wire_precision,
            dense_assignment(self._model.dense_sizes(), len(addresses)),
        )
        if rank == 0:
            dense = {}
            if self._collectives is None:
                dense = {n: t.detach().cpu().numpy() for n, t in self._module.initial_parameters().items()}
            servers.define(self._model.describe_tables(), dense)
            try:
                self._wait_for_definition(servers)
            except Exception:
                servers.close()
                raise
        return servers

    def _wait_for_definition(self, servers: ServerClient) -> None:
        """Wait until all servers know tables and parameters, or the coordinator wants something else.

        Raises:
            PeerLostError: another generation is to be formed, or the job is over.
            TransientError: neither happens.
        """
        poller = zmq.Poller()
        for socket in (self._link.socket, *servers.sockets):
            poller.register(socket, zmq.POLLIN)
        patience = int(self._config.hang_timeout_seconds * 1000)
        while not any(isinstance(e, Initialised) for e in servers.poll()):
            if not poller.poll(patience):
                raise TransientError("a parameter server does not answer; see its log")
            while (message := self._link.receive()) is not None:
                self._control_messages.append(message)
                if isinstance(message, Generation | Rejoin | Shutdown):
                    raise PeerLostError("the coordinator has given a parameter server up")

    # --- data ---------------------------------------------------------------------------------------------------------

    def _prepare(self, step: int, mine: tuple[MicroBatch, ...], training: bool) -> Prepared:
        """Read this worker's samples of a step and make their ids unique (runs in the feed's thread)."""
        assert self._data is not None
        assert self._module is not None
        batch_size = self._config.global_batch_size
        dataset = self._data.train if training else self._data.evaluation
        assert dataset is not None
        inputs, labels = [], []
        for micro in mine:
            if training:
                assert self._order is not None
                rows = self._order.rows(step, micro.start, micro.stop)
            else:
                rows = np.arange(step * batch_size + micro.start, step * batch_size + micro.stop)
            arrays = dataset.batch(rows, self._module.inputs)
            tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
            if self._config.precision == "fp64":
                tensors = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
            labels.append(tensors.pop("label").to(self._device))
            inputs.append(tensors)
        ids = [self._module.ids(tensors) for tensors in inputs]
        block = LookupBlock(self._module.sites, self._model.tables, ids, self._unique)
        if self._device.type != "cpu":
            inputs = [{n: t.to(self._device) for n, t in tensors.items()} for tensors in inputs]
        return Prepared(step, mine, inputs, labels, block)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _take_scores(self, logits: torch.Tensor, labels: torch.Tensor, loss_sum: float) -> None:
        values = logits.numpy()
        self._metrics.update(
            values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values, labels.numpy(), loss_sum
        )

    def _evaluated(self) -> None:
        assert self._engine is not None
        self._link.send(Evaluated(self._engine.context.generation, self._metrics.to_arrays()))

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _snapshot(self) -> list[StateFile]:
        """Copies of what this worker adds to a checkpoint: dense parameters, if it holds them, and buffers."""
        assert self._module is not None
        files = []
        if self._replica is not None and self._replica.names:
            arrays = dense_arrays(self._replica.snapshot())
            files.append(StateFile(f"dense-stage-{self._stage}.safetensors", arrays, "dense", 1000 + self._stage))
        buffers = {n: t.detach().cpu().numpy().copy() for n, t in self._module.buffers().items()}
        if self._stage == 0:
            buffers = {**self._model.leftovers(), **buffers}
        if buffers:
            arrays = dense_arrays(buffers, "buffers")
            files.append(StateFile(f"buffers-stage-{self._stage}.safetensors", arrays, "buffers", self._stage))
        return files

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], None]) -> None:
        """Run something in this member's thread; may be called from any thread."""
        self._posted.put(action)
        self._wakeup.wake()

    def _rebuild_poller(self) -> None:
        self._poller = zmq.Poller()
        sockets = [self._link.socket, self._wakeup]
        if self._engine is not None:
            # What others send to a worker that takes part in nothing waits in its sockets.
            sockets += [self._upstream.socket, *self._engine.context.servers.sockets]
            if self._engine.context.downstream is not None:
                sockets += self._engine.context.downstream.sockets
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def _export_metrics(self, host: str) -> None:
        registry = CollectorRegistry()
        samples = Gauge("heterps_worker_samples", "Samples computed since the process started", registry=registry)
        samples.set_function(lambda: self._samples())
        refused = Gauge("heterps_worker_refused_messages", "Messages of generations that are over", registry=registry)
        refused.set_function(lambda: self._upstream.refused)
        seconds = Gauge(
            "heterps_worker_activity_seconds", "Time spent since the process started", ["activity"], registry=registry
        )

        def totals() -> dict[str, float]:
            """What the pulse carries; keeps this process's own endpoint fresh on the way."""
            booked = dict(self._clock.seconds)
            for activity, value in booked.items():
                seconds.labels(activity).set(value)
            return {"samples": self._samples(), **{f"seconds:{a}": v for a, v in booked.items()}}

        self._link.totals = totals
        self._metrics_server = MetricsServer(registry, host)

    def _samples(self) -> float:
        current = self._engine.samples if self._engine is not None else 0
        return float(self._past_samples + current)
