"""No content of a single object ends a thread, delays other jobs, or takes units from them."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from heterps_operator.__main__ import main
from heterps_operator.api.shapes import UnreadableError
from heterps_operator.cli import operator as operator_module
from heterps_operator.controller import reflector as reflector_module
from heterps_operator.controller import supervisor as supervisor_module
from heterps_operator.controller.capacity.devices import DeviceCounter
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.controller.stores.devices import KINDS, DeviceStores
from heterps_operator.controller.stores.objects import ObjectStore, key_of
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.controller.stores.slimming import slim_job, slim_node
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.reading import observe
from heterps_operator.kubernetes.reading.pools import pool_capacity, pool_limit, pool_status
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.kubernetes.reading.readable import CLAIM, DEVICE_CLASS, JOB, NODE, POD, POOL, SLICE, check
from heterps_operator.measure.metrics import OperatorMetrics
from heterps_runtime.clock import steady_time
from tests.heterps_operator.helpers.devices import card_node, card_pool
from tests.heterps_operator.helpers.documents import CPU_WORKER, NOW, owner, stranger
from tests.heterps_operator.helpers.lists import JOBS, NODES, PODS, POOLS, SECONDS, Server
from tests.heterps_operator.helpers.mutants import GOOD, mutants, node, pool
from tests.heterps_operator.helpers.nodes import price_of

Json = dict[str, Any]

PATHS = {POD: PODS, NODE: NODES, POOL: POOLS, JOB: JOBS}
SOME = 300  # mutants, where each takes a while


class Turns(OperatorMetrics):
    """Records which jobs had turns."""

    def __init__(self) -> None:
        super().__init__("test")
        self._had: set[tuple[str, str]] = set()
        self._changed = threading.Condition()

    def on_turn(self, job: tuple[str, str], seconds: float, error: Exception | None) -> None:
        super().on_turn(job, seconds, error)
        with self._changed:
            self._had.add(job)
            self._changed.notify_all()

    def wait_for(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: ("ml", name) in self._had, SECONDS), f"{name} had no turn"


@pytest.fixture
def server() -> Server:
    return Server()


Run = Callable[[], contextlib.AbstractContextManager[tuple[Supervisor, Turns]]]


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a new operator's supervisor; its threads run inside the block, and still run at its end."""

    @contextlib.contextmanager
    def running() -> Iterator[tuple[Supervisor, Turns]]:
        turns = Turns()
        supervisor = Supervisor(OperatorContext(cast("KubernetesApi", server), tmp_path, metrics=turns), threads=2)
        monkeypatch.setattr(supervisor._problems, "_clock", lambda: NOW)
        monkeypatch.setattr(supervisor._problems, "_pause", 0.0)
        try:
            supervisor.start()
            yield supervisor, turns
            assert supervisor.trouble() is None
        finally:
            supervisor.stop()

    return running


def named(kind: str, name: str) -> Json:
    """Return a valid object of a kind with its own name."""
    made = GOOD[kind]()
    made["metadata"] |= {"name": name, "uid": name}
    return made


# --- objects of which any field is anything ---------------------------------------------------------------------------


class Writes:
    """An empty API server that accepts everything."""

    def get(self, path: str) -> None:
        return None

    def apply(self, path: str, body: Json, field_manager: str = "") -> Json:
        json.dumps(body)
        return body

    def create(self, path: str, body: Json) -> Json:
        json.dumps(body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}


def read_pod(item: Json) -> None:
    store = PodStore()
    store.set_resources({"cpu": "cpu"})
    store.put(item)
    for kept in store.all():
        store.know_job("ml", "11111111-2222-3333-4444-555555555555")
        pool_capacity(pool(), [node()], store.claimed())
        store.occupied("ml", "11111111-2222-3333-4444-555555555555")
        with contextlib.suppress(UnreadableError):  # its annotation: reported, and not a process
            observe.view(kept, NOW + 1000)
            observe.view({**kept, "metadata": {**kept["metadata"], "deletionTimestamp": None}}, NOW + 1000)
        observe.runs_well(kept)
    store.remove(item)
    assert store.claimed() == {}


def read_node(item: Json) -> None:
    cluster = OperatorContext(cast("KubernetesApi", None), Path("unused"))
    cluster.nodes.put(item)
    [kept] = cluster.nodes.all()
    capacity = pool_capacity(pool(), [kept])
    pool_status(pool(), capacity, 1, price_of(pool()), now=NOW)
    cluster.hears_of("n")
    cluster.nodes.remove(item)


