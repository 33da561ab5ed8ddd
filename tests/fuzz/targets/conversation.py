"""Messages of members to a coordinator's core, and what must hold whatever they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import xxhash

from heterps_operator.loop.coordinator_answers import read_status
from heterps_runtime.contract import FINAL_PHASES
from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.figures import JobMetrics, describe_job
from heterps_runtime.data.evaluation import metrics_for
from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.codec import decode
from heterps_runtime.wire.messages import (
    Checkpoint,
    Commit,
    Done,
    Evaluated,
    FromCoordinator,
    FromMember,
    Generation,
    Go,
    Join,
    Message,
    Ready,
)
from tests.heterps_runtime.helpers.coordinator_world import Record, World

__all__ = ["WORLDS", "Conversation", "play", "regular"]

WORLDS: list[dict[str, Any]] = [
    {"stages": [("cpu", 0, 2)], "servers": 2, "replication": 2},
    {"stages": [("cpu", 0, 1), ("card", 1, 2)], "servers": 1, "precision": "fp16"},
    {"stages": [("cpu", 0, 1), ("cpu", 1, 1)], "servers": 1, "consistency": "async", "max_staleness": 2},
]
_STEPS, _EVERY, _ROWS = 4, 2, 96
_ENTRIES = 400  # of a conversation
_ARRAY_BYTES = 1 << 16  # of a message
_MOST_FIGURES = 64  # names that the coordinator keeps of a member


class Conversation(World):
    """A core whose orders are compared with what its members have said."""

    def __init__(self, number: int) -> None:
        self.generation: Generation | None = None  # the latest
        self.formed: list[Address] = []  # its members
        self.said_ready: set[Address] = set()  # those of them that have said so
        self.said_done: set[tuple[Address, int]] = set()  # their shares of steps
        self.held: dict[Address, tuple[int, int]] = {}  # (lineage, commits) of the state of each process
        options = dict(WORLDS[number])
        super().__init__(options.pop("stages"), steps=_STEPS, checkpoint_every=_EVERY, **options)
        self.core.evaluation._merge = self._merge
        self.metrics = JobMetrics(self.core, self.config, lambda: 0.0)

    def _merge(self, messages: Sequence[Evaluated]) -> dict[str, Any]:
        """As `CoordinatorServer._merge_evaluation`."""
        merged = metrics_for("binary_cross_entropy_with_logits")
        for message in messages:
            merged.merge(message.metrics)
        return merged.results()

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def send(self, processes: Sequence[Address], message: FromCoordinator) -> None:
        match message:
            case Generation():
                if self.generation is None or message.generation != self.generation.generation:
                    self._begin(message)
                self.formed += processes
                self._compare_state(processes, message)
            case Go():
                assert set(self.formed) <= self.said_ready, "all members are ready"
            case Commit():
                self._compare_commit(message)
        super().send(processes, message)

    def _begin(self, announced: Generation) -> None:
        assert self.generation is None or announced.generation > self.generation.generation
        self.generation, self.formed = announced, []
        self.said_ready.clear()
        self.said_done.clear()
        if announced.restore is not None:
            assert announced.committed == announced.restore.step
            self.commits = list(range(announced.committed))
        assert announced.committed == len(self.commits), "no step is lost or counted twice"

    def _compare_state(self, processes: Sequence[Address], announced: Generation) -> None:
        if announced.restore is not None:
            return
        for process in processes:
            name = process[0]
            if name.startswith("ps-") and int(name.removeprefix("ps-")) not in announced.missing:
                assert self.held.get(process) == (announced.lineage, announced.committed), f"{name} lacks the state"

    def _compare_commit(self, commit: Commit) -> None:
        assert self.generation is not None
        assert commit.generation == self.generation.generation
        assert commit.step == len(self.commits), "each step is committed once, in order"
        assert set(self.formed) <= self.said_ready
        for process in self.formed:
            if process[0].startswith("worker-"):
                assert (process, commit.step) in self.said_done, f"{process[0]} has not reported step {commit.step}"
            if self.held.get(process) == (self.generation.lineage, commit.step):
                self.held[process] = (self.generation.lineage, commit.step + 1)

    # --- what members say ---------------------------------------------------------------------------------------------

    def hear(self, name: str, incarnation: str, message: FromMember) -> None:
        """Hear a message as a coordinator's server does; a faulty one costs its sender the membership."""
        process, now = (name, incarnation), self.generation
        match message:
            case Join():
                self.held[process] = (message.lineage, message.version)
            case Ready() if now and message.generation == now.generation and process in self.formed:
                self.said_ready.add(process)
                self.held[process] = (now.lineage, now.committed)
            case Done() if now and message.generation == now.generation:
                self.said_done.add((process, message.step))
        try:
            self.core.handle(name, incarnation, message)
        except ProtocolError as error:
            self.core.messages_lost(name, incarnation, str(error))

    def check(self) -> None:
        """Compare what is kept with its bounds; the controller and Prometheus must be able to read the figures."""
        core, workers = self.core, len(self.workers)
        reports = sum(len(reports) for reports in core.steps._reports.values())
        assert reports <= (self.config.max_staleness + 2) * workers
        assert core.membership.notes.keys() <= set(self.names)
        assert core.liveness._heard.keys() <= set(self.names)
        for member in core.membership.planned.present.values():
            assert len(member.figures) <= _MOST_FIGURES
            assert len(member.totals) <= _MOST_FIGURES
        read_status(json.loads(json.dumps(describe_job(core, self.config, 0.0))))
        self.metrics.render()


