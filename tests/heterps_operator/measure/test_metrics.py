"""The operator's metrics: counted once, removed with their job, and documented."""

from __future__ import annotations

import http.client
import re
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric

from heterps_operator.errors import UsageError
from heterps_operator.measure.metrics import JOB_SERIES, OPERATOR_SERIES, POOL_SERIES, MetricsServer, OperatorMetrics
from heterps_operator.state.bill import Bill, BillLine
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.prices import PriceStep
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.turn import Turn
from heterps_runtime.coordinator.figures import JobMetrics
from heterps_runtime.wire.messages import Done, Pulse
from tests.heterps_operator.helpers.nodes import make_node, make_pool, status_of
from tests.heterps_operator.helpers.world import PLAN, World
from tests.heterps_runtime.helpers.coordinator_world import EVERY
from tests.heterps_runtime.helpers.coordinator_world import World as CoordinatorWorld

ROOT = Path(__file__).parents[3]
NOW = 1_700_000_000.0
Samples = dict[str, dict[tuple[str, ...], float]]


def make_metrics() -> OperatorMetrics:
    return OperatorMetrics("0.1.0", lambda: NOW)


def make_turn(world: World, *events: Event) -> Turn:
    bill = Bill().accrue(
        tuple(world.processes.values()),
        {pool: (PriceStep(price),) for pool, price in world.job.prices.items()},
        world.time,
    )
    return Turn(world.job, world.observed(), world.status, bill, events)


def samples(registry: CollectorRegistry) -> Samples:
    """Values by name and labels."""
    found: Samples = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def of_jobs(metrics: OperatorMetrics) -> Samples:
    return {name: rows for name, rows in samples(metrics.registry).items() if name.startswith("heterps_job_")}


# --- what the operator does -------------------------------------------------------------------------------------------


def test_turns_are_counted_and_only_a_good_one_is_a_success() -> None:
    metrics = make_metrics()
    metrics.on_turn(("ml", "flights"), 0.02, ValueError("x"))
    assert samples(metrics.registry)["heterps_operator_last_success_timestamp_seconds"] == {(): 0}
    metrics.on_turn(("ml", "flights"), 0.3, None)
    found = samples(metrics.registry)
    assert found["heterps_operator_reconcile_total"] == {(): 2}
    assert found["heterps_operator_reconcile_errors_total"] == {("ValueError",): 1}
    assert found["heterps_operator_reconcile_duration_seconds_sum"] == {(): pytest.approx(0.32)}
    assert found["heterps_operator_last_success_timestamp_seconds"] == {(): NOW}


def test_pods_and_requests_are_counted_by_what_they_are() -> None:
    metrics = make_metrics()
    for _ in range(2):
        metrics.on_pod("created", "worker", "cpu")
    metrics.on_pod("deleted", "worker", "cpu")
    metrics.on_request("POST", "pods", 201, 0.01)
    metrics.on_request("POST", "pods", 409, 0.01)
    metrics.on_request("GET", "configmaps", 0, 5.0)
    found = samples(metrics.registry)
    assert found["heterps_operator_pods_total"] == {("created", "worker", "cpu"): 2, ("deleted", "worker", "cpu"): 1}
    assert found["heterps_operator_api_requests_total"] == {
        ("POST", "pods", "201"): 1,
        ("POST", "pods", "409"): 1,
        ("GET", "configmaps", "0"): 1,
    }


def test_restarts_of_watches_are_counted() -> None:
    metrics = make_metrics()
    for _ in range(2):
        metrics.on_watch_restart()
    assert samples(metrics.registry)["heterps_operator_watch_restarts_total"] == {(): 2}


def test_the_queue_is_asked_when_the_metrics_are_read() -> None:
    metrics, waiting = make_metrics(), [3]
    metrics.watch_queue(lambda: waiting[0])
    assert samples(metrics.registry)["heterps_operator_queue_depth"] == {(): 3}
    waiting[0] = 0
    assert samples(metrics.registry)["heterps_operator_queue_depth"] == {(): 0}


