"""A coordinator core with recorded effects, members that say what tests want, and a clock that tests turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heterps_runtime.checkpoint.writer import Barrier
from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.contract import PlanDocument, Role
from heterps_runtime.coordinator.core import CoordinatorCore
from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.wire.messages import (
    Checkpoint,
    Checkpointed,
    Commit,
    CopiedAhead,
    CopyAhead,
    Damaged,
    DataSize,
    Done,
    Evaluated,
    FromCoordinator,
    FromMember,
    Join,
    Message,
    Pulse,
    Ready,
)
from tests.heterps_runtime.helpers.jobs import Stage, plan_document

BATCH, ROWS, TOTAL, EVERY, HANG = 32, 300, 24, 10, 60.0

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Record:
    step: int
    folder: str
    samples: int = 0
    num_rows: int = ROWS
    layout: str = ""
    earlier_steps: int = 0
    loss_scale: dict[str, Any] | None = None


class World:
    """A core with recorded effects; members are names, and say what tests want them to say."""

    def __init__(
        self, stages: Sequence[Stage], servers: int = 1, latest: Record | None = None, opens: bool = True, **config: Any
    ) -> None:
        pools = {n: PoolConfig(n, t, "cpu", 1, None) for n, t in (("cpu", "CPU"), ("card", "GPU"))}  # type: ignore[arg-type]
        settings: dict[str, Any] = {
            "consistency": "sync",
            "max_staleness": 0,
            "staleness_warmup": 0,
            "steps": TOTAL,
            "epochs": None,
            "checkpoint_every": EVERY,
            "precision": "fp32",
            "hang_timeout_seconds": HANG,
            "replication": 1,
            **config,
        }
        self.config = RunConfig(
            name="job", entrypoint="m:build", arguments={}, loss="l:loss", embedding_init={}, data={},
            global_batch_size=BATCH, micro_batches=2, dense_optimizer={}, sparse_optimizer={}, seed=1,
            wire_precision="full", spill=None, encrypted=False, checkpoint_path="/c", checkpoint_keep=3,
            checkpoint_increments=True, pools=pools,
            work_directory=Path("/w"), model_path="/w/model", python_path=(), namespace="", **settings,
        )  # fmt: skip
        self.now = 1000.0
        self.sent: list[tuple[str, FromCoordinator]] = []
        self.encoded: list[type[Message]] = []  # types of the same messages, each once for all its receivers
        self.addressed: list[tuple[str, str, type[Message]]] = []  # (name, incarnation, type) of the same messages
        self.manifests: list[tuple[Barrier, dict[str, Any]]] = []
        self.discarded: list[str] = []
        self.damaged: list[Damaged] = []
        self.exports: list[int] = []
        self.commits: list[int] = []  # every commit that was announced, in order
        self.stages, self.servers, self._folders = stages, servers, 0
        self.incarnations: dict[str, int] = {}
        self.latest, self.opens = latest, opens
        self.core = CoordinatorCore(
            self.config, self, lambda: self.now, Journal(lambda: 1e9 + self.now),
            lambda messages: {"auc": float(len(messages))},
        )  # fmt: skip
        self.core.set_plan(PlanDocument.from_json(plan_document(stages, servers)))

    # effects
    def open_checkpoints(self) -> None:
        if self.opens:
            self.open()

    def open(self) -> None:
        self.core.checkpoints_opened(self.latest)

    def pass_over_checkpoint(self, damaged: Damaged) -> None:
        self.damaged.append(damaged)

    def send(self, processes: Sequence[Address], message: FromCoordinator) -> None:
        self.encoded.append(type(message))
        for member, incarnation in processes:
            self.sent.append((member, message))
            self.addressed.append((member, incarnation, type(message)))
        if isinstance(message, Commit) and message.step not in self.commits[-1:]:
            self.commits.append(message.step)

    def write_manifest(self, barrier: Barrier, progress: dict[str, Any], plan: dict[str, Any]) -> None:
        self.manifests.append((barrier, progress))

    def checkpoint_folder(self, step: int) -> str:
        self._folders += 1
        return f"step-{step}-{self._folders}"

    def discard_checkpoint(self, folder: str) -> None:
        self.discarded.append(folder)

    def export(self) -> None:
        assert self.core.checkpoints.latest is not None
        self.exports.append(self.core.checkpoints.latest.step)

    # what members do
    @property
    def workers(self) -> list[str]:
        return [f"worker-{i}-{w}" for i, (_, _, n) in enumerate(self.stages) for w in range(n)]

    @property
    def names(self) -> list[str]:
        return [*self.workers, *(f"ps-{i}" for i in range(self.servers))]

    def say(self, name: str, message: FromMember) -> None:
        self.core.handle(name, str(self.incarnations.get(name, 0)), message)

    def join(
        self,
        *names: str,
        rows: int = ROWS,
        evaluation: int = 0,
        joins: int = 1,
        lineage: int = 0,
        version: int = -1,
        divisions: tuple[int, ...] | None = None,
    ) -> None:
        for name in names or self.names:
            self.incarnations[name] = self.incarnations.get(name, 0) + 1
            parts = name.split("-")
            worker = parts[0] == "worker"
            stage = int(parts[1]) if worker else -1
            words = Join(
                role=Role.WORKER if worker else Role.PS,
                index=int(parts[-1]),
                pool=self.stages[stage][0] if worker else "cpu",
                address=f"tcp://{name}:1",
                metrics_port=0,
                lineage=lineage,
                version=version,
                divisions=() if worker or not lineage else divisions or (self.servers,),
                joins=joins,
                stage=stage,
                data=DataSize(rows, evaluation) if stage == 0 else None,
            )
            self.say(name, words)

    def ready(self, *names: str) -> None:
        assert self.core.membership.roster is not None
        for name in names or tuple(self.core.membership.roster.present):
            self.say(name, Ready(self.core.membership.generation))

    def copied_ahead(self, num_rows: int = 0) -> None:
        """The servers that were told to copy ahead in this generation have done so, some rows each."""
        generation = self.core.membership.generation
        told = [n for n, m in self.sent if isinstance(m, CopyAhead) and m.generation == generation]
        for name in dict.fromkeys(told):
            self.say(name, CopiedAhead(generation, num_rows))

    def evaluated(self, name: str) -> None:
        self.say(name, Evaluated(self.core.membership.generation, {}))

    def begin(self, **words: Any) -> World:
        self.join(**words)
        self.ready()
        assert self.core.membership.running
        return self

    def done(
        self, name: str, step: int | None = None, loss: float = 1.0, finite: bool = True, scale: float | None = None
    ) -> None:
        step = self.core.progress.committed if step is None else step
        self.say(name, Done(self.core.membership.generation, step, loss, finite, {"step": 1.0}, scale))

    def pass_time(self, seconds: float, *speaking: str) -> None:
        """Time goes by, with a tick and a pulse of each of these members every half second."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for name in speaking:
                self.say(name, Pulse(0, "running", {}))
            self.core.tick()

    def step(self, number: int = 1) -> None:
        assert self.core.membership.roster is not None
        for _ in range(number):
            step = self.core.progress.committed
            for member in self.core.membership.roster.all_workers():
                self.done(member.name, step)

    def write(self, error: str = "") -> None:
        """All parts of the checkpoint under way are written, or one fails."""
        order = self.last(Checkpoint)
        writers = [n for n, m in self.sent if isinstance(m, Checkpoint) and m.folder == order.folder]
        for name in writers:
            reason = error if name == "worker-0-0" else ""
            self.say(name, Checkpointed(self.core.membership.generation, order.step, order.folder, (), reason))

    def write_part(self, name: str) -> None:
        """One member has written its part of the checkpoint under way."""
        order = self.last(Checkpoint)
        self.say(name, Checkpointed(self.core.membership.generation, order.step, order.folder, ()))

    def save(self) -> None:
        """The checkpoint under way becomes valid."""
        before = len(self.manifests)
        self.write()
        assert len(self.manifests) == before + 1
        self.written()

    def written(self) -> None:
        barrier, _ = self.manifests[-1]
        self.core.manifest_written(Record(barrier.step, barrier.folder))

    # what tests look at
    def reasons(self) -> list[str]:
        return [e["reason"] for e in self.core.journal.events()]

    def last(self, kind: type[M]) -> M:
        return [m for _, m in self.sent if isinstance(m, kind)][-1]

    def told(self, kind: type[Message]) -> list[str]:
        return [n for n, m in self.sent if isinstance(m, kind)]


ONE_CPU: list[Stage] = [("cpu", 0, 2)]
CARDS: list[Stage] = [("cpu", 0, 1), ("card", 1, 2)]