def read_pool(item: Json) -> None:
    store = ObjectStore()
    store.put(item)
    capacity = pool_capacity(item, [slim_node(node())])
    pool_limit(item, capacity)
    status = pool_status(item, capacity, 1, price_of(item), now=NOW)
    json.dumps(status)
    OperatorMetrics("test").update_pool(item, status)


def read_job(item: Json) -> None:
    kept = dict(slim_job(item))
    kept["spec"] = {key: value for key, value in kept["spec"].items() if key != "managedBy"}  # managed by this operator
    with tempfile.TemporaryDirectory() as folder:
        cluster = OperatorContext(cast("KubernetesApi", Writes()), Path(folder), clock=lambda: NOW)
        cluster.jobs.put(kept)
        cluster.pools.put({**pool(), "metadata": {"name": "cpu"}})
        JobController(cluster, key_of(kept), lambda: None).turn()


def read_device(kind: str, item: Json) -> None:
    stores = DeviceStores(served=True)
    for each in KINDS:
        stores.of(each).put(item if each == kind else GOOD[each]())
    counted = DeviceCounter(stores).count(card_pool(), [card_node("n")], {})
    assert counted is not None
    pool_status(card_pool(), pool_capacity(card_pool(), [card_node("n")], None, counted), 1, price_of(pool()), now=NOW)
    stores.of(kind).remove(item)


READ = {POD: read_pod, NODE: read_node, POOL: read_pool, JOB: read_job} | {
    kind: functools.partial(read_device, kind) for kind in KINDS
}
# Wrong values elsewhere are not read, or make another valid object.
LEAST = {POD: (1500, 500), NODE: (400, 100), POOL: (500, 50), JOB: (150, 300)} | {
    DEVICE_CLASS: (150, 25), SLICE: (800, 200), CLAIM: (300, 100)
}  # fmt: skip


@pytest.mark.parametrize("kind", GOOD)
def test_what_is_let_in_can_be_read_to_its_end(kind: str) -> None:
    check(kind, GOOD[kind]())
    refused = taken = 0
    words: set[str] = set()
    for what, mutant in mutants(kind):
        try:
            check(kind, mutant)
        except UnreadableError as error:
            words.add(str(error))
            refused += 1
            continue
        try:
            READ[kind](mutant)
        except Exception as error:
            raise AssertionError(f"{kind} with {what} was let in") from error
        taken += 1
    assert refused >= LEAST[kind][0]
    assert taken >= LEAST[kind][1]
    assert max(map(len, words)) < 500, "they go into events"


@pytest.mark.parametrize("kind", [POD, NODE, POOL, JOB])
def test_a_running_operator_lives_with_every_one_of_them(kind: str, server: Server, run: Run) -> None:
    with run() as (supervisor, turns):
        seen = {
            POD: supervisor.reflector.pod_seen,
            NODE: supervisor.reflector.node_seen,
            POOL: supervisor.reflector.pool_seen,
            JOB: supervisor.reflector.job_seen,
        }
        for gone in (False, True):
            for _, mutant in mutants(kind, SOME):
                seen[kind](mutant, gone=gone)
        bad = named(kind, "bad")
        bad["metadata"]["labels"] = ["heterps.io/job"]
        seen[kind](bad)
        event = server.wait_for("bad")
        assert (event["type"], event["reason"]) == ("Warning", "Unreadable")
        assert event["message"].startswith("metadata.labels must be an object, is a list of 1; the operator uses")
        about = {"apiVersion": "v1" if kind in (POD, NODE) else "heterps.io/v1alpha1", "kind": kind, "uid": "bad"}
        assert about.items() <= event["involvedObject"].items()
        assert event["metadata"]["namespace"] == ("default" if kind in (NODE, POOL) else "ml")
        supervisor.reflector.job_seen(named(JOB, "another"))
        turns.wait_for("another")


@pytest.mark.parametrize("kind", [POD, NODE, POOL, JOB])
def test_a_new_operator_comes_up_among_them(kind: str, server: Server, run: Run) -> None:
    server.items = {NODES: [node()], POOLS: [pool()], JOBS: [named(JOB, "another")]}
    server.items.setdefault(PATHS[kind], []).extend(mutant for _, mutant in mutants(kind, SOME))
    with run() as (supervisor, turns):
        turns.wait_for("another")
        assert supervisor._cluster.ledger.free("cpu") >= (4 if kind not in (NODE, POOL) else 0)
        supervisor.reflector.synchronize()


