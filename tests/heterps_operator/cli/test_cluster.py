"""The commands on a cluster: their output for users and programs, and their exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from rich.text import Text

from heterps_operator.__main__ import main
from heterps_operator.client.client import HeterPSClient
from heterps_operator.control.problem import build_problem
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.reading.processes import process_text
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.bill import Bill
from heterps_operator.state.history import PlanRecord
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan as solve
from heterps_runtime.contract import Role
from tests.heterps_operator.client.test_client import FULL, JOB, JOBS, Script, put_job, put_plan, put_profiles, stream
from tests.heterps_operator.helpers.documents import owner
from tests.heterps_operator.helpers.fake_server import FakeServer, for_cluster
from tests.heterps_operator.helpers.world import PROFILE, make_job

RUNNING = {**FULL, "phase": "Running", "progress": {"step": 120, "totalSteps": 528}}


@pytest.fixture
def job_file(job_file: Path) -> Path:
    return for_cluster(job_file)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()

    def connect(namespace: str | None, kubeconfig: str | None, context: str | None) -> HeterPSClient:
        return HeterPSClient(fake, namespace or "team", pause=lambda seconds: None)

    monkeypatch.setattr("heterps_operator.cli.cluster.common.connect", connect)
    return fake


def put_state(server: FakeServer, pool: str = "cpu") -> None:
    """Store a training job with one worker that cannot start."""
    worker = ProcessSpec("worker-0-1", Role.WORKER, pool, 1, stage=0, index=1)
    member = {"name": "worker-0-0", "role": "worker", "state": "ready", "stage": 0, "index": 0, "pool": "cpu"}
    result = {
        "phase": "Training",
        "members": [{**member, "batchSize": 384, "stepSeconds": 0.021, "computeSeconds": 0.018, "waitSeconds": 0.003}],
        "stages": [{"name": "stage-0", "samplesPerSecond": 51234.0, "busyFraction": 0.9}],
    }
    memory = StoredState(
        Status(
            phase=Phase.RUNNING,
            plan=JobPlan.from_json({**plan_document(), "method": "optimal"}),
            plan_revision=3,
            result=result,
        ),
        Bill(),
        (
            ProcessView(worker, 1.0),
            ProcessView(replace(worker, name="worker-0-0"), 1.0),
            ProcessView(ProcessSpec("coordinator", Role.COORDINATOR), 1.0),
            ProcessView(ProcessSpec("profile-cpu", Role.PROFILE, "cpu", 1), 1.0, ended=2.0, exit_code=0),
        ),
    )
    server.put("/apis/heterps.io/v1alpha1/namespaces/team/heterpsjobstates/tiny", data=memory.to_data())
    message = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    server.put(
        "/api/v1/namespaces/team/pods/tiny-worker-0-1-1-1",
        metadata={
            "labels": {"heterps.io/job": "tiny", "heterps.io/process": "worker-0-1"},
            "annotations": {"heterps.io/process": process_text(worker)},
            "ownerReferences": [owner("tiny")],
        },
        spec={"containers": [{"name": "heterps"}]},
        status={"phase": "Pending", "conditions": [condition]},
    )


def plan_document(floor: float = 20_000) -> Any:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    found = solve(Problem.from_json({**problem, "minSamplesPerSecond": floor}))
    assert found.feasible
    return found.to_json()


def printed(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0
    out: str = capsys.readouterr().out
    return out


# --- submit -----------------------------------------------------------------------------------------------------------


def test_submit_says_what_it_did_and_how_to_go_on(server: FakeServer, job_file: Path, capsys: Any) -> None:
    out = printed(capsys, "submit", str(job_file))
    assert "DevicePool cpu: created\nDevicePool accelerator: created\nHeterPSJob tiny: created\n" in out
    assert "heterps top tiny" in out
    assert JOB in server.objects


def test_submit_checks_the_file_before_it_looks_for_a_cluster(job_file: Path, capsys: Any) -> None:
    job_file.write_text(job_file.read_text().replace("globalBatchSize: 512", "globalBatchSize: -1"))
    assert main(["submit", str(job_file), "--kubeconfig", "/dev/null/none"]) == 2
    assert "spec.training.globalBatchSize" in capsys.readouterr().err


def test_a_dry_run_prints_the_objects_and_keeps_nothing(server: FakeServer, job_file: Path, capsys: Any) -> None:
    objects = yaml.safe_load(printed(capsys, "submit", str(job_file), "--dry-run", "--output", "yaml"))["items"]
    assert [item["kind"] for item in objects] == ["DevicePool", "DevicePool", "HeterPSJob"]
    assert server.objects == {}


def test_options_of_submit_that_do_not_go_together_are_refused(server: FakeServer, job_file: Path, capsys: Any) -> None:
    assert main(["submit", str(job_file), "--dry-run", "--wait"]) == 2
    assert "--dry-run: changes nothing" in capsys.readouterr().err
    assert server.requests == []


def take_up(server: FakeServer, **status: Any) -> Callable[[], str]:
    return lambda: server.event("MODIFIED", JOB, status={"observedGeneration": 1, **status})


def test_submit_waits_shows_the_phases_and_ends_as_the_job_does(
    server: FakeServer, job_file: Path, capsys: Any
) -> None:
    steps = [take_up(server, phase=phase) for phase in ("Profiling", "Planning", "Running")]
    stream(server, Script(steps[0]), Script(*steps[1:]), Script(take_up(server, **FULL)))
    out = printed(capsys, "submit", str(job_file), "--wait")
    for words in (" Profiling\n", " Planning\n", " Running\n", "tiny: trained", "AUC 0.7130", "$0.12"):
        assert words in out


def test_a_job_that_fails_fails_the_command(server: FakeServer, job_file: Path, capsys: Any) -> None:
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "worker-0-0 died"}
    last = take_up(server, phase="Failed", message="BackoffLimitExceeded: worker-0-0 died", conditions=[failed])
    stream(server, Script(take_up(server, phase="Running")), Script(last))
    assert main(["submit", str(job_file), "--wait"]) == 1
    out = capsys.readouterr().out
    assert "tiny: failed" in out
    assert "worker-0-0 died" in out
    assert "heterps logs tiny" in out


def test_programs_get_the_job_as_it_has_ended(server: FakeServer, job_file: Path, capsys: Any) -> None:
    stream(server, Script(take_up(server, **FULL)))
    assert main(["submit", str(job_file), "--wait", "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"]["phase"] == "Succeeded"
    assert "tiny: trained" in err


def test_ctrl_c_leaves_the_job_running_and_says_so(server: FakeServer, job_file: Path, capsys: Any) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    stream(server, Script(take_up(server, phase="Running")), Script(interrupt))
    assert main(["submit", str(job_file), "--wait"]) == 130
    assert "tiny continues in the cluster" in capsys.readouterr().out
    assert JOB in server.objects


def test_a_job_that_nobody_takes_up_makes_one_ask_for_the_operator(
    server: FakeServer, job_file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.cli.cluster.submit._LONELY_SECONDS", 0.0)
    stream(server, Script(take_up(server, **FULL)))
    out = printed(capsys, "submit", str(job_file), "--wait")
    assert "no operator has picked up tiny in 0 s" in out
    assert "namespace team" in out


# --- status -----------------------------------------------------------------------------------------------------------


def test_all_jobs_are_a_table(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=RUNNING)
    server.put(f"{JOBS}/new", spec={})
    [head, new, tiny] = printed(capsys, "status").splitlines()
    assert head.split()[:3] == ["job", "state", "step"]
    assert tiny.split()[:7] == ["tiny", "Running", "120/528", "52,490", "20,000", "$0.080", "$0.12"] or (
        tiny.split()[:5] == ["tiny", "Running", "120/528", "52,490", "20,000"]
    )
    assert "no operator yet" in new


def test_no_jobs_are_said_on_stderr(server: FakeServer, capsys: Any) -> None:
    assert main(["status"]) == 0
    out, err = capsys.readouterr()
    assert (out, "there are no jobs in namespace team" in err) == ("", True)
    assert json.loads(printed(capsys, "status", "--output", "json")) == {"items": []}


def test_jobs_of_all_namespaces_have_a_column_more(server: FakeServer, capsys: Any) -> None:
    put_job(server)
    server.put(JOBS.replace("team", "other") + "/b", spec={})
    lines = printed(capsys, "status", "--all-namespaces").splitlines()
    assert [line.split()[0] for line in lines] == ["namespace", "other", "team"]
    assert main(["status", "tiny", "--all-namespaces"]) == 2


def test_one_job_is_shown_with_plan_conditions_and_cost(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=FULL)
    out = printed(capsys, "status", "tiny")
    for words in (
        "team/tiny",
        "Succeeded",
        "cpu x2 [embedding..head]",
        "Trained",
        "step 528 of 528",
        "floor 20,000",
        "$0.12",
        "1 h 30 min",
    ):
        assert words in out


def test_programs_get_the_object_without_its_managers(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=FULL, metadata={"managedFields": [{"manager": "x"}]})
    document = json.loads(printed(capsys, "status", "tiny", "--output", "json"))
    assert document["status"] == FULL
    assert "managedFields" not in document["metadata"]


@pytest.mark.parametrize("command", ["status", "top", "logs", "explain", "cancel"])
def test_a_job_that_is_not_there_ends_every_command(server: FakeServer, capsys: Any, command: str) -> None:
    put_job(server)
    assert main([command, "tinny"]) == 2
    assert "did you mean tiny?" in capsys.readouterr().err
    assert main([command, "tinny", "--output", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["failure"]["reason"] == "NotFound"


def test_a_cluster_that_does_not_answer_is_no_fault_of_the_command_line(server: FakeServer, capsys: Any) -> None:
    server.refusals["list"] = [ApiError(0, "Unreachable", "connection refused")]
    assert main(["status"]) == 1
    assert "connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../secrets/x", "A", "a/b", "", "x" * 254])
def test_a_name_that_is_none_gets_nowhere_near_a_path(server: FakeServer, capsys: Any, name: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["status", name])
    assert end.value.code == 2
    assert "must be a name" in capsys.readouterr().err
    assert server.requests == []


# --- top --------------------------------------------------------------------------------------------------------------


def test_top_shows_stages_workers_batches_and_what_does_not_start(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=RUNNING)
    put_state(server)
    out = printed(capsys, "top", "tiny")
    for words in ("52,490 samples/s, predicted 50,210, floor 20,000", "51,234", "384", "21 ms", "18 ms"):
        assert words in out
    assert "Unschedulable: " in out
    assert "Insufficient cpu" in out or "no node" in out
    assert out.index("coordinator") < out.index("worker-0-0") < out.index("worker-0-1")
    assert "profile-cpu" not in out


def test_top_in_a_narrow_terminal_shortens_no_name_and_no_figure(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    server.put(JOB, spec={}, status=RUNNING)
    put_state(server, pool="a-pool-whose-name-is-as-long-as-people-make-them")
    out = printed(capsys, "top", "tiny")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    for word in ("coordinator", "worker-0-0", "worker-0-1", "stage-0", "predicted", "measured", "51,234", "384"):
        assert word in out


def test_top_before_there_is_anything_to_see(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={})
    assert "team/tiny" in printed(capsys, "top", "tiny", "--once")


def test_top_for_programs(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=RUNNING)
    put_state(server)
    document = json.loads(printed(capsys, "top", "tiny", "--output", "json"))
    assert document["throughput"] == {
        "measuredSamplesPerSecond": 52490.0,
        "predictedSamplesPerSecond": 50210.4,
        "floorSamplesPerSecond": 20000.0,
    }
    [coordinator, first, second] = document["processes"]
    assert (coordinator["state"], first["member"]["batch_size"], second["state"]) == ("running", 384, "waiting")


def test_a_state_of_another_version_is_said(server: FakeServer, capsys: Any) -> None:
    server.put(JOB, spec={}, status=RUNNING)
    server.put("/apis/heterps.io/v1alpha1/namespaces/team/heterpsjobstates/tiny", data={"status.json": "{}"})
    assert main(["top", "tiny"]) == 2
    assert "is it of another version?" in capsys.readouterr().err


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, command: str) -> io.StringIO:
    """Connect the command's output to a terminal, and freeze time."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system="standard")
    monkeypatch.setattr(f"heterps_operator.cli.cluster.{command}.make_console", lambda stderr=False: console)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return screen


