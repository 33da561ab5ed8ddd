"""BalanceNet's experiment: its phases with simulated workers, and the limits of real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiments import confinement
from experiments.__main__ import main
from experiments.confinement import Confinement
from experiments.framework import Row
from experiments.image_data import BATCHES, MODELS
from experiments.image_phases import CLAIRVOYANT, POLICIES, SHARES, Speeds, run_scenario
from experiments.image_simulation import SimulatedJob, job_spec
from experiments.tables import number, read_csv

ROOT = Path(__file__).parents[2]


def simulated(scenario: str, transfers: tuple[float, ...] = (0.0,) * 4, seed: int = 3) -> dict[str, Row]:
    job = SimulatedJob(job_spec("cnn"), SHARES[scenario], transfers, seed)
    rows = run_scenario(job, lambda: None, (*POLICIES, CLAIRVOYANT), seed, Speeds())
    return {str(row["policy"]): row for row in rows}


def batches(row: Row) -> list[int]:
    return [int(number(row, f"batch_{i}")) for i in range(4)]


def test_each_policy_is_measured_with_the_same_global_batch() -> None:
    found = simulated("unequal cores")
    assert list(found) == [*POLICIES, CLAIRVOYANT]
    assert {sum(batches(row)) for row in found.values()} == {BATCHES["cnn"]}
    assert batches(found["equal"]) == [176] * 4
    assert simulated("unequal cores") == found, "the seed decides everything"
    assert simulated("unequal cores", seed=4)["random"] != found["random"]


def test_optimal_reaches_the_clairvoyant_step_and_bno_does_not() -> None:
    times = {policy: number(row, "step_seconds") for policy, row in simulated("unequal cores").items()}
    assert times["optimal"] <= 1.05 * times[CLAIRVOYANT]
    assert times["equal"] >= 1.4 * times["optimal"]
    assert times["bno"] > 1.5 * times["optimal"]


def test_bno_takes_samples_from_a_worker_behind_a_slow_link() -> None:
    near, far = simulated("homogeneous")["bno"], simulated("homogeneous", (0.0, 0.0, 0.0, 0.5))["bno"]
    assert min(batches(near)) > 0.9 * 176
    assert batches(far)[3] < 0.8 * min(batches(far)[:3])


def test_the_clairvoyant_division_follows_a_line_for_each_worker() -> None:
    speeds = Speeds()
    for first, second in ((10, 90), (50, 50), (90, 10)):
        speeds.note((first, second), (1.0 + 0.01 * first, 0.03 * second))
    (one, two) = speeds.workers()
    assert (one.overhead_seconds, one.seconds_per_sample) == pytest.approx((1.0, 0.01))
    assert (two.overhead_seconds, two.seconds_per_sample) == pytest.approx((0.0, 0.03), abs=1e-9)
    assert speeds.best(100) == (50, 50)  # 1.5 s each


def test_a_line_of_the_clairvoyant_has_no_negative_part() -> None:
    speeds = Speeds()
    for batch, falling in ((10, 0.3), (30, 0.1)):
        speeds.note((batch, batch, batch), (0.02 * batch - 0.1, falling, 0.5))
    rising, flat, _ = speeds.workers()
    assert rising.overhead_seconds == 0
    assert rising.seconds_per_sample == pytest.approx((10 * 0.1 + 30 * 0.5) / (10**2 + 30**2))
    assert flat.overhead_seconds == pytest.approx(0.2)
    assert flat.seconds_per_sample == 0


def published(model: str) -> dict[str, float]:
    """Return the published step times of a model on unequal cores, by policy."""
    rows = read_csv(ROOT / "docs" / "results" / "image-nodes.csv")
    return {
        str(row["policy"]): number(row, "step_seconds")
        for row in rows
        if (row["model"], row["scenario"], row["status"]) == (model, "unequal cores", "ok")
    }


@pytest.mark.parametrize("model", MODELS)
def test_in_the_published_results_optimal_is_far_better_than_equal(model: str) -> None:
    times = published(model)
    assert times["equal"] >= 1.4 * times["optimal"]
    assert times["bno"] > times["optimal"]


@pytest.mark.parametrize(
    "model",
    [
        "cnn",
        "alexnet",
        "vgg16",
        pytest.param("resnet50", marks=pytest.mark.xfail(strict=True, reason="1.27 times: docs/experiments.md")),
    ],
)
def test_in_the_published_results_optimal_is_close_to_the_clairvoyant(model: str) -> None:
    times = published(model)
    assert times["optimal"] <= 1.1 * times[CLAIRVOYANT]


# --- confined nodes ---------------------------------------------------------------------------------------------------


def test_a_machine_without_root_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert confinement.missing() == "root"


def test_an_experiment_that_cannot_run_here_says_why_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["image-nodes", "--out", str(tmp_path), "--cache", str(tmp_path / "cache")]) == 1
    assert "image-nodes: not run, it needs root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def look_at_nodes() -> dict[str, object]:
    """In a network namespace: what programs in two nodes see of their limits."""
    script = (
        "import re, socket, time\n"
        "limited = re.compile(r'(memory|^0:):.*heterps-limits', re.M)\n"
        "while not limited.search(open('/proc/self/cgroup').read()): time.sleep(0.001)\n"
        "held = bytes(bytearray(b'x') * (16 << 20))  # only what it takes from now on counts\n"
        "s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    found: dict[str, object] = {}
    with Confinement(2) as nodes:
        log = Path(os.environ["LOG"])
        process = nodes.start(1, (sys.executable, "-u", "-c", script), dict(os.environ), log)
        for _ in range(1000):  # until it has told its port
            if log.read_text().strip():
                break
            time.sleep(0.01)
        nodes.limit_cores(1, 0.25)
        nodes.limit_memory(1, 256 << 20)
        nodes.limit_rate(1, 5e6)
        found["links"] = subprocess.run(("tc", "qdisc", "show"), capture_output=True, text=True, check=True).stdout
        groups = [Path("/proc", str(process.pid), "cgroup").read_text()]
        found["inside"] = all(line.endswith("/1") for line in groups[0].splitlines() if "heterps-limits" in line)
        found["memory"] = nodes.memory(1)
        nodes.limit_rate(1, None)
        found["free"] = subprocess.run(("tc", "qdisc", "show"), capture_output=True, text=True, check=True).stdout
        process.kill()
        process.wait()
    found["left"] = [
        str(path) for path in Path("/sys/fs/cgroup").glob("*/heterps-limits-*") if str(os.getpid()) in path.name
    ]
    return found


@pytest.mark.skipif(bool(confinement.missing()), reason="confined nodes need root, iproute2 and control groups")
def test_a_node_has_its_limits_and_leaves_nothing(tmp_path: Path) -> None:
    program = "import json; from tests.experiments.test_images import look_at_nodes; print(json.dumps(look_at_nodes()))"
    environment = os.environ | {"LOG": str(tmp_path / "log"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ("unshare", "--net", sys.executable, "-c", program)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "tbf" in found["links"]
    assert "rate 5Mbit" in found["links"]
    assert "tbf" not in found["free"]
    assert found["inside"]
    assert found["memory"] >= 16 << 20
    assert found["left"] == []