@pytest.mark.parametrize("kind", [POD, NODE, POOL, JOB])
def test_an_object_that_becomes_unreadable_counts_as_it_was(kind: str, server: Server, run: Run) -> None:
    with run() as (supervisor, _):
        cluster = supervisor._cluster
        stores = {POD: cluster.pods, NODE: cluster.nodes, POOL: cluster.pools, JOB: cluster.jobs}
        good = named(kind, "good")
        server.items[PATHS[kind]] = [good]
        supervisor.reflector.synchronize()
        [before] = stores[kind].all()
        server.items[PATHS[kind]] = [{**good, "metadata": {**good["metadata"], "annotations": "x"}}]
        supervisor.reflector.synchronize()
        assert stores[kind].all() == (before,)
        server.wait_for("good")
        server.items[PATHS[kind]] = []
        supervisor.reflector.synchronize()
        assert stores[kind].all() == ()


@pytest.mark.parametrize("levels", [80, 400])
def test_a_job_whose_fields_nest_deeply_is_told_and_stops_no_other(levels: int, server: Server, run: Run) -> None:
    deep: Any = 1
    for _ in range(levels):
        deep = {"a": deep}
    job = named(JOB, "deep")
    job["spec"]["podTemplates"] = {"all": {"spec": deep}}
    server.items = {NODES: [node()], POOLS: [pool()], JOBS: [job, named(JOB, "another")]}
    with run() as (_, turns):
        message = server.wait_for("deep")["message"]
        assert "spec.podTemplates.all.spec.a.a" in message
        assert "must be nested in at most 64 levels" in message
        turns.wait_for("another")


# --- pods of strangers ------------------------------------------------------------------------------------------------


