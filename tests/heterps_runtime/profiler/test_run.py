"""`heterps-runtime profile` as the controller sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.__main__ import main
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import (
    ENV_CONFIG,
    ENV_COORDINATOR,
    ENV_TOKEN,
    EXIT_BAD_INPUT,
    PATH_LOST,
    PATH_PROFILES,
    PATH_STATUS,
    JobPhase,
)
from heterps_runtime.cores import THREADS, usable_cores
from heterps_runtime.profiler.main import run_profiler
from heterps_runtime.wire.link import Credentials
from tests.heterps_runtime.helpers.jobs import CARD, TOKEN, ThreadedJob, configuration


@pytest.fixture(autouse=True)
def _give_back_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting would stay in the process of the tests, some of which look at its memory."""
    monkeypatch.setattr("heterps_runtime.profiler.measure.keep_freed_memory", lambda: None)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    jobs: list[ThreadedJob] = []

    def begin(document: dict[str, Any]) -> ThreadedJob:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(document))
        jobs.append(ThreadedJob(document))
        monkeypatch.setenv(ENV_CONFIG, str(path))
        monkeypatch.setenv(ENV_COORDINATOR, jobs[0].credentials.url)
        monkeypatch.setenv(ENV_TOKEN, TOKEN)
        return jobs[0]

    yield begin
    for job in jobs:
        job.close()


def structure(profile: dict[str, Any]) -> dict[str, set[str]]:
    """The fields of a profile and of its objects; `calibration` is for people, and cards have fields of their own."""
    objects = {name: set(value) for name, value in profile.items() if isinstance(value, dict) and name != "calibration"}
    objects["memory"] -= {"deviceBytes", "deviceBaseBytes"} if profile["measured"]["device"] != "cpu" else set()
    return {"": set(profile), "layers": {key for layer in profile["layers"] for key in layer}, **objects}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "limit", "encryption", "access"),
    [("cpu", None, "Disabled", "Streamed"), ("card", 1, "Required", "Cached")],
)
def test_a_pool_is_measured_and_reported(
    pool: str, limit: int | None, encryption: str, access: str, start: Any, tmp_path: Path
) -> None:
    document = configuration(tmp_path / "work", "flights", precision="fp32", consistency="hybrid")
    document["job"]["spec"]["encryption"] = encryption
    document["job"]["spec"]["data"] |= {"access": access, "windowRows": 128}
    document["pythonPath"] = [str(Path(__file__).parents[3])]  # the second worker is a process of its own
    for entry in document["pools"]:
        entry["spec"]["maxUnits"] = limit
    job = start(document)

    run_profiler(RunConfig.from_json(document), pool)

    profile = job.credentials.request("GET", PATH_PROFILES)[pool]
    stored = json.loads((Path(__file__).parents[2] / "fixtures" / "v1" / "profile.json").read_text())
    assert structure(profile) == structure(stored), "the format of profiles has changed (docs/compatibility.md)"
    on_card = pool == "card" and CARD == "cuda"
    assert ("deviceBytes" in profile["memory"]) == on_card
    assert profile["batchSize"] == 32
    assert profile["samples"] == 300
    assert [layer["name"] for layer in profile["layers"]][-1] == "head"
    for layer in profile["layers"]:
        assert 0 <= layer["computeFixedSeconds"] <= layer["computeSeconds"]
        assert 0 <= layer["parallelFraction"] <= 1
    total = sum(layer["computeSeconds"] for layer in profile["layers"]) + profile["stage"]["stageSeconds"]
    assert total == pytest.approx(profile["calibration"]["stepSeconds"], rel=1e-6)
    assert profile["calibration"]["steps"] >= 8
    used = profile["calibration"]["processor"]
    assert all(seconds > 0 for seconds in used.values())
    layers = sum(layer["processorSeconds"] for layer in profile["layers"])
    assert layers + profile["stage"]["stageProcessorSeconds"] == pytest.approx(sum(used.values()))
    two = profile["calibration"]["twoWorkers"]
    servers = profile["parameterServer"]
    assert servers["workers"] == (2 if two else 1)
    assert servers["processorSecondsPerSample"] * 32 == pytest.approx((two["processor"] if two else used)["servers"])
    if limit == 1:
        assert two is None
        assert f"pool {pool}: the pool has units for one worker (maxUnits 1)" in profile["warnings"]
    elif profile["measured"]["cores"] > 1:
        assert two["steps"] >= 8
    assert job.status()["phase"] == JobPhase.PROFILING


@pytest.mark.slow
def test_a_server_of_several_cores_costs_what_its_busiest_core_spends(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, "3")
    document = configuration(tmp_path / "work", "flights", precision="fp32", consistency="hybrid")
    document["pools"][0]["spec"]["maxUnits"] = 1
    job = start(document)

    run_profiler(RunConfig.from_json(document), "cpu")

    profile = job.credentials.request("GET", PATH_PROFILES)["cpu"]
    busiest = profile["parameterServer"]["processorSecondsPerSample"] * profile["batchSize"]
    # The threads of the transport work beside the one that computes these few rows.
    assert busiest < 0.99 * profile["calibration"]["processor"]["servers"] <= 3 * busiest


