"""Setting up a worker for a generation: its stage, state and connections. Surviving workers keep what they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
import zmq

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    Origin,
    StateFile,
    Storage,
    dense_arrays,
    imported_values,
    read_dense,
    read_manifest,
    verify_file,
)
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PlanDocument
from heterps_runtime.errors import PeerLostError, SupersededError
from heterps_runtime.partition.batches import Batches
from heterps_runtime.partition.pieces import divide
from heterps_runtime.processes.process import Wakeup
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.wire.messages import FromCoordinator, Generation, Rejoin, Shutdown
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.worker.exchange.collectives import Collectives
from heterps_runtime.worker.exchange.parameters import Parameters
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from heterps_runtime.worker.model import Workload
from heterps_runtime.worker.rows.entries import RowFormat
from heterps_runtime.worker.rows.servers import Initialised, ServerClient
from heterps_runtime.worker.steps.context import WorkerContext, WorkerProcess
from heterps_runtime.worker.steps.schedule import Schedule
from heterps_runtime.worker.steps.stage import Stage
from heterps_runtime.worker.tensors import arrays_of

__all__ = ["GenerationSetup"]

_POLL_MILLISECONDS = 1000


class GenerationSetup:
    """Sets up a worker for one generation after another.

    Args:
        config: the job.
        process: line to the coordinator, inbox and clock.
        context, security: for connections to other members.
        stage: index of the worker's stage.
        index: of the worker in the plan's stage.
        upstream: socket for the previous stage.
        collectives: of the stage; None if servers hold the dense parameters.
        workload: the model and the device.
    """

    def __init__(
        self,
        config: RunConfig,
        process: WorkerProcess,
        context: zmq.Context[zmq.Socket[bytes]],
        security: LinkSecurity,
        *,
        stage: int,
        index: int,
        upstream: Upstream,
        collectives: Collectives | None,
        workload: Workload,
    ) -> None:
        self._work = WorkCounter()
        self.storage = Storage.open(config.checkpoint_path, self._work)
        self.parameters = Parameters(config, self.storage, collectives, stage, workload.device)
        self._config = config
        self._process = process
        self._context = context
        self._security = security
        self._index, self._worker = stage, index
        self._upstream = upstream
        self._workload = workload
        self._stage: Stage | None = None
        self._layers: tuple[int, int] | None = None
        self._holds_dense = collectives is not None

    @property
    def samples(self) -> int:
        """Samples computed since the process started."""
        return self._stage.samples if self._stage is not None else 0

    @property
    def operations_per_sample(self) -> float:
        """Floating-point operations of a sample in this stage, forward and backward; 0: not counted yet, or none."""
        return self._stage.operations.per_sample if self._stage is not None else 0.0

    @property
    def work(self) -> int:
        """Bytes of checkpoints read and written, and samples computed, since the process started."""
        return self._work.total + self.samples

    def enter(self, announced: Generation) -> tuple[WorkerContext, Stage]:
        """Set up for a new set of members.

        Raises:
            PeerLostError: this generation cannot start.
            SupersededError: the coordinator has announced another generation, or ended the job.
            TransientError: no member has the state.
            StorageError, DamagedError: the checkpoint to restore cannot be read.
        """
        stage = self._take_stage(announced.plan)
        restore, manifest = announced.restore, None
        if restore is not None and restore.folder:
            roles = ("dense", "buffers") if self._holds_dense else ("buffers",)
            manifest = read_manifest(self.storage, restore.folder)
            for entry in manifest.files:
                if entry.role in roles:
                    verify_file(self.storage, restore.folder, entry, manifest.origin)
        self._upstream.begin(announced.generation)
        rank = announced.workers.index(self._worker)
        self._process.link.status = f"setting up generation {announced.generation}"
        replication = self.parameters.agree(announced, rank, stage.module, manifest, self._wait_for)
        servers = self._connect_servers(announced, rank, stage)
        self._restore_buffers(stage, manifest)
        context = WorkerContext(
            generation=announced.generation,
            stage=self._index,
            num_stages=len(announced.plan.stages),
            committed=announced.committed,
            total=announced.total,
            loss_scale=announced.loss_scale,
            schedule=Schedule(
                Batches(announced.num_rows, self._config.global_batch_size),
                (announced.allocation,),
                self._index,
                rank,
                self._config.micro_batches,
            ),
            servers=servers,
            downstream=self._connect_downstream(announced),
            upstream=self._upstream,
            replication=replication,
        )
        return context, stage

    def files(self, committed: int) -> list[StateFile]:
        """Copies of this worker's state for a checkpoint: buffers, and what else it holds of the stage.

        Args:
            committed: steps in the buffers.
        """
        assert self._stage is not None
        files = self.parameters.files()
        buffers = {n: t.detach().cpu().numpy().copy() for n, t in self._stage.module.buffers().items()}
        buffers |= self.parameters.statistics()
        if self._index == 0:
            buffers = {**self._workload.model.leftovers(), **buffers}
        if buffers:
            arrays, origin = dense_arrays(buffers, "buffers"), Origin(committed, self.parameters.lineage)
            files.append(StateFile(f"buffers-stage-{self._index}.safetensors", arrays, origin, "buffers", self._index))
        return files

    # --- parts --------------------------------------------------------------------------------------------------------

    def _take_stage(self, plan: PlanDocument) -> Stage:
        mine = plan.stages[self._index]
        layers = (mine.firstLayer, mine.lastLayer)
        if self._stage is None or self._layers != layers:
            workload = self._workload
            module = workload.model.stage(*layers, workload.device)
            tables = workload.model.layered.tables
            self._stage = Stage(module, tables, workload.device, workload.loss, self._process.clock)
            self._layers = layers
            self.parameters.forget()
        return self._stage

    def _restore_buffers(self, stage: Stage, manifest: CheckpointManifest | None) -> None:
        if manifest is not None and manifest.files_of("buffers"):
            if manifest.imported_from:
                own = {n: t.detach().cpu().numpy() for n, t in stage.module.buffers().items()}
                buffers = imported_values(self.storage, manifest, own, role="buffers")
            else:
                buffers = read_dense(self.storage, manifest, role="buffers")
            stage.module.load_buffers({n: torch.from_numpy(v) for n, v in buffers.items()})

    def _connect_downstream(self, announced: Generation) -> Downstream | None:
        if not announced.next_stage:
            return None
        name, addresses = self._process.link.name, announced.next_stage
        return Downstream(self._context, self._security, name, announced.generation, addresses)

    def _connect_servers(self, announced: Generation, rank: int, stage: Stage) -> ServerClient:
        """Connect to the servers. The first worker of a stage sends them tables and initial values."""
        model = self._workload.model
        servers = ServerClient(
            self._context,
            self._security,
            self._process.link.name,
            announced.generation,
            announced.servers,
            RowFormat(np.dtype(self._config.dtype_name), self._config.wire_precision, self._workload.device),
            divide(model.dense_sizes(), len(announced.servers), whole=model.statistics_names),
            self._config.replication,
        )
        if rank == 0:
            dense, statistics = {}, {}
            if not self._holds_dense:
                dense = arrays_of(stage.module.initial_parameters())
                statistics = arrays_of(stage.module.initial_statistics())
            servers.define(model.layered.tables, dense, statistics)
            try:
                self._wait_for_definition(servers)
            except Exception:
                servers.close()
                raise
        return servers

    def _wait_for_definition(self, servers: ServerClient) -> None:
        """Wait until all servers know the tables and parameters; raises as `_wait_until`."""

        def known() -> bool:
            initialised = any(isinstance(e, Initialised) for e in servers.poll())
            if not initialised and servers.broke():
                raise PeerLostError("the connection to a parameter server broke")
            servers.probe()
            return initialised

        self._wait_until(known, servers.pollables)

    def _wait_for(self, future: Future[torch.Tensor | None]) -> torch.Tensor | None:
        """Wait for the other workers of the stage; raises as the future or as `_wait_until`."""
        wakeup = Wakeup()
        future.add_done_callback(lambda _: wakeup.wake())
        try:
            self._wait_until(future.done, [wakeup])
        finally:
            wakeup.close()
        return future.result()

    def _wait_until(self, reached: Callable[[], bool], pollables: Iterable[Any]) -> None:
        """Wait until a condition holds; it is asked whenever one of `pollables` can be read, and each second.

        There is no timeout: a server may read a large checkpoint, and the coordinator notices a job that stands still.

        Raises:
            PeerLostError: the connection to the coordinator broke.
            SupersededError: the coordinator has announced another generation, or ended the job.
        """
        link = self._process.link
        poller = zmq.Poller()
        for socket in (*link.pollables, *pollables):
            poller.register(socket, zmq.POLLIN)
        deferred: list[FromCoordinator] = []
        try:
            while not reached():
                poller.poll(_POLL_MILLISECONDS)
                link.probe()
                while (message := link.receive()) is not None:
                    deferred.append(message)
                    if isinstance(message, Generation | Rejoin | Shutdown):
                        raise SupersededError("the coordinator no longer waits for it")
                if link.broke():
                    raise PeerLostError("the connection to the coordinator broke")
        finally:
            link.put_back(deferred)