def test_plans_and_new_divisions_are_counted_once_each() -> None:
    metrics, world = make_metrics(), World().training()
    world.status = world.status.__class__(plan=JobPlan.from_json({**PLAN, "seconds": 0.4}), plan_revision=1)
    metrics.update("ml", "flights", make_turn(world, Event("Normal", "PlanComputed", "plan 1 by optimal")))
    for _ in range(5):
        metrics.update("ml", "flights", make_turn(world))
    metrics.update("ml", "flights", make_turn(world, Event("Normal", "BatchesMoved", "256+256 -> 340+172")))
    metrics.update("ml", "flights", make_turn(world, Event("Normal", "UnitsChanged", "2 -> 3 workers")))
    found = samples(metrics.registry)
    assert found["heterps_operator_plans_total"] == {("PlanComputed",): 1, ("UnitsChanged",): 1}
    assert found["heterps_operator_rebalances_total"] == {(): 1}
    assert found["heterps_operator_planner_seconds_count"] == {("optimal",): 2}
    assert found["heterps_operator_planner_seconds_sum"] == {("optimal",): pytest.approx(0.8)}


# --- how jobs are -----------------------------------------------------------------------------------------------------


def test_a_training_job_shows_what_it_does_and_costs() -> None:
    metrics, world = make_metrics(), World().training()
    world.set_phase("Training", committedSteps=30)
    world.time += 3600
    world.settle()
    metrics.update("ml", "flights", make_turn(world))
    found, job = of_jobs(metrics), ("ml", "flights")
    assert found["heterps_job_info"] == {(*job, "train", "optimal"): 1}
    assert found["heterps_job_phase"] == {(*job, "Running"): 1}
    conditions = found["heterps_job_condition"]
    assert conditions[(*job, "ThroughputMet", "True")] == 1
    assert conditions[(*job, "Failed", "Unknown")] == 1
    assert len(conditions) == len({key[2] for key in conditions}), "one status of each"
    assert found["heterps_job_samples_per_second"] == {job: 50_000.0}
    assert found["heterps_job_min_samples_per_second"] == {job: 20_000.0}
    assert found["heterps_job_predicted_samples_per_second"] == {job: 52_000.0}
    assert found["heterps_job_pool_units"] == {(*job, "cpu"): 3, (*job, "gpu"): 1}
    assert found["heterps_job_stage_units"] == {(*job, "0", "cpu"): 2, (*job, "1", "gpu"): 1}
    assert found["heterps_job_pods"] == {(*job, "coordinator"): 1, (*job, "ps"): 1, (*job, "worker"): 3}
    assert found["heterps_job_cost_per_hour"] == {job: pytest.approx(3 * 0.04 + 2.42)}
    assert found["heterps_job_planned_cost_per_hour"] == {job: 2.54}
    assert found["heterps_job_cost"][job] >= 3 * 0.04 + 2.42
    assert found["heterps_job_plan_revision"] == {job: 1}


def test_a_job_that_does_not_run_says_why() -> None:
    metrics, world, job = make_metrics(), World(), ("ml", "flights")

    def reasons(status: Status) -> list[str]:
        world.status = status
        metrics.update(*job, make_turn(world))
        return [key[2] for key in of_jobs(metrics).get("heterps_job_waiting", {})]

    status = Status(phase=Phase.PLANNING)
    assert reasons(status) == ["Planning"]
    status = status.with_condition("Planned", False, "WaitingForCapacity", "0 of 4 are free", NOW)
    assert reasons(status) == ["WaitingForCapacity"]
    status = status.with_phase(Phase.STARTING, NOW).with_condition("Planned", True, "PlanComputed", "", NOW)
    assert reasons(status) == ["Starting"]
    status = status.with_condition("PodsReady", False, "Unschedulable", "", NOW)
    assert reasons(status) == ["Unschedulable"]
    assert reasons(status.with_phase(Phase.PAUSED, NOW)) == ["Paused"]
    for phase in (Phase.RUNNING, Phase.STOPPING, Phase.SUSPENDED, Phase.FAILED):
        assert reasons(status.with_phase(phase, NOW)) == []


def test_a_job_that_cannot_be_started_has_a_reason_and_a_cost_only() -> None:
    metrics, world, job = make_metrics(), World().training(), ("ml", "flights")
    metrics.update(*job, make_turn(world))
    metrics.refuse(*job, "PoolNotFound", Decimal("1.5"))
    assert of_jobs(metrics) == {"heterps_job_waiting": {(*job, "PoolNotFound"): 1}, "heterps_job_cost": {job: 1.5}}
    metrics.update(*job, make_turn(world))
    assert "heterps_job_waiting" not in of_jobs(metrics)


