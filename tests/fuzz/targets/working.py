"""A worker of a middle stage without sockets, in a step: what others send it, and the rest of the step after that."""

from __future__ import annotations

import dataclasses
from collections import deque
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from heterps_runtime.errors import ProtocolError
from heterps_runtime.intake import LayeredModel, resolve_loss, trace_model
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.batches import Batches
from heterps_runtime.partition.pieces import divide
from heterps_runtime.wire.codec import encode
from heterps_runtime.wire.messages import (
    Ack,
    Backward,
    Commit,
    Dense,
    Forward,
    FromServer,
    Message,
    Pull,
    PullDense,
    Push,
    Rows,
)
from heterps_runtime.wire.sequence import Stamp
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from heterps_runtime.worker.rows import servers
from heterps_runtime.worker.rows.entries import RowFormat
from heterps_runtime.worker.steps.context import WorkerContext, WorkerProcess
from heterps_runtime.worker.steps.engine import Engine
from heterps_runtime.worker.steps.round_trip import RoundTrip
from heterps_runtime.worker.steps.runs import LABEL, Clock
from heterps_runtime.worker.steps.schedule import Schedule
from heterps_runtime.worker.steps.stage import Stage
from tests.heterps_runtime.helpers.coordinator_world import World

__all__ = ["give", "messages"]

GENERATION, PREVIOUS, SERVERS, TOTAL = 1, b"worker-0-0/1", 2, 4
BATCH, SAMPLES = 4, 2  # of a step, and of each of its two micro-batches
FIRST, LAST = 2, 4  # layers of the stage
CPU = torch.device("cpu")


