"""The client: its requests, its parsing of responses, its error messages, and its handling of lost connections."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import read_objects
from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.views import EventView, JobView
from heterps_operator.errors import ClusterError, ManifestError
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from tests.heterps_operator.helpers.documents import owner
from tests.heterps_operator.helpers.fake_server import FakeServer, for_cluster, forbidden
from tests.heterps_operator.helpers.world import PROFILE

JOB = "/apis/heterps.io/v1alpha1/namespaces/team/heterpsjobs/tiny"
JOBS = JOB.rpartition("/")[0]
POOL = "/apis/heterps.io/v1alpha1/devicepools/cpu"
EVENTS = "/api/v1/namespaces/team/events"
GONE = ApiError(0, "Unreachable", "connection reset")


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def job_file(job_file: Path) -> Path:
    return for_cluster(job_file)


@pytest.fixture
def client(server: FakeServer) -> HeterPSClient:
    return HeterPSClient(server, "team", pause=lambda seconds: None)


def put_job(server: FakeServer, phase: str = "Running", **status: Any) -> None:
    server.put(JOB, kind="HeterPSJob", spec={}, status={"observedGeneration": 1, "phase": phase, **status})


def verbs(client: HeterPSClient, job_file: Path) -> dict[str, str]:
    return {change.name: change.verb for change in client.submit(job_file).changes}


def test_a_submission_creates_then_leaves_alone_then_changes(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    assert verbs(client, job_file) == {"cpu": "created", "accelerator": "created", "tiny": "created"}
    assert set(verbs(client, job_file).values()) == {"unchanged"}
    job_file.write_text(job_file.read_text().replace("minSamplesPerSecond: 20000", "minSamplesPerSecond: 30000"))
    assert verbs(client, job_file) == {"cpu": "unchanged", "accelerator": "unchanged", "tiny": "changed"}
    assert server.objects[JOB]["metadata"]["namespace"] == "team"


def test_a_submission_holds_what_was_written_and_no_defaults(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    client.submit(job_file)
    written = [part for part in yaml.safe_load_all(job_file.read_text()) if part["kind"] == "HeterPSJob"]
    assert server.objects[JOB]["spec"] == {**written[0]["spec"], "runPolicy": {"suspend": False}}


def test_submitting_again_lets_a_cancelled_job_go_on(client: HeterPSClient, server: FakeServer, job_file: Path) -> None:
    client.submit(job_file)
    assert client.suspend("tiny").suspended
    assert not client.submit(job_file).job.suspended


def test_a_file_that_suspends_its_job_is_taken_at_its_word(client: HeterPSClient, job_file: Path) -> None:
    job_file.write_text(job_file.read_text() + "  runPolicy: {suspend: true}\n")
    assert client.submit(job_file).job.suspended


def test_a_dry_run_keeps_nothing(client: HeterPSClient, server: FakeServer, job_file: Path) -> None:
    submitted = client.submit(job_file, dry_run=True)
    assert [change.verb for change in submitted.changes] == ["created"] * 3
    assert server.objects == {}


def test_objects_as_dictionaries_are_checked_like_files(client: HeterPSClient, job_file: Path) -> None:
    objects = list(yaml.safe_load_all(job_file.read_text()))
    assert client.submit(objects[-1]).job.name == "tiny"
    objects[-1]["spec"]["model"]["arguments"] = {"width": 10**30, "depth": -(10**400)}  # floats to an API server
    client.submit(objects, dry_run=True)
    objects[-1]["spec"]["training"]["globalBatchSize"] = -1
    with pytest.raises(ManifestError, match=r"spec.training.globalBatchSize"):
        client.submit(objects)
    with pytest.raises(ManifestError, match="the list of objects has no HeterPSJob"):
        client.submit(objects[:2])
    with pytest.raises(ManifestError, match=r"objects\[0\]: kind: must be one of DevicePool, HeterPSJob, is \"Pod\""):
        client.submit([{"kind": "Pod"}])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  image: example.com/tiny:1\n", "", "spec.image: must be set on a cluster"),
        ("train: /data/train,", "train: data,", 'spec.data.train: must be an absolute path or an address .* is "data"'),
        ("  checkpoint: {path: /data/checkpoints}\n", "", "spec.checkpoint.path: must be set on a cluster"),
    ],
)
def test_what_pods_cannot_use_is_refused_before_anything_is_sent(
    client: HeterPSClient, server: FakeServer, job_file: Path, old: str, new: str, words: str
) -> None:
    text = job_file.read_text()
    assert old in text
    job_file.write_text(text.replace(old, new))
    with pytest.raises(ManifestError, match=words):
        client.submit(job_file)
    assert server.requests == []


def test_pools_that_may_not_be_written_are_taken_as_they_are(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    server.put(POOL, kind="DevicePool", spec={"maxUnits": 64})
    server.put(POOL.replace("cpu", "accelerator"), kind="DevicePool", spec={"maxUnits": 8})
    server.refusals["apply"] = [forbidden("patch", "devicepools"), forbidden("patch", "devicepools")]
    assert verbs(client, job_file) == {"cpu": "kept", "accelerator": "kept", "tiny": "created"}
    assert server.objects[POOL]["spec"] == {"maxUnits": 64}


def test_pools_that_may_not_even_be_read_are_left_to_the_operator(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    server.refusals["get"] = [forbidden("get", "devicepools"), forbidden("get", "devicepools")]
    server.refusals["apply"] = [forbidden("patch", "devicepools"), forbidden("patch", "devicepools")]
    assert verbs(client, job_file) == {"cpu": "unseen", "accelerator": "unseen", "tiny": "created"}


def test_a_file_may_leave_the_pools_to_the_operator(client: HeterPSClient, server: FakeServer, job_file: Path) -> None:
    documents = list(yaml.safe_load_all(job_file.read_text()))
    job_file.write_text(yaml.safe_dump_all(item for item in documents if item["kind"] == "HeterPSJob"))
    assert verbs(client, job_file) == {"tiny": "created"}
    assert {path for _, path in server.requests} == {JOB}


def test_pools_that_may_not_be_written_and_are_not_there_are_a_refusal(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    server.refusals["apply"] = [forbidden("patch", "devicepools")]
    with pytest.raises(ClusterError, match="heterps-pool-editor") as caught:
        client.submit(job_file)
    assert caught.value.reason == "Forbidden"
    assert "you are not allowed to patch devicepools" in str(caught.value)


def test_a_namespace_in_the_file_must_be_the_one_that_is_meant(client: HeterPSClient, job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace("{name: tiny}", "{name: tiny, namespace: other}"))
    with pytest.raises(ClusterError, match="says namespace other, you say team"):
        client.submit(job_file)


FULL = {
    "observedGeneration": 1,
    "phase": "Succeeded",
    "message": "",
    "startTime": "2026-03-01T10:00:00Z",
    "completionTime": "2026-03-01T11:30:00Z",
    "plan": {
        "revision": 3,
        "method": "optimal",
        "summary": "cpu x2 [embedding..head]",
        "costPerHour": "0.0800",
        "predictedSamplesPerSecond": "50210.4",
        "stages": [{"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 3, "units": 2, "pods": 1}],
    },
    "throughput": {"samplesPerSecond": "52490.0", "minSamplesPerSecond": "20000.0"},
    "progress": {"step": 528, "totalSteps": 528, "epoch": 1, "loss": "0.43"},
    "cost": {"total": "0.123457", "pools": [{"name": "cpu", "unitHours": "3.086418", "cost": "0.123457"}]},
    "evaluation": {"auc": "0.713", "logLoss": "0.489", "samples": 60000},
    "conditions": [
        {"type": "Succeeded", "status": "True", "reason": "Trained", "lastTransitionTime": "2026-03-01T11:30:00Z"}
    ],
    "fieldOfALaterVersion": {"x": 1},
}


def test_a_status_is_read_with_its_types(client: HeterPSClient, server: FakeServer) -> None:
    server.put(JOB, spec={}, status=FULL)
    status = client.get("tiny").status
    assert (status.cost, status.cost_per_hour) == (Decimal("0.123457"), Decimal("0.0800"))
    assert (status.samples_per_second, status.predicted_samples_per_second) == (52490.0, 50210.4)
    assert status.started is not None
    assert status.completed is not None
    assert (status.completed - status.started).total_seconds() == 5400
    assert status.stages[0].units == 2
    assert (status.auc, status.log_loss, status.accuracy, status.cross_entropy) == (0.713, 0.489, None, None)
    classes = {"accuracy": "0.9694", "crossEntropy": "0.0733", "samples": 360}
    server.put(JOB, spec={}, status=FULL | {"evaluation": classes})
    status = client.get("tiny").status
    assert (status.auc, status.log_loss, status.accuracy, status.cross_entropy) == (None, None, 0.9694, 0.0733)
    assert status.condition("Succeeded").reason == "Trained"
    assert status.condition("Failed").status == "Unknown"


def test_a_job_that_nobody_has_looked_at_has_no_status(client: HeterPSClient, server: FakeServer) -> None:
    server.put(JOB, spec={})
    job = client.get("tiny")
    assert (job.status.phase, job.status.cost, job.current, job.ended) == ("", None, False, False)


@pytest.mark.parametrize(
    ("phase", "conditions", "code"),
    [
        ("Succeeded", [], 0),
        ("Suspended", [], 0),
        ("Failed", [("Failed", "True", "BackoffLimitExceeded")], 1),
        ("Failed", [("Failed", "True", "BadInput")], 2),
        ("Failed", [("Planned", "False", "ThroughputFloorUnreachable"), ("Failed", "True", "Infeasible")], 3),
    ],
)
def test_the_end_of_a_job_is_an_exit_code(phase: str, conditions: list[tuple[str, str, str]], code: int) -> None:
    listed = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    job = JobView.from_json(
        {"metadata": {"name": "tiny"}, "status": {"phase": phase, "conditions": listed, "observedGeneration": 0}}
    )
    assert job.ended
    assert job.exit_code == code


def test_jobs_come_in_the_order_of_their_names(client: HeterPSClient, server: FakeServer) -> None:
    for name in ("c", "a"):
        server.put(f"{JOBS}/{name}", spec={})
    server.put(JOBS.replace("team", "other") + "/b", spec={})
    assert [job.name for job in client.jobs()] == ["a", "c"]
    assert [job.name for job in client.jobs(all_namespaces=True)] == ["b", "a", "c"]


def test_a_name_that_is_not_there_gets_the_nearest_one(client: HeterPSClient, server: FakeServer) -> None:
    with pytest.raises(ClusterError, match="heterps submit FILE creates one"):
        client.get("tiny")
    server.put(f"{JOBS}/flights", spec={})
    with pytest.raises(ClusterError, match=r"no HeterPSJob flihgts in namespace team; did you mean flights\?"):
        client.get("flihgts")
    server.put(JOBS.replace("team", "other") + "/tiny", spec={})
    with pytest.raises(ClusterError, match="there is one in namespace other: add --namespace other"):
        client.get("tiny")


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (ApiError(0, "Unreachable", "connection refused"), "Unreachable", "does not answer (connection refused)"),
        (ApiError(401, "Unauthorized", "Unauthorized"), "Unauthorized", "log in again"),
        (ApiError(404, "NotFound", "the server could not find it"), "NotInstalled", "helm install heterps"),
        (ApiError(500, "InternalError", "etcd is sad"), "InternalError", "answered 500: etcd is sad"),
        (
            forbidden("list", "heterpsjobs", "team"),
            "Forbidden",
            "you are not allowed to list heterpsjobs in namespace team; "
            "the chart's ClusterRole heterps-viewer allows it",
        ),
        (
            ApiError(403, "Forbidden", "exceeded quota: jobs"),
            "Forbidden",
            "the cluster refuses it: exceeded quota: jobs",
        ),
    ],
)
def test_refusals_say_what_to_do(
    client: HeterPSClient, server: FakeServer, error: ApiError, reason: str, words: str
) -> None:
    server.refusals["list"] = [error]
    with pytest.raises(ClusterError) as caught:
        client.jobs()
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert "listing jobs in namespace team" in str(caught.value)


def test_a_change_that_is_invalid_is_told_in_the_cluster_s_words(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server)
    server.refusals["patch"] = [ApiError(422, "Invalid", "the model of a job cannot be changed")]
    with pytest.raises(ClusterError, match="the cluster refuses it: the model of a job cannot be changed"):
        client.patch("tiny", {"spec": {"model": {"entrypoint": "a:b"}}})


def test_a_namespace_that_is_not_there_is_no_missing_installation(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    server.refusals["apply"] = [ApiError(404, "NotFound", 'namespaces "team" not found')]
    with pytest.raises(ClusterError, match="there is no namespace team; create it") as caught:
        client.submit(job_file)
    assert caught.value.reason == "NoNamespace"


def test_changing_and_deleting_what_is_not_there_say_so(client: HeterPSClient) -> None:
    for change in (client.suspend, client.resume, client.delete):
        with pytest.raises(ClusterError, match="there is no HeterPSJob tiny"):
            change("tiny")


# --- watching ---------------------------------------------------------------------------------------------------------


class Script:
    """Lines of a watch that change the world when they are read."""

    def __init__(self, *steps: Callable[[], str] | ApiError) -> None:
        self._steps = steps

    def __iter__(self) -> Any:
        for step in self._steps:
            yield step if isinstance(step, ApiError) else step()


def phases(server: FakeServer, *names: str) -> list[Callable[[], str]]:
    return [lambda name=name: server.event("MODIFIED", JOB, status={"phase": name}) for name in names]  # type: ignore[misc]


def stream(server: FakeServer, *watches: Script) -> None:
    server.streams[JOBS] = list(watches)  # type: ignore[arg-type]


def test_every_change_is_seen_once_and_the_end_ends_the_wait(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server, "Profiling")
    stream(server, Script(*phases(server, "Planning", "Running")), Script(*phases(server, "Succeeded")))
    seen: list[str] = []

    def note(job: JobView) -> bool:
        seen.append(job.status.phase)
        return job.ended

    assert client.wait("tiny", until=note).exit_code == 0
    assert seen == ["Profiling", "Planning", "Running", "Succeeded"]


def test_a_watch_goes_on_where_it_was_after_a_lost_connection(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server, "Planning")
    stream(server, Script(*phases(server, "Running"), GONE), Script(GONE), Script(*phases(server, "Succeeded")))
    assert client.wait("tiny").status.phase == "Succeeded"
    version = server.queries[1]["resourceVersion"]
    assert version == server.queries[2]["resourceVersion"]
    assert int(version) > int(server.queries[0]["resourceVersion"])
    assert [verb for verb, _ in server.requests] == ["list", "watch", "watch", "watch"]


def test_a_history_that_is_too_old_means_a_new_list(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server, "Planning")
    too_old = json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})

    def expire() -> str:
        put_job(server, "Succeeded")
        return too_old

    stream(server, Script(expire))
    assert client.wait("tiny").status.phase == "Succeeded"


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "MODIFIED", "object": {"metada',
        "<html>",
        "7",
        '{"type": "MODIFIED"}',
        '{"type": "MODIFIED", "object": {"metadata": {}}}',
        '{"type": "ERROR", "object": "gone"}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_event_counts_as_a_lost_connection(
    client: HeterPSClient, server: FakeServer, line: str
) -> None:
    put_job(server, "Planning")
    stream(server, Script(*phases(server, "Running"), lambda: line), Script(*phases(server, "Succeeded")))
    assert client.wait("tiny").status.phase == "Succeeded"
    assert [verb for verb, _ in server.requests] == ["list", "watch", "watch"]


def test_a_bookmark_moves_the_place_and_is_no_change(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server, "Running")
    bookmark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7777"}}})
    stream(server, Script(lambda: bookmark), Script(*phases(server, "Succeeded")))
    assert [job.status.phase for job in itertools.islice(client.watch("tiny"), 2)] == ["Running", "Succeeded"]
    assert server.queries[1]["resourceVersion"] == "7777"


def test_a_job_that_is_deleted_ends_the_watch(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server)
    stream(server, Script(lambda: server.event("DELETED", JOB)))
    assert [job.status.phase for job in client.watch("tiny")] == ["Running"]
    stream(server, Script(lambda: server.event("DELETED", JOB)))
    with pytest.raises(ClusterError, match="job tiny was deleted"):
        client.wait("tiny")


def test_a_cluster_that_stays_away_is_given_up(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server)
    stream(server, *[Script(GONE)] * 8)
    with pytest.raises(ClusterError, match="does not answer") as caught:
        client.wait("tiny")
    assert caught.value.reason == "Unreachable"


def test_a_refusal_is_not_tried_again(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server)
    stream(server, Script(forbidden("watch", "heterpsjobs", "team")))
    with pytest.raises(ClusterError, match="you are not allowed to watch heterpsjobs"):
        client.wait("tiny")


def test_waiting_has_an_end(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server)
    with pytest.raises(ClusterError, match="waited for 0 s") as caught:
        client.wait("tiny", timeout=0)
    assert caught.value.reason == "Timeout"


def test_a_status_of_an_earlier_spec_is_no_end(client: HeterPSClient, server: FakeServer) -> None:
    put_job(server, "Failed")
    server.objects[JOB]["metadata"]["generation"] = 2
    done = {"phase": "Succeeded", "observedGeneration": 2}
    stream(server, Script(lambda: server.event("MODIFIED", JOB, status=done)))
    assert client.wait("tiny").status.phase == "Succeeded"


# --- plans and events -------------------------------------------------------------------------------------------------


def put_plan(server: FakeServer, revision: int, plan: Any, name: str = "plan.json") -> None:
    server.put(
        f"/api/v1/namespaces/team/configmaps/tiny-plan-{revision}",
        metadata={"labels": {"heterps.io/job": "tiny"}, "ownerReferences": [owner("tiny")]},
        data={name: json.dumps(plan)},
    )


def put_profiles(server: FakeServer) -> None:
    """Store the profiles that the operator keeps after measuring the pools of the existing job."""
    pools = [server.objects[POOL.replace("cpu", name)] for name in ("cpu", "accelerator")]
    manifest = read_objects(server.objects[JOB], pools)
    cache = ConfigMapProfileCache(server, "team", pod_configuration(manifest))
    for name in ("cpu", "accelerator"):
        cache.save(name, PROFILE)


def begin(server: FakeServer, prices: dict[str, str] | None = None) -> None:
    """Store the state of an operator that has begun with the existing job, and found these prices."""
    pools = tuple(server.objects[POOL.replace("cpu", name)] for name in ("cpu", "accelerator"))
    memory = StoredState(Status(prices=prices or {}), Bill(), spec=server.objects[JOB]["spec"], pools=pools)
    server.put(JOB.replace("heterpsjobs", "heterpsjobstates"), data=memory.to_data())


@pytest.mark.parametrize("text", ["7", "[]", "null", "{", "[" * 100_000])
def test_a_plan_that_is_no_json_object_is_left_out(client: HeterPSClient, server: FakeServer, text: str) -> None:
    put_job(server, "Running")
    put_plan(server, 1, {})
    server.objects["/api/v1/namespaces/team/configmaps/tiny-plan-1"]["data"]["plan.json"] = text
    assert client.plans("tiny") == ()


def test_plans_come_by_their_number(client: HeterPSClient, server: FakeServer) -> None:
    assert client.plan("tiny") is None
    for revision in (10, 9, 2):
        put_plan(server, revision, {"stages": revision})
    put_plan(server, 11, {}, "status.json")
    assert [plan.revision for plan in client.plans("tiny")] == [2, 9, 10]
    plan = client.plan("tiny")
    assert plan is not None
    assert plan.document == {"stages": 10}


def test_events_of_the_job_and_warnings_of_its_pods_in_the_order_of_time(
    client: HeterPSClient, server: FakeServer
) -> None:
    of_job = {"labels": {"heterps.io/job": "tiny"}}
    server.put("/api/v1/namespaces/team/pods/tiny-ps-0-1-1", metadata={**of_job, "ownerReferences": [owner("tiny")]})
    server.put("/api/v1/namespaces/team/pods/stranger", metadata=of_job)

    def event(name: str, about: tuple[str, str], time: str, kind: str = "Normal") -> None:
        involved = {"kind": about[0], "name": about[1]}
        server.put(f"{EVENTS}/{name}", involvedObject=involved, reason=name, lastTimestamp=time, type=kind)

    event("Second", ("Pod", "tiny-ps-0-1-1"), "2026-03-01T10:00:02Z", "Warning")
    event("First", ("HeterPSJob", "tiny"), "2026-03-01T10:00:01Z")
    event("OfAStranger", ("Pod", "stranger"), "2026-03-01T10:00:02Z", "Warning")
    event("OfAnother", ("HeterPSJob", "other"), "2026-03-01T10:00:01Z")
    event("Scheduled", ("Pod", "tiny-ps-0-1-1"), "2026-03-01T10:00:00Z")
    assert [event.reason for event in client.events("tiny")] == ["First", "Second"]


def test_events_of_the_new_api_are_read_too() -> None:
    event = EventView.from_json(
        {
            "metadata": {"creationTimestamp": "2026-03-01T10:00:00Z"},
            "eventTime": "2026-03-01T10:00:00.123456Z",
            "series": {"count": 4, "lastObservedTime": "2026-03-01T10:05:00.000001Z"},
            "reason": "PlanComputed",
            "note": "plan 2",
            "regarding": {"kind": "HeterPSJob", "name": "tiny"},
        }
    )
    assert event.time is not None
    assert (event.message, event.count, event.about, event.time.minute) == ("plan 2", 4, "HeterPSJob tiny", 5)


def test_the_problem_of_a_job_is_made_from_its_profiles(
    client: HeterPSClient, server: FakeServer, job_file: Path
) -> None:
    client.submit(job_file)
    with pytest.raises(ClusterError, match="no operator has begun with it") as caught:
        client.problem("tiny")
    assert caught.value.reason == "NotBegun"
    begin(server)
    with pytest.raises(ClusterError, match="there is no profile of pool cpu, accelerator") as caught:
        client.problem("tiny")
    assert caught.value.reason == "NotProfiled"
    put_profiles(server)
    begin(server, {"accelerator": "0.75"})  # of a market, as the operator has read it
    for name in ("cpu", "accelerator"):  # the operator's own pools may be in no object
        del server.objects[POOL.replace("cpu", name)]
    problem = client.problem("tiny")
    assert problem["minSamplesPerSecond"] == 20_000
    assert [pool["name"] for pool in problem["pools"]] == ["cpu", "accelerator"]
    assert [layer["name"] for layer in problem["layers"]] == ["embedding", "mlp", "head"]
    assert problem["pools"][1]["pricePerUnitHour"] == 0.75