def test_the_cost_is_set_against_the_samples_of_the_model_and_limits_are_shown() -> None:
    metrics, world, job = make_metrics(), World().training(), ("ml", "flights")
    world.job = replace(world.job, max_cost_per_hour=Decimal("40.00"), server_memory_bytes=Decimal(1 << 30))
    bill = Bill((BillLine("cpu", Decimal("3.6"), 5_000_000),))  # five seconds of one unit
    turn = make_turn(world)
    metrics.update(*job, replace(turn, bill=bill, status=replace(turn.status, result={"samples": 0})))
    found = of_jobs(metrics)
    assert found["heterps_job_max_cost_per_hour"] == {job: 40}
    assert found["heterps_job_server_memory_limit_bytes"] == {job: 1 << 30}
    assert "heterps_job_cost_per_million_samples" not in found
    metrics.update(*job, replace(turn, bill=bill, status=replace(turn.status, result={"samples": 20_000})))
    assert of_jobs(metrics)["heterps_job_cost_per_million_samples"] == {job: pytest.approx(0.005 / 0.02)}


def test_the_evaluation_is_that_of_the_final_model() -> None:
    metrics, world, job = make_metrics(), World().training(), ("ml", "flights")
    turn = make_turn(world)
    metrics.update(*job, turn)
    assert "heterps_job_evaluation" not in of_jobs(metrics)
    evaluation = {"samples": 100, "loss": 0.5, "auc": None, "logLoss": 0.4, "someone's": 1.0}
    metrics.update(*job, replace(turn, status=replace(turn.status, result={"evaluation": evaluation})))
    assert of_jobs(metrics)["heterps_job_evaluation"] == {(*job, "loss"): 0.5, (*job, "logLoss"): 0.4}


def test_what_is_not_known_has_no_sample() -> None:
    metrics = make_metrics()
    metrics.update("ml", "flights", make_turn(World()))
    found = of_jobs(metrics)
    assert not {name for name in found if "samples_per_second" in name and "min_" not in name}
    assert not {"heterps_job_pool_units", "heterps_job_total_steps", "heterps_job_planned_cost_per_hour"} & set(found)


def test_the_series_of_a_job_that_is_gone_disappear() -> None:
    metrics, world = make_metrics(), World().training()
    turn = make_turn(world)
    for name in ("flights", "ads"):
        metrics.update("ml", name, turn)
    metrics.update("other", "flights", turn)
    metrics.forget("ml", "flights")
    keys = {key[:2] for rows in of_jobs(metrics).values() for key in rows}
    assert keys == {("ml", "ads"), ("other", "flights")}
    metrics.forget("ml", "flights")  # a second time has no effect
    metrics.forget("ml", "ads")
    metrics.forget("other", "flights")
    assert of_jobs(metrics) == {}


def test_a_phase_that_is_over_disappears() -> None:
    metrics, world = make_metrics(), World().training()
    metrics.update("ml", "flights", make_turn(world))
    world.status = world.status.with_phase(Phase.STOPPING, world.time)
    metrics.update("ml", "flights", make_turn(world))
    assert of_jobs(metrics)["heterps_job_phase"] == {("ml", "flights", "Stopping"): 1}


def test_pools_show_what_they_have_until_they_are_gone() -> None:
    metrics, pool = make_metrics(), make_pool()
    metrics.update_pool(pool, status_of(pool, [make_node("a"), make_node("b", "2")], 5))
    found = samples(metrics.registry)
    assert {name: rows for name, rows in found.items() if name.startswith("heterps_pool_")} == {
        "heterps_pool_max_units": {("cpu",): 32},
        "heterps_pool_capacity_units": {("cpu",): 6},
        "heterps_pool_allocated_units": {("cpu",): 5},
        "heterps_pool_nodes": {("cpu",): 2},
        "heterps_pool_ready": {("cpu", "NodesReady"): 1},
        "heterps_pool_price_per_unit_hour": {("cpu",): 0.04},
    }
    metrics.forget_pool("cpu")
    assert not any(name.startswith("heterps_pool_") for name in samples(metrics.registry))


def test_jobs_may_come_and_go_while_metrics_are_read() -> None:
    metrics, turn = make_metrics(), make_turn(World().training())
    errors: list[BaseException] = []

    def churn(number: int) -> None:
        try:
            for index in range(50):
                metrics.update("ml", f"job-{number}-{index % 3}", turn)
                metrics.forget("ml", f"job-{number}-{(index + 1) % 3}")
        except BaseException as error:  # a thread's error must fail the test
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples(metrics.registry)
    assert errors == []