def test_at_a_terminal_top_goes_on_until_the_job_ends(
    server: FakeServer, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = at_a_terminal(monkeypatch, "top")
    server.put(JOB, spec={}, status=RUNNING)
    put_state(server)
    real, looks = server.get, []

    def get(path: str) -> Any:
        if path == JOB:
            looks.append(path)
            if len(looks) == 2:
                server.refusals["get"] = [ApiError(0, "NoAnswer", "connection refused")]
            if len(looks) == 4:
                server.objects[JOB]["status"] = FULL
        return real(path)

    monkeypatch.setattr(server, "get", get)
    assert main(["top", "tiny"]) == 0
    shown = Text.from_ansi(screen.getvalue()).plain
    assert "heterps · team/tiny · Running" in shown
    assert "worker-0-0" in shown
    assert "tiny: trained" in shown
    assert len(looks) == 4


def test_ctrl_c_ends_top_and_not_the_job(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch, "top")
    server.put(JOB, spec={}, status=RUNNING)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main(["top", "tiny"]) == 130
    assert {verb for verb, _ in server.requests} == {"get"}


def test_at_a_terminal_submit_shows_what_happens_now(
    server: FakeServer, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = at_a_terminal(monkeypatch, "submit")
    stream(server, Script(take_up(server, **RUNNING)), Script(take_up(server, **FULL)))
    assert main(["submit", str(job_file), "--wait"]) == 0
    assert "tiny: trained" in Text.from_ansi(screen.getvalue()).plain


# --- logs -------------------------------------------------------------------------------------------------------------


def put_pod(server: FakeServer, process: str, role: str, *lines: str | ApiError, phase: str = "Running") -> None:
    labels = {"heterps.io/job": "tiny", "heterps.io/process": process, "heterps.io/role": role}
    path = f"/api/v1/namespaces/team/pods/tiny-{process}-1-1"
    server.put(path, metadata={"labels": labels, "ownerReferences": [owner("tiny")]}, status={"phase": phase})
    server.streams[f"{path}/log"] = [list(lines)]


@pytest.fixture
def pods(server: FakeServer) -> FakeServer:
    server.put(JOB, spec={}, status=FULL)
    put_pod(server, "ps-0", "ps", "2026-03-01T10:00:02.000000000Z ready", "2026-03-01T10:00:04.000000000Z bye")
    put_pod(
        server,
        "worker-0-0",
        "worker",
        "2026-03-01T10:00:01.000000000Z loaded 3 files",
        "2026-03-01T10:00:03.000000000Z ",
    )
    put_pod(
        server, "worker-0-1", "worker", ApiError(400, "BadRequest", "container is waiting to start"), phase="Pending"
    )
    return server


def test_logs_of_all_pods_are_merged_by_time_under_their_names(pods: FakeServer, capsys: Any) -> None:
    assert printed(capsys, "logs", "tiny").splitlines() == [
        "worker-0-0   | loaded 3 files",
        "ps-0         | ready",
        "worker-0-0   | ",
        "ps-0         | bye",
    ]


def test_names_have_a_colour_at_a_terminal_and_lines_keep_their_own(
    pods: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = at_a_terminal(monkeypatch, "logs")
    assert main(["logs", "tiny", "--role", "worker"]) == 0
    assert "\x1b[" in screen.getvalue()
    assert Text.from_ansi(screen.getvalue()).plain.splitlines()[0].rstrip() == "worker-0-0   | loaded 3 files"


def test_logs_of_one_role_and_only_their_ends(pods: FakeServer, capsys: Any) -> None:
    assert printed(capsys, "logs", "tiny", "--role", "ps", "--tail", "2").count("\n") == 2
    [query] = pods.queries
    assert query == {"container": "heterps", "timestamps": "true", "tailLines": "2"}


def test_logs_for_programs_are_one_object_per_line(pods: FakeServer, capsys: Any) -> None:
    first = json.loads(printed(capsys, "logs", "tiny", "--output", "json").splitlines()[0])
    assert first == {
        "process": "worker-0-0",
        "pod": "tiny-worker-0-0-1-1",
        "time": "2026-03-01T10:00:01.000000000Z",
        "text": "loaded 3 files",
    }


def test_following_ends_with_the_job(pods: FakeServer, capsys: Any) -> None:
    lines = printed(capsys, "logs", "tiny", "--follow").splitlines()
    assert sorted(lines) == sorted(
        ["worker-0-0   | loaded 3 files", "ps-0         | ready", "worker-0-0   | ", "ps-0         | bye"]
    )
    assert all(query["follow"] == "true" for query in pods.queries)


def test_a_job_without_pods_says_where_its_logs_are_gone(server: FakeServer, capsys: Any) -> None:
    put_job(server)
    assert main(["logs", "tiny", "--role", "worker"]) == 0
    assert "has no pods of role worker" in capsys.readouterr().err


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_compares_with_alternatives_and_says_what_is_cheaper(
    server: FakeServer, job_file: Path, capsys: Any
) -> None:
    # Above the cheapest throughput per sample, so that the floor costs something.
    job_file.write_text(job_file.read_text().replace("minSamplesPerSecond: 20000", "minSamplesPerSecond: 60000"))
    assert main(["submit", str(job_file)]) == 0
    put_profiles(server)
    plan = plan_document(60_000)
    before = json.loads(json.dumps(plan))
    before["stages"][0]["units"] += 1
    put_plan(server, 1, before)
    put_plan(server, 2, plan)
    server.put(
        "/api/v1/namespaces/team/events/a",
        involvedObject={"kind": "HeterPSJob", "name": "tiny"},
        reason="Rescaled",
        message="measured 9,000 samples/s",
        lastTimestamp="2026-03-01T10:00:00Z",
    )
    capsys.readouterr()
    out = printed(capsys, "explain", "tiny")
    units = plan["stages"][0]["units"]
    for words in (
        "optimal (gap 0)",
        "the cheapest plan of each other kind",
        "cheaper alternatives",
        "a floor of 54,000 samples/s",
        f"stage-0: {units + 1} -> {units} cpu",
        "measured 9,000 samples/s",
    ):
        assert words in out
    document = json.loads(printed(capsys, "explain", "tiny", "--output", "json"))
    assert document["explanation"]["gap"] == 0
    assert document["explanation"]["alternatives"]
    assert document["explanation"]["lowerFloors"][0]["saving"] > 0
    assert document["revisions"][1]["change"] == f"stage-0: {units + 1} -> {units} cpu"
    assert document["events"][0]["reason"] == "Rescaled"


def test_explain_says_what_it_cannot_know(server: FakeServer, job_file: Path, capsys: Any) -> None:
    assert main(["submit", str(job_file)]) == 0
    assert "there is no plan yet" in printed(capsys, "explain", "tiny")
    put_plan(server, 1, plan_document())
    assert "cannot be compared: job tiny: there is no profile of pool cpu" in printed(capsys, "explain", "tiny")
    put_profiles(server)
    plan = plan_document()
    plan["stages"][0]["units"] = 99
    put_plan(server, 2, plan)
    assert "the plan does not fit the current job" in printed(capsys, "explain", "tiny")


def test_explain_says_why_there_is_no_plan(server: FakeServer, capsys: Any) -> None:
    reason = "no plan reaches 90,000 samples/s, the best reaches 52,000"
    condition = {"type": "Planned", "status": "False", "reason": "ThroughputFloorUnreachable", "message": reason}
    server.put(JOB, spec={}, status={"phase": "Failed", "conditions": [condition]})
    assert reason in printed(capsys, "explain", "tiny")


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_job_of_a_cluster_has_a_page(
    server: FakeServer, job_file: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["submit", str(job_file)]) == 0
    assert main(["report", "tiny"]) == 2
    assert "no operator has begun with it" in capsys.readouterr().err
    pools = [server.objects[f"/apis/heterps.io/v1alpha1/devicepools/{name}"] for name in ("cpu", "accelerator")]
    records = (
        PlanRecord(1, 1_700_000_000.0, "PlanComputed"),
        PlanRecord(2, 1_700_000_600.0, "UnitsChanged", "measured 9,000 samples/s", "cpu x3 [embedding..head]"),
    )
    plan = JobPlan.from_json(plan_document())
    memory = StoredState(
        Status(phase=Phase.RUNNING, plan=plan, plan_revision=2, history=records),
        Bill(),
        spec=server.objects[JOB]["spec"],
        pools=tuple(pools),
    )
    server.put("/apis/heterps.io/v1alpha1/namespaces/team/heterpsjobstates/tiny", data=memory.to_data())
    assert printed(capsys, "report", "tiny") == "tiny: report written to tiny.html\n"
    page = Path("tiny.html").read_text()
    for words in ("Running · namespace team", "measured 9,000 samples/s", "there is no profile of pool cpu"):
        assert words in page
    put_profiles(server)
    assert json.loads(printed(capsys, "report", "tiny", "--html", "a.html", "--output", "json"))["phase"] == "Running"
    assert "What speed costs" in Path("a.html").read_text()


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_cancel_suspends(server: FakeServer, capsys: Any) -> None:
    put_job(server)
    assert "it writes a checkpoint" in printed(capsys, "cancel", "tiny")
    assert server.objects[JOB]["spec"]["runPolicy"]["suspend"] is True
    assert "is already stopping" in printed(capsys, "cancel", "tiny")


def test_cancelling_what_has_ended_changes_nothing(server: FakeServer, capsys: Any) -> None:
    put_job(server, "Succeeded")
    assert "has already ended (Succeeded)" in printed(capsys, "cancel", "tiny")
    assert server.objects[JOB]["spec"] == {}


def test_deleting_asks_and_takes_no_for_an_answer(
    server: FakeServer, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_job(server)
    assert main(["cancel", "tiny", "--delete"]) == 2
    assert "cannot ask for confirmation without a terminal; add --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "\n", raising=False)
    assert "tiny is unchanged" in printed(capsys, "cancel", "tiny", "--delete")
    assert JOB in server.objects
    assert json.loads(printed(capsys, "cancel", "tiny", "--delete", "--yes", "--output", "json"))["done"] == "delete"
    assert JOB not in server.objects
