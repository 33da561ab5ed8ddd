"""The campaign finds planted bugs with libFuzzer, and says how to repeat them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import corpus
from tests.fuzz.campaign import Limits, run_target
from tests.fuzz.target import execute, find

needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="`make fuzz` installs atheris")


@needs_atheris
def test_a_planted_crash_is_found_and_can_be_repeated(tmp_path: Path) -> None:
    target = find("control.crash")
    outcome = run_target(target, Limits(inputs=20_000, seconds=0, seed=1), tmp_path, lambda outcome: None)
    assert outcome.failed
    assert any("RuntimeError: planted" in line for line in outcome.output)
    assert outcome.finding is not None
    with pytest.raises(RuntimeError, match="planted"):
        execute(target, Path(outcome.finding).read_bytes())


@needs_atheris
def test_a_parser_without_bugs_gets_all_its_inputs(tmp_path: Path) -> None:
    outcome = run_target(find("manifest.quantity"), Limits(300, 0, 1), tmp_path, lambda outcome: None)
    assert not outcome.failed, outcome.output
    assert outcome.inputs >= 300
    assert outcome.coverage > 0


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--target", "wire.nothing"]) == 2
    assert "there is no target wire.nothing; there are answers.status, " in capsys.readouterr().err


def test_an_input_within_the_limits_is_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input").write_bytes(b"10Gi")
    assert command.main(["--target", "manifest.quantity", "--repeat", str(tmp_path / "input")]) == 0
    assert "manifest.quantity: 4 bytes of input: " in capsys.readouterr().out


def test_the_kept_inputs_reach_everything_that_was_reached(tmp_path: Path) -> None:
    target = find("manifest.quantity")
    assert corpus.keep(target, [b"10Gi", b"11Gi", b"1e3", b"x"], tmp_path) == 3
    assert sorted(corpus.load(target, tmp_path)) == [b"10Gi", b"1e3", b"x"]