# --- serving ----------------------------------------------------------------------------------------------------------


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_port_serves_metrics_and_says_whether_the_loops_turn() -> None:
    registry, wrong = OperatorMetrics("0").registry, [None, "the control loops do not turn"]
    Counter("heterps_test_total", "x", registry=registry).inc()
    Counter("heterps_other_total", "x", registry=registry).inc()
    server = MetricsServer(registry, 0, lambda: wrong[0])
    try:
        code, text = get(server.port, "/metrics")
        assert (code, "heterps_test_total 1.0" in text, "heterps_other" in text) == (200, True, True)
        code, text = get(server.port, "/metrics?name[]=heterps_test_total&name[]=heterps_none")
        assert (code, "heterps_test_total 1.0" in text, "heterps_other" in text) == (200, True, False)
        code, text = get(server.port, "/metrics?name[]=process_cpu_seconds_total")
        assert (code, [line.split()[0] for line in text.splitlines()][-1]) == (200, "process_cpu_seconds_total")
        assert get(server.port, "/healthz") == (200, "ok\n")
        wrong.pop(0)
        assert get(server.port, "/healthz") == (503, "the control loops do not turn\n")
        assert get(server.port, "/secrets")[0] == 404
        with pytest.raises(UsageError, match=f"--metrics-port {server.port}: cannot listen on it .*choose another"):
            MetricsServer(registry, server.port, lambda: None)
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        get(server.port, "/healthz")


# --- documentation ----------------------------------------------------------------------------------------------------


def documented(section: str) -> dict[str, tuple[str, ...]]:
    """Names and labels in the table under a heading of docs/metrics.md."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    [part] = [p for p in re.split(r"^## ", text, flags=re.M) if p.startswith(section)]
    rows = re.findall(r"^\| `(heterps_\w+)` \|([^|]*)\|([^|]+)\|([^|]+)\|$", part, re.M)
    assert all(unit.strip() and len(meaning.split()) >= 2 for _, _, unit, meaning in rows)
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names))
    return {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels, *_ in rows}


def family_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def test_every_series_of_the_operator_is_documented() -> None:
    declared = {series.name: series.labels for series in OPERATOR_SERIES}
    assert documented("The operator") == declared
    assert documented("Jobs, as the operator sees them") == {series.name: series.labels for series in JOB_SERIES}
    assert documented("Device pools") == {series.name: series.labels for series in POOL_SERIES}
    exported = {family_name(metric) for metric in make_metrics().registry.collect()}
    everything = {*declared, *(series.name for series in (*JOB_SERIES, *POOL_SERIES))}
    assert {name for name in exported if name.startswith("heterps_")} == everything


def test_every_series_of_the_coordinator_is_documented() -> None:
    world = CoordinatorWorld([("cpu", 0, 2), ("card", 2, 1)]).begin()
    world.step(12)
    assert world.core.membership.roster is not None
    world.core.membership.roster.all_workers()[0].observe_step({"forward": 0.5})
    generation, worker = world.core.membership.generation, world.workers[0]
    world.say(worker, Pulse(generation, "running", {"memory": 5e8, "operations": 1e6, "round-trip": 0.1}))
    world.say(worker, Done(generation, world.core.progress.committed, 1.0, True, {"step": 1.0, "compute": 0.5}))
    metrics = JobMetrics(world.core, world.config, lambda: world.now)
    exported = {}
    for metric in metrics.collect():
        labels = {tuple(sample.labels) for sample in metric.samples}
        assert len(labels) <= 1
        exported[metric.name] = next(iter(labels), ("namespace", "job_name"))
    assert documented("The coordinator") == exported


def test_the_coordinator_tells_the_age_of_its_newest_checkpoint() -> None:
    world = CoordinatorWorld([("cpu", 0, 2)]).begin()
    metrics = JobMetrics(world.core, world.config, lambda: world.now)

    def written() -> list[float]:
        [family] = [f for f in metrics.collect() if f.name == "heterps_training_checkpoint_timestamp_seconds"]
        return [sample.value for sample in family.samples]

    assert written() == []
    world.step(EVERY)
    world.save()
    assert written() == [world.core.checkpoints.time]


@pytest.mark.parametrize(
    ("section", "source", "prefix"),
    [("Servers", "ps/server.py", "heterps_ps_"), ("Workers", "worker/member.py", "heterps_worker_")],
)
def test_every_series_of_a_member_is_documented(section: str, source: str, prefix: str) -> None:
    text = (ROOT / "runtime" / "heterps_runtime" / source).read_text()
    declared = {
        f"{name}_total" if kind == "Counter" else name
        for kind, name in re.findall(r'(Counter|Gauge)\(\s*"(heterps_\w+)"', text)
    }
    assert declared
    assert all(name.startswith(prefix) for name in declared)
    assert set(documented(section)) == declared
