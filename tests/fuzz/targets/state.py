"""Documents that the operator stores, and reads after a restart or an upgrade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heterps_operator.documents import read_json
from heterps_operator.errors import StateError
from heterps_operator.kubernetes.building.objects import is_same_plan
from heterps_operator.kubernetes.packing import pack
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.local.workspace import Workspace
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import PlanOutcome
from heterps_operator.state.status import Status
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.fuzz.targets.doubles import ApiServer
from tests.fuzz.targets.files import memory_file
from tests.heterps_operator.helpers.states import full_status

_FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1" / "operator"


def _read_state(data: bytes) -> None:
    """Read the documents of a ConfigMap. They are given as one, so that mutations reach into them."""
    documents = parse(data)
    if not isinstance(documents, dict):
        return  # a ConfigMap has one
    stored = {key: value if isinstance(value, str) else json.dumps(value) for key, value in documents.items()}
    state = StoredState.from_data(stored)
    StoredState.from_data(state.to_data())


def _read_packed(data: bytes) -> None:
    """Read a packed state: a text, or the documents to pack, so that mutations reach behind the checksum."""
    documents = parse(data)
    if isinstance(documents, dict):
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in documents.items()}
        documents = pack(texts)
    if isinstance(documents, str):
        StoredState.from_data({"controller.json": '{"version": 2}', "packed": documents})


class _Profiles(ConfigMapProfileCache):
    """The stored profiles of a namespace with one ConfigMap."""

    def __init__(self, data: bytes) -> None:
        server: Any = ApiServer({"data": {"profile.json": data.decode("utf-8", "replace")}})
        super().__init__(server, "ml", {})

    def name(self, pool: str) -> str:
        return pool


def _read_profile(data: bytes) -> None:
    _Profiles(data).load(["cpu"])


def _compare_plan(data: bytes) -> None:
    """Compare the plan in a ConfigMap with the one to write."""
    is_same_plan({"data": {"plan.json": data.decode("utf-8", "replace")}}, {"data": {"plan.json": _PLAN}})


def _load_workspace(data: bytes) -> None:
    """Load what an earlier run has left in its folder."""
    workspace = Workspace.__new__(Workspace)
    with memory_file(data) as path:
        workspace._state = path
        workspace.load()


def _read_outcome(data: bytes) -> None:
    """Read the planner's output, as `local.planner` does."""
    PlanOutcome.from_json(parse(data), 1)


def _read_document(data: bytes) -> None:
    with memory_file(data) as path:
        read_json(path)


def _fixture(name: str) -> Any:
    return {key: json.loads(text) for key, text in json.loads((_FIXTURES / name).read_text()).items()}


def _workspace() -> list[bytes]:
    stored = _fixture("state.json")
    document = {"version": 1, "status": stored["status.json"], "bill": stored["bill.json"], "fingerprints": {"a": "b"}}
    return [json.dumps(document).encode()]


def _full_state() -> bytes:
    data = StoredState(full_status(), Bill()).to_data()
    return json.dumps({key: json.loads(text) for key, text in data.items()}).encode()


_PLAN = json.dumps(_fixture("plan.json")["plan.json"])

TARGETS = [
    Target(
        "state.job",
        _read_state,
        (ValueError, NotJsonError),
        lambda: [json.dumps(_fixture("state.json")).encode(), _full_state()],
        Form.JSON,
        lines_per_byte=200.0,
    ),
    Target(
        "state.packed",
        _read_packed,
        (ValueError, NotJsonError),
        lambda: [_full_state(), json.dumps(pack(StoredState(Status(), Bill()).to_data())).encode()],
        Form.JSON,
        lines_per_byte=200.0,
        memory=80 << 20,  # 64 MiB of documents
    ),
    Target(
        "state.profile",
        _read_profile,
        (),
        lambda: [json.dumps(_fixture("profile.json")["profile.json"]).encode()],
        Form.JSON,
    ),
    Target(
        "state.plan",
        _read_outcome,
        (ValueError, NotJsonError),
        lambda: [
            json.dumps(_fixture("plan.json")["plan.json"]).encode(),
            b'{"feasible": false, "reason": "Floor", "message": "too few"}',
        ],
        Form.JSON,
    ),
    Target("state.kept-plan", _compare_plan, (), lambda: [_PLAN.encode()], Form.JSON),
    Target("state.workspace", _load_workspace, (StateError,), _workspace, Form.JSON, lines_per_byte=200.0),
    Target("state.file", _read_document, (StateError,), lambda: [b'{"version": 1}'], Form.JSON),
]
