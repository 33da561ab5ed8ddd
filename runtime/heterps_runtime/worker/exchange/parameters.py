"""A worker's replica of its stage's dense parameters, on pools that all-reduce.

It outlives generations, so that surviving workers need not fetch it again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    Origin,
    StateFile,
    Storage,
    dense_arrays,
    imported_values,
    read_dense,
)
from heterps_runtime.config import RunConfig
from heterps_runtime.errors import PeerLostError, TransientError
from heterps_runtime.intake import StageModule
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.wire.messages import Generation
from heterps_runtime.worker.exchange.collectives import Collectives, Group
from heterps_runtime.worker.exchange.replica import Array, Replica

__all__ = ["Parameters", "Replication", "Wait"]

#: Waits for a value of another thread; raises its exception, or another one if it is not worth waiting for any more.
Wait = Callable[[Future[torch.Tensor | None]], torch.Tensor | None]


@dataclass(frozen=True)
class Replication:
    """Dense parameters on pools that all-reduce."""

    replica: Replica  # this worker's copy
    group: Group  # keeps the copies of the stage equal


class Parameters:
    """The dense parameters of a stage.

    Args:
        config: the job.
        storage: of its checkpoints.
        collectives: of the stage; None if servers hold the dense parameters.
        stage: index.
        device: of the replica.
    """

    def __init__(
        self, config: RunConfig, storage: Storage, collectives: Collectives | None, stage: int, device: torch.device
    ) -> None:
        self._config = config
        self._storage = storage
        self._collectives = collectives
        self._stage = stage
        self._device = device
        self._replica: Replica | None = None
        self.lineage = 0  # of the state; 0: never took part

    @property
    def version(self) -> int | None:
        """Commits in the replica; -1: initial values that are not shared yet; None: there is no replica."""
        return None if self._replica is None else self._replica.version

    def forget(self) -> None:
        """Drop the replica: the worker computes other layers from now on, or what it restored is damaged."""
        self._replica, self.lineage = None, 0

    def agree(
        self, announced: Generation, rank: int, module: StageModule, manifest: CheckpointManifest | None, wait: Wait
    ) -> Replication | None:
        """Bring the replica to the state of a generation; blocks until all members of the stage have it.

        Args:
            announced: the generation.
            rank: of this worker in its stage.
            module: the stage.
            manifest: the checkpoint to restore.
            wait: for the other members.

        Returns:
            The replica of the last commit; None if servers hold the dense parameters.

        Raises:
            PeerLostError: a member of the stage was lost.
            TransientError: no member has the state of the generation.
        """
        same = self.lineage == announced.lineage
        self.lineage = announced.lineage
        if self._collectives is None:
            return None
        replica = self._replica
        if replica is None or not same:
            replica = self._replica = self._begin(announced, module, manifest)
        replica.earlier_steps = announced.earlier_steps
        return Replication(replica, self._share(announced, rank, replica, self._collectives, wait))

    def _begin(self, announced: Generation, module: StageModule, manifest: CheckpointManifest | None) -> Replica:
        """A replica with values of a checkpoint, or with initial values."""
        optimizer = DenseOptimizer.from_manifest(self._config.dense_optimizer)
        replica = Replica(module.initial_parameters(), module.initial_statistics(), optimizer, self._device)
        if announced.restore is not None:
            replica.version = announced.committed
            if manifest is not None and manifest.imported_from:
                self._import(replica, manifest)
            elif manifest is not None:
                values = read_dense(self._storage, manifest, module.parameter_names)
                statistics = read_dense(self._storage, manifest, module.statistics_names, role="buffers")
                replica.load(values, statistics, announced.committed)
        return replica

    def _import(self, replica: Replica, manifest: CheckpointManifest) -> None:
        """Replace initial values by those of another model, as far as it has them."""
        initial, statistics = replica.snapshot(), replica.statistics_snapshot()
        values = imported_values(self._storage, manifest, initial)
        buffers = imported_values(self._storage, manifest, statistics, role="buffers")
        replica.load({**initial, **values}, {**statistics, **buffers}, replica.version)

    def _share(self, announced: Generation, rank: int, replica: Replica, collectives: Collectives, wait: Wait) -> Group:
        """Copy parameters and optimizer state from a surviving worker to new ones."""
        size, committed, rendezvous = len(announced.workers), announced.committed, announced.rendezvous
        assert rendezvous is not None, "workers are told of one"
        turn = committed * len(replica.buckets)  # each bucket of a step has one
        group = collectives.begin(announced.generation, self._stage, rank, size, rendezvous, self._device, turn)
        version = replica.version

        def exchange() -> torch.Tensor | None:
            versions = group.gather_numbers(version, rank, size, self._device)
            if all(v == committed for v in versions):
                return None
            if committed not in versions:
                raise TransientError(f"no worker of stage {self._stage} has the parameters of step {committed}")
            flat = replica.flat_state()  # of equal size on all ranks
            group.check()  # a copy that the next generation has changed under this thread goes nowhere
            group.broadcast(flat, versions.index(committed))
            return flat if version != committed else None

        try:
            flat = wait(group.submit(exchange))
        except RuntimeError as error:
            raise PeerLostError(
                f"a member of stage {self._stage} was lost while parameters were copied: {error}"
            ) from error
        if flat is not None:
            replica.load_flat_state(flat, committed)
        return group

    def statistics(self) -> dict[str, Array]:
        """Copies of the replica's statistics; none if servers hold them."""
        return {} if self._replica is None else self._replica.statistics_snapshot()

    def files(self) -> list[StateFile]:
        """A copy of parameters and optimizer state, as files of a checkpoint; statistics are in another one."""
        if self._replica is None or not self._replica.names:
            return []
        arrays, origin = dense_arrays(self._replica.snapshot()), Origin(self._replica.version, self.lineage)
        return [StateFile(f"dense-stage-{self._stage}.safetensors", arrays, origin, "dense", 1000 + self._stage)]
