"""Objects that watches report, as the operator reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.controller.jobs.owned_objects import NotReadyError, OwnedObjects
from heterps_operator.controller.lease import Lease
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.documents import MOST_LEVELS, limit_levels, parse_answer
from heterps_operator.kubernetes.reading.complaints import pod_complaint
from heterps_operator.kubernetes.reading.observe import runs_well, view
from heterps_operator.kubernetes.reading.pools import pool_capacity, pool_limit, pool_status
from heterps_operator.kubernetes.reading.prices import PoolPrice, read_quote
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.reading.readable import API_VERSIONS, JOB, NODE, POD, POOL, check
from heterps_operator.kubernetes.reading.taints import departure
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.fuzz.targets.doubles import ApiServer
from tests.heterps_operator.helpers import mutants

_NOW = 1.8e9
_CORDONED = {"metadata": {"name": "a"}, "spec": {"unschedulable": True}}
_ERRORS = (UnreadableError, NotJsonError)


def _read_pod(data: bytes) -> None:
    pod = parse(data)
    check(POD, pod)
    store = PodStore()
    store.set_resources({"cpu": "cpu", "gpu": "example.com/accelerator"})
    store.put(pod)
    for kept in store.all():
        store.know_job("ml", "11111111-2222-3333-4444-555555555555")
        pool_capacity(mutants.pool(), [mutants.node()], store.claimed())
        pod_complaint(kept, True, None)
        runs_well(kept)
        departure(kept, _CORDONED)
        view(kept, _NOW)
        view({**kept, "metadata": {**kept["metadata"], "deletionTimestamp": None}}, _NOW)


def _read_pool(data: bytes) -> None:
    pool = parse(data)
    check(POOL, pool)
    capacity = pool_capacity(pool, [mutants.node()])
    pool_limit(pool, capacity)
    pool_status(pool, capacity, 1, PoolPrice(Decimal(1), _NOW, read_quote(pool["spec"], None, _NOW)), now=_NOW)


def _read_node(data: bytes) -> None:
    node = parse(data)
    check(NODE, node)
    pool_capacity(mutants.pool(), [node])
    departure(mutants.pod(), node)


def _read_job(data: bytes) -> None:
    check(JOB, parse(data))


def _read_answer(data: bytes) -> None:
    """Parse an answer of the API server, and again as it is cut in a watch."""
    try:
        answer = parse_answer(data)
    finally:
        cut = limit_levels(data)
    if cut == data:
        return
    assert _levels(answer) >= _levels(json.loads(cut)) > MOST_LEVELS


def _levels(value: Any) -> int:
    levels, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        levels += 1
        level = [item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent)]
    return levels


def _deep() -> list[bytes]:
    return [b'{"items": [{"metadata": {"name": "a"}, "spec": ' + b'[{"a\\"[": ' * 600 + b"1" + b"}]" * 600 + b"}]}"]


def _read_annotation(data: bytes) -> None:
    process_of({"metadata": {"annotations": {"heterps.io/process": data.decode()}}})


def _read_lease(data: bytes) -> None:
    """Try to acquire a Lease, twice: its second sight is compared with the first. It must never be an error."""
    server: Any = ApiServer(parse(data))
    lease = Lease(server, "ml", "operator", "me", clock=lambda: _NOW)
    logging.disable()
    try:
        lease.try_once()
        lease.try_once()
        lease.release()
    finally:
        logging.disable(logging.NOTSET)


def _read_token(data: bytes) -> None:
    """Read the token of a job from a Secret with this data."""
    job = mutants.job()
    job["metadata"]["uid"] = "1"
    owner = {"apiVersion": API_VERSIONS[JOB], "kind": "HeterPSJob", "name": "x", "uid": "1", "controller": True}
    secret = {"metadata": {"name": "x", "ownerReferences": [owner]}, "data": parse(data)}
    cluster: Any = SimpleNamespace(api=ApiServer(secret))
    OwnedObjects(cluster, ("ml", "x")).token(job)


def _read_price(data: bytes) -> None:
    """Read the price of a pool from a ConfigMap; whatever is there, there is a quote with a message."""
    price_from = {"configMapKeyRef": {"name": "heterps-prices", "key": "gpu"}, "staleAfterSeconds": 3600}
    quote = read_quote({"pricePerUnitHour": "0.04", "priceFrom": price_from}, parse(data), _NOW)
    assert quote.message
    assert quote.current == (quote.price is not None)
    assert quote.price is None or Decimal("0.0008") <= quote.price <= Decimal("0.4")


def _prices() -> dict[str, Any]:
    annotations = {"heterps.io/updated": "2026-01-01T00:00:00Z"}
    return {"metadata": {"name": "heterps-prices", "annotations": annotations}, "data": {"gpu": "0.02"}}


def _lease() -> dict[str, Any]:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    return {"metadata": {"name": "operator", "resourceVersion": "1"}, "spec": spec}


def _annotation() -> list[bytes]:
    return [mutants.pod()["metadata"]["annotations"]["heterps.io/process"].encode()]


def _seed(make: Callable[[], Any]) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(make()).encode()]


TARGETS = [
    Target("objects.pod", _read_pod, _ERRORS, _seed(mutants.pod), Form.JSON),
    Target("objects.pool", _read_pool, _ERRORS, _seed(mutants.pool), Form.JSON),
    Target("objects.node", _read_node, _ERRORS, _seed(mutants.node), Form.JSON),
    Target("objects.job", _read_job, _ERRORS, _seed(mutants.job), Form.JSON),
    Target("objects.answer", _read_answer, (ValueError,), _deep),
    Target("objects.price", _read_price, (NotJsonError,), _seed(_prices), Form.JSON, longest=4096),
    Target("objects.lease", _read_lease, (NotJsonError,), _seed(_lease), Form.JSON, longest=4096),
    Target(
        "objects.token",
        _read_token,
        (NotReadyError, NotJsonError),
        _seed(lambda: {"token": "dG9rZW4="}),
        Form.JSON,
        longest=4096,
    ),
    Target(
        "objects.annotation",
        _read_annotation,
        (UnreadableError, UnicodeDecodeError),
        _annotation,
        Form.JSON,
        longest=4096,
    ),
]
