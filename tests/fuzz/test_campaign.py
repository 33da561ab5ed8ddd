"""The campaign finds planted bugs with libFuzzer, and says how to repeat them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import campaign, corpus
from tests.fuzz.campaign import Limits, Outcome, Processes, _exit_code, follow, run_target
from tests.fuzz.target import execute, find

_OUTPUT = """INFO: Seed: 1
executed: 50
#100	INITED cov: 115 ft: 400 corp: 60/12Kb exec/s: 0 rss: 120Mb
#512	pulse  cov: 116 ft: 410 corp: 61/12Kb lim: 16384 exec/s: 500 rss: 130Mb
executed: 800
#900	NEW    cov: 117 ft: 411 corp: 62/12Kb lim: 16384 exec/s: 500 rss: 140Mb L: 5/9 MS: 1 Custom-
RuntimeError: planted
artifact_prefix='/findings/'; Test unit written to /findings/wire.message-crash-1
stat::number_of_executed_units: 1000
stat::peak_rss_mb:              140
"""
needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="`make fuzz` installs atheris")


@needs_atheris
def test_a_planted_crash_is_found_and_can_be_repeated(tmp_path: Path) -> None:
    target = find("control.crash")
    outcome = run_target(target, Limits(inputs=20_000, seconds=0, seed=1), tmp_path, Processes(), lambda outcome: None)
    assert outcome.failed
    assert any("RuntimeError: planted" in line for line in outcome.output)
    assert outcome.finding is not None
    with pytest.raises(RuntimeError, match="planted"):
        execute(target, Path(outcome.finding).read_bytes())


@needs_atheris
def test_a_parser_without_bugs_gets_all_its_inputs(tmp_path: Path) -> None:
    outcome = run_target(find("manifest.quantity"), Limits(300, 0, 1), tmp_path, Processes(), lambda outcome: None)
    assert not outcome.failed, outcome.output
    assert outcome.inputs == 300, "the corpus is not counted"
    assert outcome.coverage > 0
    assert outcome.memory_mib > 0


@needs_atheris
def test_a_run_that_is_interrupted_has_its_figures_and_no_failure(tmp_path: Path) -> None:
    processes = Processes()
    limits = Limits(inputs=1_000_000_000, seconds=0, seed=1)

    def end_once_it_runs(outcome: Outcome) -> None:
        if outcome.inputs > 0 and not processes.ended:
            processes.end()

    outcome = run_target(find("manifest.quantity"), limits, tmp_path, processes, end_once_it_runs)
    assert outcome.interrupted
    assert not outcome.failed, outcome.output
    assert 0 < outcome.inputs < limits.inputs
    assert run_target(find("manifest.quantity"), limits, tmp_path, processes, end_once_it_runs).inputs == 0


def test_a_process_that_cannot_end_after_its_last_figures_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_GRACE_SECONDS", 0.1)
    program = "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"
    processes = Processes()
    process = processes.start([sys.executable, "-c", program, _OUTPUT], tmp_path)
    assert process is not None
    assert process.stdout is not None
    with process.stdout as output:
        follow(output, Outcome("wire.message"), lambda outcome: None)
        assert _exit_code(process) == 0


def test_figures_are_read_from_the_output() -> None:
    seen: list[int] = []
    outcome = Outcome("wire.message")
    rest = follow(_OUTPUT.splitlines(), outcome, lambda outcome: seen.append(outcome.inputs))
    assert (outcome.inputs, outcome.coverage, outcome.corpus) == (900, 117, 62)
    assert outcome.finding == "/findings/wire.message-crash-1"
    assert seen == sorted(seen), "what the corpus has executed is never counted"
    assert seen[0] == 0
    assert "RuntimeError: planted" in rest
    assert not any(line.startswith("executed: ") for line in rest)


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--target", "wire.nothing"]) == 2
    assert "there is no target wire.nothing; there are answers.status, " in capsys.readouterr().err


def test_an_input_within_the_limits_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input").write_bytes(b"10Gi")
    assert command.main(["--target", "manifest.quantity", "--repeat", str(tmp_path / "input")]) == 0
    assert "manifest.quantity: 4 bytes of input: " in capsys.readouterr().out


def test_the_kept_inputs_reach_what_no_seed_reaches(tmp_path: Path) -> None:
    target = find("manifest.quantity")
    assert corpus.keep(target, [b"10Gi", b"11Gi", b"1e3", b"xy", b"x"], tmp_path) == 1
    assert corpus.load(target, tmp_path) == [b"x"]
    assert corpus.keep(target, [b"11Gi"], tmp_path) == 0
    assert not list(tmp_path.iterdir()), "no folder without inputs"
