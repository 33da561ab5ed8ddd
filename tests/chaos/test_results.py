"""What is measured and judged after a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.chaos.__main__ import main
from tests.chaos.campaign import Outcome
from tests.chaos.faults.incident import Incident
from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.schedule import TOPOLOGIES, Fault, Run
from tests.chaos.results.judgement import Judge, wrong_bill, wrong_model
from tests.chaos.results.recovery import Recovery
from tests.chaos.results.report import describe, plot_usage, read, table, write
from tests.chaos.results.usage import FIGURES, Sample, growths
from tests.counting import NUMBERS, applied, counting_columns
from tests.heterps_operator.helpers.real_job import BATCH, ROWS

STEPS = 3 * ROWS // BATCH


def counted(times: Any) -> dict[str, Any]:
    """The model of a job that applied each sample so many times."""
    columns = counting_columns(ROWS)
    means = np.array([[times @ columns[name] / BATCH for name in NUMBERS]])
    dense = {f"{layer}.{kind}": value for layer in ("linear", "output") for kind, value in (
        ("weight", means), ("bias", np.array([float(STEPS)])),
    )}  # fmt: skip
    return {"tables.weight": times[:, None].astype(float), **dense}


def test_a_model_that_counts_right_is_right() -> None:
    assert wrong_model(counted(applied(ROWS, BATCH, 0, STEPS)), STEPS, None) == []


@pytest.mark.parametrize("change", [-1, 1], ids=["lost", "doubled"])
def test_one_lost_or_doubled_sample_is_noticed(change: int) -> None:
    times = applied(ROWS, BATCH, 0, STEPS)
    times[17] += change
    [problem] = wrong_model(counted(times), STEPS, None)
    assert f"1 of {ROWS} samples were applied more or less often: sample 17 {3 + change} times instead of 3" in problem


def test_another_model_is_noticed() -> None:
    expected = {"a": np.array([1.0, 2.0]), "b": np.array([3.0])}
    assert wrong_model({"a": np.array([1.0, 2.0 + 1e-12]), "b": np.array([3.0])}, 1, expected) == []
    assert wrong_model({"a": np.array([1.0, 2.0 + 1e-11]), "b": np.array([3.0])}, 1, expected) == [
        "a differs by 5e-12 of its largest value"
    ]
    assert wrong_model({"a": np.array([1.0, 2.0])}, 1, expected)


@pytest.mark.parametrize(("charged", "right"), [(0.1, False), (30.0, True), (179.0, True), (181.0, False)])
def test_a_bill_is_right_within_what_the_processes_can_have_existed(charged: float, right: bool) -> None:
    run = Run(1, "sync", "counting", TOPOLOGIES[0], STEPS, ())
    assert sum(count for _, count in run.topology.stages) + run.topology.servers == 3
    lines = [{"unitMicroseconds": charged * 1e6 / 2} for _ in range(2)]
    assert (wrong_bill({"bill": {"pools": lines}}, run, 60.0) == []) == right


def test_what_one_job_or_the_reference_left_is_not_held_against_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "job" / "checkpoints").mkdir(parents=True)
    job: Any = SimpleNamespace(files=tmp_path / "job", output="", real=SimpleNamespace(survivors=dict))
    judge = Judge(tmp_path)
    run = Run(1, "sync", "counting", TOPOLOGIES[0], STEPS, ())

    def left(name: str) -> bool:
        return f"{tmp_path / 'temporary' / name} is left" in judge.problems(job, run, 1, 60.0)

    (tmp_path / "temporary" / "first").touch()
    assert left("first")
    (tmp_path / "temporary" / "second").touch()
    assert not left("first")
    (tmp_path / "temporary" / "third").touch()
    assert left("third")


def status(committed: int, phase: str = "Training", *, running: bool = True) -> dict[str, Any]:
    return {"committedSteps": committed, "running": running, "phase": phase}


def test_steps_under_way_are_no_recovery() -> None:
    recovery = Recovery(began=10.0, under_way=5)
    assert not recovery.observe(11.0, status(20))
    assert not recovery.observe(12.0, status(25))
    assert not recovery.observe(13.0, None)
    assert not recovery.observe(14.0, status(10)), "it has gone back to a checkpoint"
    assert not recovery.observe(15.0, status(15))
    assert recovery.observe(16.0, status(16))
    assert recovery.seconds == 6.0


def test_after_training_the_next_phase_is_the_recovery() -> None:
    recovery = Recovery(began=10.0, under_way=1)
    assert not recovery.observe(11.0, status(64, "Evaluating"))
    assert not recovery.observe(12.0, status(64, "Evaluating"))
    assert recovery.observe(13.0, status(64, "Exporting", running=False))


def lives(slope: float) -> list[Sample]:
    """A process whose memory grows by `slope` MiB per sample, and one that is soon replaced."""
    samples = []
    for i in range(100):
        memory = 100.0 + (min(i, 20) if slope == 0 else i * slope) + i % 3  # some grow while they warm up
        samples.append(Sample(5.0 * i, "ps-0", 7, (memory, 9, 30, 12)))
        samples.append(Sample(5.0 * i, "worker-0-0", 100 + i // 10, (50.0 * i, 9, 30, 12)))
    return samples


def test_growth_is_noticed_after_the_warm_up() -> None:
    assert all(growth.flat for growth in growths(lives(0.0), 24))
    grown = growths(lives(0.5), 24)
    assert {growth.process for growth in grown} == {"ps-0"}, "the others did not live long enough"
    assert [growth.flat for growth in grown] == [False, True, True, True]
    assert grown[0].per_hour == pytest.approx(0.5 * 720, rel=0.05)
    assert len(grown) == len(FIGURES)


# --- reports ----------------------------------------------------------------------------------------------------------


def described(seed: int, seconds: float, *problems: str) -> dict[str, Any]:
    fault = Fault("kill", "ps-0", "push", 20, near=True)
    recovery = Recovery(began=10.0, under_way=1, ended=10.0 + seconds)
    incident = Incident(fault, Sighting("worker-0-0", "ps-0", True, "push", 21), recovery, "process 7")
    run = Run(seed, "sync", "counting", TOPOLOGIES[0], STEPS, (fault,))
    return describe(Outcome(run, (incident,), problems, 60.0, ""), f"replay {seed}")


def test_the_table_names_failed_runs_and_how_to_repeat_them() -> None:
    runs = [described(1, 2.0), described(2, 4.0), described(3, 9.0), described(4, 99.0, "a sample is lost")]
    assert table(runs) == [
        "fault          number  median s  worst s   what it is",
        "kill                3       4.0      9.0   SIGKILL of a process",
        "4 jobs, 4 faults, 1 jobs failed",
        "seed 4: a sample is lost",
        "  to replay it: replay 4",
    ]


def test_reports_are_written_shown_together_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "new" / "one.json", tmp_path / "new" / "two.json"]
    write(files[0], [described(1, 2.0)])
    write(files[1], [described(2, 4.0, "a sample is lost")])
    first, second = read(files)
    assert first["faults"][0]["recoverySeconds"] == 2.0
    at = first["faults"][0]["at"]
    assert at == {"client": "worker-0-0", "listener": "ps-0", "forward": True, "op": "push", "step": 21}
    assert second["problems"] == ["a sample is lost"]
    assert main(["--show", *map(str, files), "--plot", str(tmp_path / "report.png")]) == 1
    assert "2 jobs, 2 faults, 1 jobs failed" in capsys.readouterr().out
    plot_usage(tmp_path / "usage.png", lives(0.5))
    for name in ("report.png", "usage.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
