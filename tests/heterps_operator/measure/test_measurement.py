"""Decisions about batch sizes and units use figures that are all from one moment, or none."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from heterps_operator.errors import UsageError
from heterps_operator.loop.coordinator_answers import read_status
from heterps_operator.measure.measurement import (
    Figures,
    MeasurementError,
    Meter,
    PrometheusServer,
    WorkerFigures,
    measured,
)
from heterps_operator.state.values import CoordinatorView
from heterps_runtime.coordinator.figures import JobMetrics, describe_job
from heterps_runtime.wire.messages import Done, Pulse
from tests.heterps_operator.helpers.world import World as ReconciledWorld
from tests.heterps_runtime.helpers.coordinator_world import World

NOW = 1_700_000_000.0
STAGES = [("cpu", 0, 2), ("card", 2, 1)]
VIEW = {
    "phase": "Training",
    "generation": 4,
    "committedSteps": 30,
    "samplesPerSecond": 1.0,
    "stages": [{"name": "stage-0", "pool": "cpu", "samplesPerSecond": 2.0, "busyFraction": 0.5}],
    "members": [
        {"name": "ps-0", "role": "ps", "state": "ready"},
        {"name": "worker-0-0", "role": "worker", "state": "ready", "stage": 0, "index": 0, "batchSize": 300,
         "computeSeconds": 9.0},
        {"name": "worker-0-1", "role": "worker", "state": "ready", "stage": 0, "index": 1, "batchSize": 212,
         "computeSeconds": 9.0},
    ],
}  # fmt: skip
FIGURES = Figures(
    NOW,
    4,
    50_000.0,
    {0: 61_000.0},
    {(0, 0): WorkerFigures(300, 0.02, 0.015, 0.005), (0, 1): WorkerFigures(212, 0.02, 0.016, 0.004)},
)


def speeds(view: CoordinatorView) -> list[float]:
    return [member.compute_seconds for member in view.members if member.role == "worker"]


def text(measured_at: float = NOW, **changes: float) -> str:
    """Return parts of a coordinator's response."""
    values = {"generation": 4, "samples": 50_000.0, "compute": 0.015, "batch": 300} | changes
    job = 'namespace="ml",job_name="flights"'
    worker = f'{job},stage="0",pool="cpu",worker="0"'
    return (
        "# HELP heterps_training_generation Generation of members in force\n"
        "# TYPE heterps_training_generation gauge\n"
        f"heterps_training_generation{{{job}}} {values['generation']}\n"
        f"heterps_training_measured_timestamp_seconds{{{job}}} {measured_at!r}\n"
        f"heterps_training_samples_per_second{{{job}}} {values['samples']}\n"
        f'heterps_stage_samples_per_second{{{job},stage="0",pool="cpu"}} 61000\n'
        f"heterps_worker_batch_size{{{worker}}} {values['batch']}\n"
        f'heterps_worker_step_seconds{{{worker},activity="compute"}} {values["compute"]}\n'
        f'heterps_worker_step_seconds{{{worker},activity="step"}} 0.02\n'
        f'heterps_worker_activity_step_seconds{{{worker},activity="forward"}} 0.01\n'
        f"heterps_worker_operations_per_second{{{worker}}} 3e9\n"
        f"heterps_worker_memory_bytes{{{worker}}} 500000000\n"
        f"heterps_worker_round_trip_seconds{{{worker}}} 0.004\n"
        'python_info{version="3"} 1\n'
    )


# --- figures into the view --------------------------------------------------------------------------------------------


def test_speeds_are_the_measured_ones_and_everything_else_stays() -> None:
    view = measured(CoordinatorView.from_json(VIEW), FIGURES)
    assert view.samples_per_second == view.document["samplesPerSecond"] == 50_000.0
    assert view.document["stages"] == [{**VIEW["stages"][0], "samplesPerSecond": 61_000.0}]  # type: ignore[index]
    assert speeds(view) == [0.015, 0.016]
    assert [(m.name, m.state, m.batch_size) for m in view.members] == [
        ("ps-0", "ready", 0),
        ("worker-0-0", "ready", 300),
        ("worker-0-1", "ready", 212),
    ]
    assert (view.phase, view.committed_steps) == ("Training", 30)