TEXT = json.dumps({**json.loads(process_text(CPU_WORKER)), "units": "1"})
GREEDY = json.dumps({**json.loads(process_text(CPU_WORKER)), "units": 1_000_000_000})
FORGED = json.dumps({**json.loads(process_text(CPU_WORKER)), "units": 1_000_000})
STRANGERS = {
    "text": (
        stranger("text", TEXT),
        "Unreadable",
        'units must be a whole number from 0 to 1000000, is "1"; the pod is',
    ),
    "greedy": (
        stranger("greedy", GREEDY),
        "Unreadable",
        "units must be a whole number from 0 to 1000000, is 1000000000",
    ),
    "forged": (stranger("forged", FORGED), "Ignored", "metadata.ownerReferences names no HeterPSJob: it occupies no"),
    "plain": (stranger("plain", None), "Unreadable", "characters, is missing; the pod is ignored"),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("begins", ["with it", "before it"])
def test_a_stranger_is_told_and_takes_nothing(name: str, begins: str, server: Server, run: Run) -> None:
    pod, reason, words = STRANGERS[name]
    server.items = {NODES: [node()], POOLS: [pool()], JOBS: [named(JOB, "another")]}
    if begins == "with it":
        server.items[PODS] = [pod]
    with run() as (supervisor, turns):
        if begins == "before it":
            supervisor.reflector.pod_seen(pod)
        event = server.wait_for(name)
        assert (event["type"], event["reason"]) == ("Warning", reason)
        assert words in event["message"]
        assert "remove the label" in event["message"]
        assert event["involvedObject"]["namespace"] == event["metadata"]["namespace"] == "elsewhere"
        turns.wait_for("another")
        assert supervisor._cluster.ledger.free("cpu") == 4
        assert supervisor._cluster.jobs.get("elsewhere", "x") is None
        pod = copy.deepcopy(pod)
        pod["status"]["message"] = "something else"
        supervisor.reflector.pod_seen(pod)
        supervisor.reflector.synchronize()
        supervisor.reflector.pod_seen(stranger("last", None))
        server.wait_for("last")
        assert len(server.told(name)) == 1, "once, whatever else changes"


def test_a_pod_of_a_job_counts_with_what_it_requests(server: Server, run: Run) -> None:
    liar = stranger("liar", FORGED, namespace="ml", ownerReferences=[owner("another")])
    liar["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
    server.items = {NODES: [node()], POOLS: [pool()], JOBS: [named(JOB, "another")], PODS: [liar]}
    with run() as (supervisor, _):
        assert supervisor._cluster.ledger.held_by("ml/another") == {"cpu": 3}
        event = server.wait_for("liar")
        assert event["reason"] == "UnitsDiffer"
        assert "claims 1000000 units of pool cpu, its containers request 3 of cpu" in event["message"]
        damaged = copy.deepcopy(liar)
        damaged["metadata"]["annotations"]["heterps.io/process"] = TEXT
        supervisor.reflector.pod_seen(damaged)
        assert supervisor._cluster.ledger.held_by("ml/another") == {"cpu": 3}, "it is what it was"
        supervisor.reflector.job_seen(named(JOB, "another"), gone=True)
        assert supervisor._cluster.ledger.holders("cpu") == (("ml/another (deleted)", 3),)
        supervisor.reflector.pod_seen(damaged, gone=True)
        assert supervisor._cluster.ledger.held("cpu") == 0


# --- threads, start and end -------------------------------------------------------------------------------------------


def test_a_thread_goes_on_after_whatever_happens(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_THREAD_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(reflector_module, "_GATHER_SECONDS", 0.01)
    with run() as (supervisor, turns):
        loops = {"refresh": supervisor.pools, "synchronize": supervisor.reflector}
        again = {name: threading.Semaphore(0) for name in loops}
        for name, calls in again.items():

            def fail(calls: threading.Semaphore = calls) -> bool:
                calls.release()
                raise ZeroDivisionError

            monkeypatch.setattr(loops[name], name, fail)
        for _ in range(2):
            supervisor.pools.changed.set()
            assert again["refresh"].acquire(timeout=SECONDS)
            supervisor.reflector.listed()
            assert again["synchronize"].acquire(timeout=SECONDS)
        monkeypatch.setattr(turns, "watch_queue", None)
        failed = threading.Semaphore(0)

        def fail_after_a_turn() -> None:
            failed.release()
            raise ZeroDivisionError

        monkeypatch.setattr(supervisor, "wake_waiting", fail_after_a_turn)
        for name in ("a", "b"):  # as many as there are threads
            supervisor.reflector.job_seen(named(JOB, name))
            turns.wait_for(name)
            supervisor.reflector.job_seen(named(JOB, name), gone=True)
            assert failed.acquire(timeout=SECONDS)
        supervisor.reflector.job_seen(named(JOB, "c"))
        turns.wait_for("c")


def test_a_turn_that_fails_is_told_on_its_job(server: Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        waits_for_room = False

        def __init__(self, cluster: OperatorContext, key: tuple[str, str], wake: Any) -> None:
            self._name = key[1]

        def turn(self) -> None:
            if self._name == "bad":
                raise IndexError("of a list")

        def abandon(self) -> None:
            raise OSError("disk full")

    monkeypatch.setattr(supervisor_module, "JobController", Fails)
    with run() as (supervisor, turns):
        for name in ("bad", "good"):
            supervisor.reflector.job_seen(named(JOB, name))
            turns.wait_for(name)
        event = server.wait_for("bad")
        assert event["reason"] == "TurnFailed"
        assert "IndexError: of a list" in event["message"]
        supervisor.reflector.job_seen(named(JOB, "good"), gone=True)
        supervisor.reflector.job_seen(named(JOB, "later"))
        turns.wait_for("later")


@pytest.mark.parametrize(("threads", "most"), [(8, 6), (4, 3), (1, 1)])
def test_turns_of_one_namespace_leave_threads_for_others(
    threads: int, most: int, server: Server, tmp_path: Path
) -> None:
    """Its coordinators may answer one byte at a time. What the number does is tested with the queue itself."""
    supervisor = Supervisor(OperatorContext(cast("KubernetesApi", server), tmp_path), threads=threads)
    assert supervisor.queue._most == most


def test_an_operator_that_never_began_can_end(server: Server, tmp_path: Path) -> None:
    supervisor = Supervisor(OperatorContext(cast("KubernetesApi", server), tmp_path))
    supervisor.stop()

    def refuse() -> None:
        raise ApiError(0, "NoAnswer", "the API server https://10.0.0.1 does not answer")

    server.meanwhile[PODS] = refuse
    failing = Supervisor(OperatorContext(cast("KubernetesApi", server), tmp_path))
    with pytest.raises(ApiError, match="does not answer"):
        failing.start()
    failing.stop()


def test_an_operator_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not that threads have not started. It has made no folder, which SIGKILL would leave."""

    class Cut(Server):
        def impatient(self, seconds: float) -> Cut:
            return self

        def fenced(self, may_write: Callable[[], bool]) -> Cut:
            return self

        def server_time(self) -> float:
            return steady_time()

        def get(self, path: str) -> None:
            assert path.endswith("/leases/heterps-operator")

        def create(self, path: str, body: Json) -> Json:
            return body

        def each(self, path: str, label_selector: str = "") -> Iterator[Json]:
            assert list(tmp_path.iterdir()) == []
            raise ApiError(0, "NoAnswer", "the API server https://10.0.0.1 does not answer: refused")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(operator_module, "connect", lambda *_, **__: Cut())
    monkeypatch.setattr(operator_module, "log_to_stderr", lambda form, verbose: None)
    assert main(["operator", "--metrics-port=0", "--lease-namespace=heterps-system"]) != 0
    assert "the API server https://10.0.0.1 does not answer: refused" in capsys.readouterr().err