@pytest.mark.slow
def test_every_allowed_precision_is_measured_once(
    start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = configuration(
        tmp_path / "work", "flights", precision="Auto", allowedPrecisions=["tf32", "fp64", "fp32"], consistency="hybrid"
    )
    document["pythonPath"] = [str(Path(__file__).parents[3])]
    document["pools"][0]["spec"]["maxUnits"] = 1
    job = start(document)

    run_profiler(RunConfig.from_json(document), "cpu")

    profile = job.credentials.request("GET", PATH_PROFILES)["cpu"]
    stored = json.loads((Path(__file__).parents[2] / "fixtures" / "v1" / "profile.json").read_text())
    measured = profile["precisions"]
    assert profile == {"version": stored["version"], "precisions": measured}
    assert list(measured) == ["tf32", "fp64", "fp32"]
    assert all(structure(one) == structure(stored) for one in measured.values())
    assert measured["fp32"] == measured["tf32"], "a CPU computes them in the same way"
    assert "pool cpu computes fp32 as tf32" in capsys.readouterr().err
    weights = {name: sum(layer["weightBytes"] for layer in one["layers"]) for name, one in measured.items()}
    assert weights["fp64"] == 2 * weights["fp32"]
    assert measured["fp64"]["memory"] == measured["fp32"]["memory"]


@pytest.mark.slow
def test_cores_are_measured_with_each_exchange_that_the_planner_may_choose(start: Any, tmp_path: Path) -> None:
    document = configuration(
        tmp_path / "work",
        "flights",
        precision="Auto",
        allowedPrecisions=["fp64", "fp32"],
        denseExchange="Auto",
        consistency="hybrid",
    )
    document["pythonPath"] = [str(Path(__file__).parents[3])]
    document["job"]["spec"]["encryption"] = "Disabled"  # as all-reduce needs
    document["pools"][0]["spec"]["maxUnits"] = 1
    job = start(document)

    run_profiler(RunConfig.from_json(document), "cpu")

    stored = json.loads((Path(__file__).parents[2] / "fixtures" / "v1" / "profile.json").read_text())
    measured = job.credentials.request("GET", PATH_PROFILES)["cpu"]["precisions"]
    parts = [part for one in measured.values() for part in one["denseExchanges"].values()]
    assert [list(one["denseExchanges"]) for one in measured.values()] == [["ParameterServer", "AllReduce"]] * 2
    assert all(structure(part) == structure(stored) for part in parts)
    assert len({json.dumps(part["memory"]) for part in parts}) == 1, "that of the first measurement"
    for one in measured.values():
        servers, reduced = one["denseExchanges"].values()
        # A worker waits for servers that update dense parameters, or updates its replica itself.
        assert any(layer["serverFixedSeconds"] for layer in servers["layers"])
        assert not any(layer["serverFixedSeconds"] for layer in reduced["layers"])


@pytest.mark.slow
def test_a_worker_that_all_reduces_may_miss_the_second_one_before_the_coordinator_is_told(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if usable_cores() < 2:
        pytest.skip("two workers need two cores")
    document = configuration(tmp_path / "work", "flights", precision="fp32", consistency="hybrid")
    document["job"]["spec"]["encryption"] = "Disabled"  # as all-reduce needs
    [card] = [pool for pool in document["pools"] if pool["metadata"]["name"] == "card"]
    card["spec"]["torchDevice"] = "cpu"  # of one card, one worker is measured
    document["pythonPath"] = [str(Path(__file__).parents[3])]
    job = start(document)
    request, told = Credentials.request, []

    def late(credentials: Credentials, method: str, path: str, *body: Any) -> Any:
        if path == PATH_LOST:
            while request(credentials, "GET", PATH_STATUS)["generation"] < 2:
                time.sleep(0.02)
            told.append(body[0]["member"])
        return request(credentials, method, path, *body)

    monkeypatch.setattr(Credentials, "request", late)
    run_profiler(RunConfig.from_json(document), "card")

    profile = job.credentials.request("GET", PATH_PROFILES)["card"]
    assert profile["calibration"]["steps"] >= 8
    assert told == ["worker-0-1"]


@pytest.mark.parametrize(
    ("field", "value", "reason", "words"),
    [
        (
            "model",
            {"entrypoint": "tests.heterps_runtime.helpers.models:no_such_thing"},
            "EntrypointError",
            "no_such_thing",
        ),
        ("data", {"label": "lat"}, "DataError", "'late'"),
    ],
)
def test_wrong_input_ends_the_job_with_the_same_words_as_a_worker(
    field: str,
    value: dict[str, Any],
    reason: str,
    words: str,
    start: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = configuration(tmp_path / "work", "flights")
    document["job"]["spec"][field] |= value
    job = start(document)

    assert main(["profile", "--pool", "cpu"]) == EXIT_BAD_INPUT

    status = job.wait(lambda s: s["phase"] == JobPhase.FAILED)
    assert status["error"]["reason"] == reason
    assert words in status["error"]["message"]
    assert f"{reason}: " in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_unknown_pool_is_refused(start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(configuration(tmp_path / "work", "flights"))
    assert main(["profile", "--pool", "cpus"]) == EXIT_BAD_INPUT
    assert "no pool named 'cpus'; there are ['card', 'cpu', 'ring']" in capsys.readouterr().err