@pytest.mark.parametrize("figures", [None, Figures(NOW, 3, 50_000.0, {0: 1.0}, FIGURES.workers)])
def test_nothing_is_measured_without_figures_or_with_those_of_another_generation(figures: Figures | None) -> None:
    view = measured(CoordinatorView.from_json(VIEW), figures)
    assert view.samples_per_second == 0
    assert view.document["stages"][0]["samplesPerSecond"] == 0
    assert speeds(view) == [0, 0]


def test_seconds_with_another_batch_size_say_nothing_about_this_one() -> None:
    moved = {**VIEW, "members": [{**m, "batchSize": 256} if m["name"] == "worker-0-0" else m for m in VIEW["members"]]}  # type: ignore[attr-defined]
    assert speeds(measured(CoordinatorView.from_json(moved), FIGURES)) == [0, 0.016]


# --- what a coordinator says ------------------------------------------------------------------------------------------


def test_the_status_of_a_coordinator_and_its_series_say_the_same() -> None:
    world = World(STAGES).begin()
    world.now += 1
    world.step(3)
    for name, compute in zip(world.workers, (0.5, 0.25, 0.125), strict=True):
        world.say(name, Pulse(0, "running", {"operations": 1e6, "memory": 5e8, "round-trip": 0.004}))
        times = {"step": 1.0, "compute": compute, "wait": 1 - compute}
        world.say(name, Done(world.core.membership.generation, 3, 1.0, True, times))
    view = read_status(json.loads(json.dumps(describe_job(world.core, world.config, world.now))))
    exported = JobMetrics(world.core, world.config, lambda: world.now).render().decode()
    figures = ask(lambda *_: (200, vector((exported, {}))))
    assert figures.generation == world.core.membership.generation == 1
    assert figures.workers == {
        (0, 0): WorkerFigures(16, 1.0, 0.5, 0.5, 32e6, 5e8, 0.004),
        (0, 1): WorkerFigures(16, 1.0, 0.25, 0.75, 64e6, 5e8, 0.004),
        (1, 0): WorkerFigures(32, 1.0, 0.125, 0.875, 256e6, 5e8, 0.004),
    }
    assert measured(view, figures) == view
    assert view.measured == world.now


def test_a_scraper_may_choose_series_by_name() -> None:
    world = World(STAGES).begin()
    chosen = JobMetrics(world.core, world.config, lambda: world.now).render({"heterps_worker_batch_size"}).decode()
    assert {line.partition("{")[0] for line in chosen.splitlines() if line[0] != "#"} == {"heterps_worker_batch_size"}


# --- over the network -------------------------------------------------------------------------------------------------