def play(document: Any) -> None:
    """Let members say what a document says.

    Args:
        document: `{"world": N, "entries": [...]}`. An entry is `[name, incarnation, header]`, the header of a message,
            or the name of another input of the core.
    """
    if not isinstance(document, dict) or not isinstance(entries := document.get("entries"), list):
        return
    world = document.get("world")
    heard = Conversation(world if type(world) is int and 0 <= world < len(WORLDS) else 0)
    for entry in entries[:_ENTRIES]:
        if isinstance(entry, str) and entry in _INPUTS:
            _INPUTS[entry](heard)
        elif isinstance(entry, list) and len(entry) == 3:
            name, incarnation, header = entry
            message = _message(heard, header)
            if message is not None and isinstance(name, str) and isinstance(incarnation, str):
                heard.hear(name, incarnation, message)
        if heard.core.phase in FINAL_PHASES:
            break
    heard.check()


def _wait(world: Conversation) -> None:
    world.now += 1.0
    world.core.tick()


def _written(world: Conversation) -> None:
    if world.manifests:
        barrier, progress = world.manifests[-1]
        record = Record(barrier.step, barrier.folder, progress["samples"], progress["numRows"])
        world.core.manifest_written(record)


def _not_written(world: Conversation) -> None:
    if world.manifests:
        world.core.checkpoint_failed(world.manifests[-1][0].folder, "no space")


def _leave(world: Conversation) -> None:
    world.core.leave("the coordinator")


_INPUTS: dict[str, Callable[[Conversation], None]] = {
    "wait": _wait,
    "written": _written,
    "not written": _not_written,
    "opened": lambda world: world.core.checkpoints_opened(world.core.checkpoints.latest),
    "exported": lambda world: world.core.exported("/w/model"),
    "lost": lambda world: world.core.member_lost(world.names[-1], "NodeLost"),
    "stop": lambda world: world.core.request_stop(),
    "leave": _leave,
}


def _message(world: Conversation, header: Any) -> FromMember | None:
    """A message with this header; the text "now" stands for what the coordinator said last; None: it is malformed."""
    if not isinstance(header, dict):
        return None
    sent = [m for _, m in world.sent if isinstance(m, Checkpoint)]
    now = {
        "generation": world.core.membership.generation,
        "step": world.core.progress.committed,
        "folder": sent[-1].folder if sent else "",
    }
    header = {key: now.get(key, value) if value == "now" else value for key, value in header.items()}
    frames = [json.dumps(header).encode(), *_arrays(header.get("metrics"))]
    checksum, stamp = xxhash.xxh3_64(bytes(16)), bytes(16)
    for frame in frames:
        checksum.update(frame)
    try:
        message: Message = decode([checksum.digest() + stamp, *frames])
    except ProtocolError:
        return None
    return message if isinstance(message, FromMember) else None


def _arrays(metrics: Any) -> Iterator[bytes]:
    """The bytes of described arrays of 64 bits, all ones: `[dtype, shape]` each."""
    for described in metrics.values() if isinstance(metrics, dict) else ():
        size = 1
        shape = described[1] if isinstance(described, list) and len(described) == 2 else None
        for length in shape if isinstance(shape, list) else ():
            size *= length if type(length) is int and 0 <= length <= _ARRAY_BYTES else _ARRAY_BYTES
        yield b"\x01\x00\x00\x00\x00\x00\x00\x00" * min(size, _ARRAY_BYTES // 8)


def regular(number: int) -> dict[str, Any]:
    """The conversation of a job that trains, is evaluated and ends, in which each member says all that it may."""
    world = Conversation.__new__(Conversation)
    options = WORLDS[number]
    world.stages, world.servers = options["stages"], options["servers"]
    entries: list[Any] = []

    def say(name: str, op: str, **fields: Any) -> None:
        entries.append([name, "a", {"op": op, **fields}])

    def join(name: str, joins: int) -> None:
        role, *numbers = name.split("-")
        stage = int(numbers[0]) if role == "worker" else -1
        data = {"train": _ROWS, "evaluation": 8, "layout": ""} if stage == 0 else None
        say(
            name, "join", role=role, index=int(numbers[-1]), pool=world.stages[stage][0] if stage >= 0 else "cpu",
            address="tcp://h:1", metrics_port=1, lineage=0, version=-1, joins=joins, stage=stage, store_address="",
            store_secret="", model=None, data=data,
        )  # fmt: skip

    for name in world.names:
        join(name, 1)
    last = world.workers[-1]
    say(last, "pulse", joins=1, status="computing", totals={"memory": 1.0, "operations": 2.0})
    for name in world.names:
        say(name, "ready", generation="now")
    say(last, "failed", reason="Slow", message="disk", permanent=False)
    say("ps-0", "copied-ahead", generation="now")
    for step in range(_STEPS):
        for name in world.workers:
            say(
                name, "done", generation="now", step="now", loss_sum=0.5, finite=True, figures={"step": 0.1},
                loss_scale=65536.0 if options.get("precision") == "fp16" else None,
            )  # fmt: skip
        if step == 0:
            entries.append("wait")
        if step % _EVERY == 1:
            for name in world.names:
                say(
                    name, "checkpointed", generation="now", step="now", folder="now", entries=[], error="",
                    totals={"rows": 1.0},
                )  # fmt: skip
            entries.append("written")
    for name in world.workers:
        sums = {"samples": "int64", "lossSum": "float64", "logLossSum": "float64", "shift": "int64"}
        metrics = {name: [dtype, [1]] for name, dtype in sums.items()}
        bins = {n: ["uint64" if n == "keys" else "int64", [2]] for n in ("keys", "negatives", "positives")}
        say(name, "evaluated", generation="now", metrics=metrics | bins)
    return {"world": number, "entries": [*entries, "exported"]}
