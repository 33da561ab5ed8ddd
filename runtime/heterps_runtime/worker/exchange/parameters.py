"""What a worker holds of the model's state: a replica of its stage's dense parameters, where pools all-reduce.

It outlives generations, so that a survivor need not fetch what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from heterps_runtime.checkpoint import CheckpointManifest, StateFile, Storage, dense_arrays, read_dense
from heterps_runtime.config import RunConfig
from heterps_runtime.errors import PeerLostError, TransientError
from heterps_runtime.intake import StageModule
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.wire.messages import Generation
from heterps_runtime.worker.exchange.collectives import Collectives
from heterps_runtime.worker.exchange.replica import Replica

__all__ = ["Parameters", "Replication"]


@dataclass(frozen=True)
class Replication:
    """Dense parameters on pools that all-reduce."""

    replica: Replica  # this worker's copy
    collectives: Collectives  # keep the copies of the stage equal


class Parameters:
    """State of one stage.

    Args:
        config: the job.
        storage: of its checkpoints.
        collectives: of the stage; None where the servers hold the dense parameters.
        stage: index.
        device: where the replica lies.
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
        self.lineage = 0  # of the state; 0: this worker never took part

    @property
    def version(self) -> int | None:
        """Commits that the replica holds, -1 if it has never been agreed on; None: there is none."""
        return None if self._replica is None else self._replica.version

    def forget(self) -> None:
        """The worker computes other layers from now on."""
        self._replica = None

    def agree(
        self, announced: Generation, rank: int, module: StageModule, manifest: CheckpointManifest | None
    ) -> Replication | None:
        """Take up the state of a generation; forms the stage's process group and blocks until all members agree.

        Args:
            announced: the generation.
            rank: of this worker in its stage.
            module: the stage.
            manifest: the checkpoint that all members return to.

        Returns:
            The replica as of the last commit; None where the servers hold the dense parameters.

        Raises:
            PeerLostError: a member of the stage was lost meanwhile.
            TransientError: no member holds the state that the generation goes on with.
        """
        same = self.lineage == announced.lineage
        self.lineage = announced.lineage
        if self._collectives is None:
            return None
        replica = self._replica
        if replica is None or not same:
            replica = self._replica = self._begin(announced, module, manifest)
        self._share(announced, rank, replica, self._collectives)
        return Replication(replica, self._collectives)

    def _begin(self, announced: Generation, module: StageModule, manifest: CheckpointManifest | None) -> Replica:
        """A replica with the values of a checkpoint, or with initial ones."""
        optimizer = DenseOptimizer.from_manifest(self._config.dense_optimizer)
        replica = Replica(module.initial_parameters(), optimizer, self._device)
        if announced.restore is not None:
            replica.version = announced.committed
            if manifest is not None and module.parameter_names:
                values = read_dense(self._storage, manifest, module.parameter_names)
                replica.load(values, announced.committed)
        return replica

    def _share(self, announced: Generation, rank: int, replica: Replica, collectives: Collectives) -> None:
        """Newcomers take parameters and optimizer state from a survivor."""
        members, committed = announced.stages[self._stage], announced.committed
        collectives.join(
            announced.generation, self._stage, rank, len(members), members[0].store_address, self._device, committed
        )
        try:
            versions = collectives.gather_numbers(replica.version, rank, len(members), self._device)
            if all(v == committed for v in versions):
                return
            if committed not in versions:
                raise TransientError(f"no worker of stage {self._stage} holds the parameters of step {committed}")
            root = versions.index(committed)
            flat = replica.flat_state()  # of equal size on all ranks
            collectives.broadcast(flat, root)
            if rank != root and replica.version != committed:
                replica.load_flat_state(flat, committed)
        except RuntimeError as error:
            raise PeerLostError(
                f"a member of stage {self._stage} was lost while parameters were handed on: {error}"
            ) from error

    def files(self) -> list[StateFile]:
        """Copies of the parameters and their optimizer state, as files of a checkpoint."""
        if self._replica is None or not self._replica.names:
            return []
        arrays = dense_arrays(self._replica.snapshot())
        return [StateFile(f"dense-stage-{self._stage}.safetensors", arrays, "dense", 1000 + self._stage)]