Answer = Callable[[str, Any], tuple[int, str]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            code, body = answer(self.path, self.headers)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vector(*texts: tuple[str, dict[str, Any]]) -> str:
    """Return a Prometheus response with the series of these scraped targets."""
    result = []
    for exported, target in texts:
        for family in text_string_to_metric_families(exported):
            for sample in family.samples:
                labels: dict[str, Any] = {"__name__": sample.name, **sample.labels, **target}
                if sample.name.startswith("heterps_"):
                    result.append({"metric": labels, "value": [NOW, str(sample.value)]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def ask(answer: Answer, **options: Any) -> Figures:
    with serving(answer) as address:
        server = PrometheusServer(f"{address}/prometheus/", **options)
        return server.of("ml", "flights").read()


def test_a_prometheus_server_is_asked_for_the_series_of_the_job() -> None:
    asked: list[str] = []

    def answer(path: str, headers: Any) -> tuple[int, str]:
        asked.append(path)
        return 200, vector((text(), {"instance": "10.0.0.7:7400", "job": "coordinators"}))

    worker = WorkerFigures(300, 0.02, 0.015, 0.0, 3e9, 5e8, 0.004)
    assert ask(answer) == Figures(NOW, 4, 50_000.0, {0: 61_000.0}, {(0, 0): worker})
    [path] = asked
    assert urlsplit(path).path == "/prometheus/api/v1/query"
    [query] = parse_qs(urlsplit(path).query)["query"]
    assert query == (
        '{__name__=~"heterps_training_measured_timestamp_seconds|heterps_training_generation|'
        "heterps_training_samples_per_second|heterps_stage_samples_per_second|heterps_worker_batch_size|"
        "heterps_worker_step_seconds|heterps_worker_operations_per_second|heterps_worker_memory_bytes|"
        'heterps_worker_round_trip_seconds",namespace="ml",job_name="flights"}'
    )


def test_series_that_cannot_be_are_left_out() -> None:
    for wrong in (math.nan, math.inf, -1.0):
        assert ask(lambda *_: (200, vector((text(compute=wrong), {})))).workers[(0, 0)].compute_seconds == 0  # noqa: B023
        assert ask(lambda *_: (200, vector((text(samples=wrong), {})))).samples_per_second == 0  # noqa: B023
    strange = text() + 'heterps_worker_batch_size{stage="x",pool="cpu",worker="0"} 7\n'
    assert ask(lambda *_: (200, vector((strange, {})))) == ask(lambda *_: (200, vector((text(), {}))))


def test_of_two_coordinators_the_newer_one_counts() -> None:
    old = (text(NOW - 20, samples=1.0), {"instance": "10.0.0.7:7400", "pod": "flights-coordinator-1-1"})
    new = (text(NOW - 5), {"instance": "10.0.0.9:7400", "pod": "flights-coordinator-2-1"})
    for order in ((old, new), (new, old)):
        assert ask(lambda *_: (200, vector(*order))).samples_per_second == 50_000.0  # noqa: B023


@pytest.mark.parametrize("ahead", [0.0, 86_400.0, -86_400.0])
def test_figures_age_from_when_they_were_new_here_whatever_clock_the_coordinator_has(ahead: float) -> None:
    elapsed, ages = [0.0], [0.0]

    def answer(path: str, headers: Any) -> tuple[int, str]:
        return 200, vector((text(NOW + ahead + elapsed[0] - ages[0]), {"pod": "flights-coordinator-1-1"}))

    with serving(answer) as address:
        job = PrometheusServer(address, monotonic=lambda: elapsed[0]).of("ml", "flights")
        for elapsed[0] in (0.0, 60.0, 120.0):
            assert job.read().samples_per_second == 50_000.0
        for ages[0] in (30.0, 90.0, 91.0):  # it is not scraped any more
            elapsed[0] = 120.0 + ages[0]
            if ages[0] <= 90.0:
                assert job.read().measured == NOW + ahead + 120.0
        with pytest.raises(MeasurementError, match="the series of job ml/flights are 91 s old; does it still scrape"):
            job.read()


def test_a_coordinator_counts_that_comes_after_one_whose_clock_was_ahead() -> None:
    elapsed = [0.0]

    def answer(path: str, headers: Any) -> tuple[int, str]:
        old = text(NOW + 3_600, samples=1.0), {"instance": "10.0.0.7:7400", "pod": "flights-coordinator-1-1"}
        new = text(NOW + elapsed[0]), {"instance": "10.0.0.9:7400", "pod": "flights-coordinator-2-1"}
        return 200, vector(old, new) if elapsed[0] else vector(old)

    with serving(answer) as address:
        job = PrometheusServer(address, monotonic=lambda: elapsed[0]).of("ml", "flights")
        assert job.read().samples_per_second == 1.0
        elapsed[0] = 15.0
        assert job.read().samples_per_second == 50_000.0


def test_the_token_is_read_anew_for_every_query(tmp_path: Path) -> None:
    token, seen = tmp_path / "token", []

    def answer(path: str, headers: Any) -> tuple[int, str]:
        seen.append(headers["Authorization"])
        return 200, vector((text(), {}))

    with serving(answer) as address:
        server = PrometheusServer(address, token_file=token).of("ml", "flights")
        with pytest.raises(MeasurementError, match="token: cannot be read"):
            server.read()
        for word in ("one", "two"):
            token.write_text(word + "\n")
            server.read()
    assert seen == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, vector()), "it has no series of job ml/flights; let it scrape the coordinators' port"),
        ((200, '{"status":"error","error":"too many samples"}'), "refused the query: too many samples"),
        ((200, "[]"), "is not from a Prometheus API"),
        ((200, "<html>"), "is not from a Prometheus API"),
        ((200, '{"status":"success","data":{"result":[{"metric":{},"value":[0]}]}}'), "is not from a Prometheus API"),
        ((200, vector((text(), {"stage": []}))), "is not from a Prometheus API"),
        ((200, vector((text(), {"activity": {}}))), "is not from a Prometheus API"),
        ((401, "who are you?"), "answers with 401 .*who are you"),
    ],
)
def test_a_prometheus_server_that_cannot_help_says_so(answer: tuple[int, str], words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        ask(lambda *_: answer)


@pytest.mark.parametrize(
    "url",
    ["prometheus:9090", "ftp://prometheus", "http://", "http://p?x=1", "http://me:pw@p", "http://[p", "http://p:x",
     "http://p:99999", "http://p/#x", "http://p/a b", "http://p/\u00e9"],
)  # fmt: skip
def test_a_wrong_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="--prometheus-url: must be http://HOST:PORT"):
        PrometheusServer(url)


