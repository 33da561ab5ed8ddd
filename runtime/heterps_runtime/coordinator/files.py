"""The files of a job: its checkpoints and the exported model.

Methods block unless they say otherwise; the coordinator calls them in threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterps_runtime.checkpoint import (
    Barrier,
    CheckpointManifest,
    Ownership,
    Storage,
    StorageError,
    TableRecord,
    commit,
    explain_mismatch,
    export_model,
    find_latest,
    import_values,
    mark_damaged,
    new_folder,
    take_over,
)
from heterps_runtime.checkpoint.errors import NoCheckpointLeftError
from heterps_runtime.checkpoint.manifest import MANIFEST_NAME, InitialRows, write_manifest
from heterps_runtime.clock import steady_time
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import AUTO
from heterps_runtime.errors import UserError
from heterps_runtime.partition.access import rules_of
from heterps_runtime.processes.process import log
from heterps_runtime.processes.work import WorkCounter
from heterps_runtime.wire.messages import Damaged, Model

__all__ = ["Found", "JobFiles"]

Skipped = tuple[tuple[str, str], ...]  # (folder, reason) of each checkpoint that was skipped
Found = tuple[CheckpointManifest | None, Skipped]  # the newest valid checkpoint, and newer ones


class JobFiles:
    """Checkpoints and exported model of one job.

    Args:
        config: the job; its precision may be chosen later.

    Attributes:
        work: bytes read and written.
    """

    def __init__(self, config: RunConfig) -> None:
        self.work = WorkCounter()
        self._config = config
        self._storage = Storage.open(config.checkpoint_path, self.work)
        self._owner: Ownership | None = None  # until `open`
        self._latest: CheckpointManifest | None = None
        self._skipped: Skipped = ()

    def find(self) -> Found:
        """The checkpoint to resume from, if any, and the reasons for skipping newer ones.

        Of files, only sizes and commits are compared: members compare the checksums of those that they restore.

        Raises:
            StorageError: the storage cannot be read.
            UserError: the newest checkpoint belongs to a job with other settings, or to a newer release.
        """
        manifest, skipped = find_latest(self._storage, contents=False)
        if manifest is None:
            return None, skipped
        config, had = self._config, manifest.fingerprint.get("training.precision")
        if config.precision == AUTO and had in config.allowed_precisions:  # until the choice is made, each will do
            config = config.in_precision(had)
        differences = explain_mismatch(manifest.fingerprint, config.fingerprint())
        if differences:
            fix = "Use another checkpoint.path, or remove them (heterps run --fresh)."
            if config.allowed_precisions and had is not None and had != config.precision:
                fix = f"To go on with them, set training.precision to {had}. {fix}"
            raise UserError(
                f"checkpoint.path: {config.checkpoint_path} holds checkpoints of another job: "
                f"{'; '.join(differences)}. {fix}"
            )
        return manifest, skipped

    def choose_precision(self, precision: str | None) -> None:
        """Note the precision that a plan says; None: the job leaves no choice.

        Raises:
            UserError: the choice is missing, not allowed, or not that of an earlier plan.
        """
        chosen = self._config.in_precision(precision)
        if self._config.precision not in (AUTO, chosen.precision):
            raise UserError(f"plan.precision: the job computes in {self._config.precision} already, not in {precision}")
        self._config = chosen

    def open(self) -> Found:
        """Take over the checkpoints, then find the newest.

        Raises:
            StorageError, UserError: as in `find`.
            NoCheckpointLeftError: there are checkpoints, and all of them are damaged.
        """
        # In this order, so that everything is found that the run before has committed until it was fenced.
        self._owner = take_over(self._storage, self._config.full_name, steady_time())
        return self._resume()

    def pass_over(self, damaged: Damaged) -> Found:
        """Mark a checkpoint that could not be restored, and find the one before.

        Raises:
            FencedError: another run has taken the checkpoints over.
            StorageError, UserError: as in `find`.
            NoCheckpointLeftError: there is none.
        """
        mark_damaged(self._storage, damaged.folder, damaged.file, damaged.reason, self._ownership)
        return self._resume()

    def _resume(self) -> Found:
        found = self.find()
        if found[0] is None:
            self._refuse_loss(found[1])
        if found[0] is None and self._config.init_from:
            found = self._import(), found[1]
        self._latest = found[0]
        new = tuple(one for one in found[1] if one not in self._skipped)  # those that were not returned before
        self._skipped += new
        return found[0], new

    def _refuse_loss(self, skipped: Skipped) -> None:
        """Raise an error if one of these checkpoints was valid once: what it has must not be trained over."""
        lost = [f"{name}: {why}" for name, why in skipped if self._storage.exists(f"{name}/{MANIFEST_NAME}")]
        if lost:
            raise NoCheckpointLeftError(
                f"checkpoint.path: no checkpoint in {self._storage.address} can be restored: {'; '.join(lost)}. Repair "
                "the storage (and delete damaged.json in their folders), or begin again without them: use another "
                "checkpoint.path, or remove them (heterps run --fresh)"
            )

    def _import(self) -> CheckpointManifest:
        """Make a checkpoint of step 0 of the model that `spec.model.initFrom` names."""
        config, folder = self._config, self.new_folder(0)
        like = CheckpointManifest(
            step=0,
            epoch=0,
            seed=config.seed,
            global_batch_size=config.global_batch_size,
            num_rows=0,  # not known yet
            samples=0,
            fingerprint=config.fingerprint(),
            plan={},
            tables=(),
            files=(),
            term=self._ownership.term,
            lineage=0,
        )
        source = Storage.open(config.init_from, self.work)
        manifest = import_values(
            source,
            config.init_from,
            self._storage,
            folder,
            like,
            with_state=config.keep_optimizer_state,
            initial_rows=_initial_values,
        )
        write_manifest(self._storage, manifest, self._ownership)
        return manifest

    def new_folder(self, step: int) -> str:
        """A new name for the folder of a checkpoint; does not block."""
        return new_folder(step, self._ownership.term)

    def discard(self, folder: str) -> None:
        """Remove an unfinished checkpoint of this run."""
        self._storage.delete_dir(folder)

    def commit(
        self, barrier: Barrier, progress: Mapping[str, Any], plan: dict[str, Any], model: Model | None
    ) -> CheckpointManifest:
        """Make a checkpoint valid, and delete old ones.

        Raises:
            CheckpointError: the checkpoint is not valid, or another run has taken the checkpoints over.
        """
        tables = model.tables if model else ()
        rules = rules_of(tables, self._config.tables) if model else {}
        manifest = CheckpointManifest(
            step=barrier.step,
            epoch=progress["epoch"],
            seed=self._config.seed,
            global_batch_size=self._config.global_batch_size,
            num_rows=progress["numRows"],
            layout=progress["layout"],
            samples=progress["samples"],
            fingerprint=self._config.fingerprint(),
            plan=plan,
            tables=tuple(
                TableRecord(
                    index=t.index,
                    name=t.name,
                    num_embeddings=t.num_embeddings,
                    dim=t.dim,
                    init=self._config.embedding_init,
                    dtype=self._config.dtype_name,
                    padding_idx=t.padding_idx,
                ).with_rules(rules[t.index])
                for t in tables
            ),
            files=barrier.entries,
            term=self._ownership.term,
            lineage=barrier.origin.lineage,
            loss=progress["loss"],
            folder=barrier.folder,
            earlier_steps=progress["earlierSteps"],
            loss_scale=progress["lossScale"],
            state_names=model.state_names if model else {},
        )
        try:
            commit(self._storage, manifest, self._config.checkpoint_keep, self._ownership)
        except StorageError as error:
            if not self._storage.exists(f"{manifest.folder}/manifest.json"):
                raise
            log(f"old checkpoints could not be removed: {error}")
        self._latest = manifest
        return manifest

    def export(self, metrics: Mapping[str, Any]) -> str:
        """Export the model of the newest checkpoint; returns the path or address.

        Raises:
            CheckpointError: it cannot be exported, or another run has taken the checkpoints over.
        """
        assert self._latest is not None, "a job ends with a checkpoint"
        return export_model(
            self._storage,
            self._latest,
            self._config.model_path,
            owner=self._ownership,
            initial_rows=_initial_values(self._latest.seed),
            metrics=metrics,
        )

    @property
    def _ownership(self) -> Ownership:
        assert self._owner is not None, "no step is committed before the checkpoints are opened"
        return self._owner


def _initial_values(seed: int) -> InitialRows:
    # Not earlier: jobs wait for the coordinator to start, and compiled kernels would add half to that time.
    from heterps_runtime.exporting import initial_values

    return initial_values(seed)
