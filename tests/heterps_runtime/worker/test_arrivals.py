"""What servers and neighbouring stages send is compared with what a worker has asked for, or sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.partition.pieces import Piece
from heterps_runtime.store.half import Precision
from heterps_runtime.wire.messages import Backward, Dense, Forward, FromServer, Pull, PullDense, Rows
from heterps_runtime.worker.rows import servers
from heterps_runtime.worker.rows.entries import RowFormat, ServerKeys
from heterps_runtime.worker.rows.servers import DenseArrived, RowsArrived, ServerClient
from heterps_runtime.worker.steps.arrivals import check_activation, check_gradients

MINE = (MicroBatch(2, 0, 3, (0, 1)), MicroBatch(5, 3, 5, (1, 1)))
TENSORS: dict[str, Any] = {
    "x": np.ones((3, 4), np.float32),
    "ids": np.ones((3, 1), np.int64),
    "label": np.ones(3, np.int64),
}
FORWARD = Forward(1, 7, True, 0, 2, TENSORS, ("x",), ())
OUTPUTS = {"x": torch.ones(3, 4, requires_grad=True), "half": torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
           "ids": torch.ones(3, 1)}  # fmt: skip
GRADIENTS: dict[str, Any] = {"x": np.ones((3, 4), np.float32), "half": np.ones(3, np.uint16)}
BACKWARD = Backward(1, 7, 2, GRADIENTS)


def test_activations_of_this_stage_are_taken() -> None:
    assert check_activation(FORWARD, MINE, ("x", "ids")) == MINE[0]
    short: dict[str, Any] = {**TENSORS, "x": np.ones((3, 4), np.uint16)}
    assert check_activation(replace(FORWARD, tensors=short, bfloat16=("x",)), MINE, ("ids", "x")) == MINE[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"index": 1}, "micro-batch 1 of step 7 are for another worker"),
        ({"index": -1}, "for another worker"),
        ({"tensors": {}}, r"are \[\], not \['ids', 'label', 'x'\]"),
        ({"tensors": {**TENSORS, "more": TENSORS["x"]}}, r"are \['ids', 'label', 'more', 'x'\], not"),
        ({"tensors": {**TENSORS, "label": np.ones(2)}}, r"labels of the shape \[2\], not of 3 samples"),
        ({"tensors": {**TENSORS, "label": np.array(1)}}, r"labels of the shape \[\], not of 3 samples"),
        ({"bfloat16": ("x",)}, "'x' is not there in bfloat16"),
        ({"bfloat16": ("y",)}, "'y' is not there in bfloat16"),
        ({"differentiable": ("ids",)}, "'ids' has no gradient"),
        ({"differentiable": ("y",)}, "'y' has no gradient"),
        ({"differentiable": ("label",), "tensors": {**TENSORS, "label": np.ones(3)}}, "'label' has no gradient"),
    ],
)
def test_other_activations_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        check_activation(replace(FORWARD, **changes), MINE, ("x", "ids"))


def test_gradients_of_all_outputs_that_have_some_are_taken() -> None:
    check_gradients(BACKWARD, OUTPUTS)


@pytest.mark.parametrize(
    ("gradients", "problem"),
    [
        ({}, r"are of \[\], not of \['half', 'x'\]"),
        ({**GRADIENTS, "ids": np.ones((3, 1))}, r"are of \['half', 'ids', 'x'\], not of"),
        ({**GRADIENTS, "x": np.ones((2, 4), np.float32)}, r"'x' is float32 \[2, 4\], not float32 \[3, 4\]"),
        ({**GRADIENTS, "x": np.ones((3, 4))}, r"'x' is float64 \[3, 4\], not float32"),
        ({**GRADIENTS, "half": np.ones(3, np.float32)}, r"'half' is float32 \[3\], not uint16"),
    ],
)
def test_other_gradients_are_refused(gradients: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=f"the gradients of micro-batch 2 of step 7.*{problem}"):
        check_gradients(replace(BACKWARD, gradients=gradients), OUTPUTS)


# --- answers of servers -----------------------------------------------------------------------------------------------


class _Servers:
    """Connections to two servers, without sockets."""

    pollables = ()

    def __init__(self) -> None:
        self.answers: list[tuple[int, FromServer]] = []

    def connect(self, index: int) -> None:
        pass

    def send_to(self, index: int, request: Pull | PullDense) -> None:
        pass

    def receive_from(self) -> tuple[int, FromServer] | None:
        return self.answers.pop(0) if self.answers else None


KEYS = {4: ServerKeys(np.arange(5), np.array([0, 2, 5])), 8: ServerKeys(np.arange(1), np.array([0, 0, 1]))}
ROWS = {4: np.ones((2, 4), np.float32), 8: np.ones((0, 8), np.float32)}  # of server 0


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ServerClient, _Servers]]:
    def make(wire: Precision = "full") -> tuple[ServerClient, _Servers]:
        connections = _Servers()
        monkeypatch.setattr(servers, "Connections", lambda *_: connections)
        pieces = {"w": (Piece(0, 0, 3), Piece(1, 3, 6)), "b": (Piece(1, 0, 2),)}
        nothing: Any = None
        rows = RowFormat(np.dtype(np.float32), wire, torch.device("cpu"))
        made = ServerClient(nothing, nothing, "worker-0-0", 1, ["", ""], rows, pieces)
        return made, connections

    return make


@pytest.mark.parametrize("wire", ["full", "bf16"])
def test_rows_of_all_servers_are_taken_together(
    wire: Precision, client: Callable[..., tuple[ServerClient, _Servers]]
) -> None:
    made, connections = client(wire)
    dtype = np.float32 if wire == "full" else np.uint16
    number = made.pull_rows(KEYS, 0)
    for server, counts in enumerate(((2, 0), (3, 1))):
        rows = {dim: np.zeros((n, dim), dtype) for dim, n in zip(KEYS, counts, strict=True)}
        connections.answers.append((server, Rows(number, rows)))
    [arrived] = made.poll()
    assert isinstance(arrived, RowsArrived)
    assert {dim: rows.shape for dim, rows in arrived.rows.items()} == {4: (5, 4), 8: (1, 8)}


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: (0, Rows(n, {4: ROWS[4]})),
        lambda n: (0, Rows(n, {**ROWS, 16: np.ones((1, 16), np.float32)})),
        lambda n: (0, Rows(n, {**ROWS, 4: np.ones((3, 4), np.float32)})),
        lambda n: (0, Rows(n, {**ROWS, 4: np.ones((2, 5), np.float32)})),
        lambda n: (0, Rows(n, {**ROWS, 4: np.ones((2, 4))})),
        lambda n: (0, Rows(n, {**ROWS, 4: np.ones((2, 4), np.uint16)})),
        lambda n: (0, Dense(n, {})),
        lambda n: (7, Rows(n, ROWS)),
    ],
)
def test_other_rows_are_refused(
    answer: Callable[[int], tuple[int, FromServer]], client: Callable[..., tuple[ServerClient, _Servers]]
) -> None:
    made, connections = client()
    connections.answers.append(answer(made.pull_rows(KEYS, 0)))
    with pytest.raises(ProtocolError, match=r"server \d answered"):
        made.poll()


def test_pieces_of_all_servers_are_taken_together(client: Callable[..., tuple[ServerClient, _Servers]]) -> None:
    made, connections = client()
    number = made.pull_dense(["w", "b"], 0)
    connections.answers += [
        (0, Dense(number, {"w": np.ones(3)})),
        (1, Dense(number, {"w": np.ones(3), "b": np.ones(2)})),
    ]
    [arrived] = made.poll()
    assert isinstance(arrived, DenseArrived)
    assert {name: len(parts) for name, parts in arrived.values.items()} == {"w": 2, "b": 1}


@pytest.mark.parametrize("values", [{}, {"b": np.ones(2)}, {"w": np.ones(4)}, {"w": np.ones(3), "b": np.ones(2)}])
def test_other_pieces_are_refused(values: dict[str, Any], client: Callable[..., tuple[ServerClient, _Servers]]) -> None:
    made, connections = client()
    number = made.pull_dense(["w", "b"], 0)
    connections.answers.append((0, Dense(number, values)))
    with pytest.raises(ProtocolError, match=r"server 0 answered a request for \{'w': 3\} with"):
        made.poll()
    connections.answers.append((0, Rows(number, {})))
    with pytest.raises(ProtocolError, match="what it was not asked for"):
        made.poll()