def test_certificates_that_do_not_exist_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ca.pem: cannot be used as certificates: No such file"):
        PrometheusServer("https://prometheus", ca_file=tmp_path / "ca.pem")


# --- turn by turn -----------------------------------------------------------------------------------------------------


class Source:
    """A source with scripted answers."""

    pause_seconds = 2.0

    def __init__(self) -> None:
        self.reads = 0
        self.error = ""
        self.seconds = 0.0  # duration of a read
        self.watch: Watch | None = None

    def read(self) -> Figures:
        self.reads += 1
        if self.watch is not None:
            self.watch.now += self.seconds
        if self.error:
            raise MeasurementError(self.error)
        return FIGURES


class Watch:
    """A meter with a clock that tests control."""

    def __init__(self) -> None:
        self.now, self.source = NOW, Source()
        self.meter = Meter(self.source, lambda: self.now)

    def look(self, seconds: float = 1.0, address: str = "http://c:1") -> tuple[float, list[tuple[str, str, str]]]:
        self.now += seconds
        view, events = self.meter.measure(CoordinatorView.from_json(VIEW), address)
        return view.samples_per_second, [(e.type, e.reason, e.message) for e in events]


def test_figures_hold_until_the_source_may_be_read_again() -> None:
    watch = Watch()
    assert [watch.look()[0] for _ in range(6)] == [50_000.0] * 6
    assert watch.source.reads == 3
    watch.look(0.1, "http://another:1")
    assert watch.source.reads == 4, "figures of one coordinator are not those of the next"


def test_a_source_that_takes_long_is_read_less_often() -> None:
    watch = Watch()
    watch.source.seconds, watch.source.watch = 0.5, watch
    watch.look()
    for _ in range(9):
        watch.look()
    assert watch.source.reads == 1
    watch.look()
    watch.look()
    assert watch.source.reads == 2


def test_a_source_that_fails_is_told_of_once_and_never_stops_the_job() -> None:
    watch = Watch()
    watch.look()
    watch.source.error = "http://p: does not answer (timed out)"
    looks = [watch.look() for _ in range(200)]
    assert {rate for rate, _ in looks[2:]} == {0.0}, "old figures are not taken for new ones"
    assert [event for _, events in looks for event in events] == [
        (
            "Warning",
            "NotMeasured",
            "http://p: does not answer (timed out); training goes on, batch sizes and units stay as they are until it "
            "can be measured",
        )
    ]
    assert watch.source.reads < 45, "it is not asked on every turn"
    watch.source.error = ""
    back = [watch.look() for _ in range(10)]
    assert back[-1][0] == 50_000.0
    assert [event[:2] for _, events in back for event in events] == [("Normal", "MeasuredAgain")]


def test_a_source_that_fails_for_a_moment_is_no_news() -> None:
    watch = Watch()
    watch.source.error = "not scraped yet"
    assert all(watch.look()[1] == [] for _ in range(50))
    watch.source.error = ""
    assert [watch.look()[1] for _ in range(10)] == [[]] * 10


# --- decisions --------------------------------------------------------------------------------------------------------


def test_what_was_not_measured_is_not_below_the_floor() -> None:
    world = ReconciledWorld().training()
    world.set_phase("Training", committedSteps=50, samplesPerSecond=0.0)
    world.settle()
    assert world.status.condition("ThroughputMet").status == "Unknown"
    world.set_phase("Training", samplesPerSecond=1.0)
    world.settle()
    assert world.status.condition("ThroughputMet").reason == "BelowFloor"