class _Model(nn.Module):
    """Its middle has a table, dense parameters and statistics, and is given ids and a tensor with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Embedding(50, 4), nn.Linear(4, 4)
        self.second, self.two, self.norm = nn.Embedding(40, 2), nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.three = nn.Linear(4, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = self.one(self.first(a))
        logits: Tensor = self.three(self.norm(self.two(torch.cat([x, self.second(b)], 1))))
        return logits


class _Line:
    """A connection or a listener: what was sent can be encoded, and what others have said is received."""

    pollables = ()

    def __init__(self) -> None:
        self.arrived: deque[tuple[Any, Message]] = deque()
        self.sent: deque[tuple[Any, Message]] = deque()

    def connect(self, index: int) -> None:
        pass

    def broke(self) -> bool:
        return False

    def receive_from(self) -> tuple[Any, Message] | None:
        return self.arrived.popleft() if self.arrived else None

    receive = receive_from

    def send_to(self, receiver: Any, message: Message) -> None:
        encode(message, Stamp(GENERATION, len(self.sent)))
        self.sent.append((receiver, message))

    def send(self, receiver: Any, message: Message | None = None) -> None:
        self.send_to(receiver, receiver if message is None else message)  # the line to the coordinator has one end


@lru_cache(1)
def _model() -> LayeredModel:
    torch.manual_seed(1)
    return trace_model(_Model(), ("a", "b"))


@lru_cache(1)
def _stage() -> Stage:
    model = _model()
    return Stage(
        model.stage(FIRST, LAST).to(CPU), model.tables, CPU, resolve_loss("torch.nn.functional:mse_loss"), Clock()
    )


class _Worker:
    """An engine in its first step, and the other ends of its lines."""

    def __init__(self) -> None:
        self.stage = _stage()
        self.from_servers, self.upstream, self.downstream, self.coordinator = _Line(), _Line(), _Line(), _Line()
        module = self.stage.module
        sizes = {n: v.numel() for n, v in {**module.initial_parameters(), **module.initial_statistics()}.items()}
        pieces = divide(sizes, SERVERS, whole=module.statistics_names)
        nothing: Any = None
        with patch.object(servers, "Connections", lambda *_: self.from_servers):
            rows = RowFormat(np.dtype(np.float32), "full", CPU)
            self.client = servers.ServerClient(nothing, nothing, "worker-1-0", 1, [""] * SERVERS, rows, pieces)
        upstream, downstream = Upstream.__new__(Upstream), Downstream.__new__(Downstream)
        lines: Any = (self.upstream, self.downstream)
        upstream._listener, downstream._connections = lines
        downstream._generation, upstream.refused = GENERATION, 0
        schedule = Schedule(Batches(100, BATCH), (Allocation(0, ((BATCH,),) * 3),), 1, 0, 2)
        context = WorkerContext(GENERATION, 1, 3, 0, TOTAL, None, schedule, self.client, downstream, upstream, None)
        clock, line = Clock(), self.coordinator
        process = WorkerProcess(line, nothing, clock, RoundTrip(clock))  # type: ignore[arg-type]
        self.engine = Engine(World([("cpu", 1, 1)]).config, context, self.stage, None, process)
        self.engine.start()
        self.engine.work()
        self.go_on()

    def go_on(self) -> None:
        """Take what has arrived, and compute what can be computed."""
        self.engine.poll()
        while self.engine.work():
            self.engine.poll()

    def answer(self) -> None:
        """Let the servers answer all requests, and the worker go on."""
        sent, self.from_servers.sent = self.from_servers.sent, deque()
        for server, request in sent:
            self.from_servers.arrived.append((server, self._answer(server, request)))
        self.go_on()

    def _answer(self, server: int, request: Any) -> FromServer:
        match request:
            case Pull():
                found = {dim: np.ones((len(keys), dim), np.float32) for dim, keys in request.keys.items()}
                return Rows(request.request, found)
            case PullDense():
                held = self.client._held[server]
                sizes = {name: held[name].stop - held[name].start for name in request.names}
                shapes = {name: v.shape for name, v in self.stage.module.initial_statistics().items()}
                values = {name: np.ones(shapes.get(name, n), np.float32) for name, n in sizes.items()}
                return Dense(request.request, values)
            case _:
                assert isinstance(request, Push)
                return Ack(request.step, request.shard)


def _activations(index: int) -> Forward:
    tensors: dict[str, Any] = {
        "b": np.array([1, 45]),
        "one": np.ones((SAMPLES, 4), np.float32),
        LABEL: np.zeros(SAMPLES, np.float32),
    }
    return Forward(GENERATION, 0, True, 0, index, tensors, ("one",), ())


def _gradients(index: int) -> Backward:
    return Backward(GENERATION, 0, index, {"norm": np.ones((SAMPLES, 4), np.float32)})


def give(message: Message) -> None:
    """Give a message to a worker that has the activations of one of two micro-batches, then let the step end.

    Raises:
        ProtocolError: the worker refuses it.
    """
    worker = _Worker()
    worker.upstream.arrived.append((PREVIOUS, _activations(0)))
    worker.go_on()
    if isinstance(message, Forward):
        # Activations of other shapes than the layers take are an error of torch's in forward, which no check knows.
        worker.upstream.arrived.append((PREVIOUS, message))
        worker.engine.poll()
        return
    if isinstance(message, FromServer):
        worker.from_servers.arrived.append((0, message))
        asked = [sent for sent in worker.from_servers.sent if sent[0] == 0 and _answers(message, sent[1])]
        worker.go_on()
        for sent in asked:
            worker.from_servers.sent.remove(sent)  # the server has answered it
    elif not isinstance(message, Backward):
        raise ProtocolError(f"a {message.op} is no message to a worker")
    worker.answer()
    if isinstance(message, Backward):
        worker.downstream.arrived.append((0, message))
        worker.go_on()
    worker.upstream.arrived.append((PREVIOUS, _activations(1)))
    for _ in range(3):
        worker.answer()
        while worker.downstream.sent:
            _, forward = worker.downstream.sent.popleft()
            assert isinstance(forward, Forward)
            worker.downstream.arrived.append((0, _gradients(forward.index)))
        worker.go_on()
    assert worker.coordinator.sent, "the step has not ended"
    worker.engine.commit(Commit(GENERATION, 0, BATCH))


def _answers(answer: Message, request: Message) -> bool:
    """Whether an answer of a server is one to a request."""
    return (
        isinstance(answer, Rows | Dense) and isinstance(request, Pull | PullDense) and answer.request == request.request
    )


def messages() -> list[Message]:
    """A message of each kind that a worker takes."""
    worker = _Worker()
    worker.upstream.arrived.append((PREVIOUS, _activations(0)))
    worker.go_on()
    pulls = [(server, sent) for server, sent in worker.from_servers.sent if server == 0]
    answers = [worker._answer(server, sent) for server, sent in pulls]
    later = dataclasses.replace(_activations(1), step=1)
    half = dataclasses.replace(_gradients(0), loss_scale=1024.0)
    return [*answers, Ack(0, 0), _activations(1), later, _gradients(0), half]
