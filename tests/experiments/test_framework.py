"""Cells are computed once, stored, and reused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from experiments import framework
from experiments.__main__ import INTERRUPTED, main
from experiments.framework import ROOT, Progress, Row, Settings, Store, code_version, run_experiment
from experiments.tables import read_csv, spread, write_csv

from tests.experiments import toy

THREE = Settings(seeds=3)


@pytest.fixture(autouse=True)
def _no_runs_yet() -> None:
    toy.RUNS.clear()


def squares(n: int) -> list[Row]:
    return [{"seed": i, "square": i * i} for i in range(n)]


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert run_experiment(toy.TOY, THREE, store) == squares(3)
    assert run_experiment(toy.TOY, THREE, store) == squares(3)
    assert toy.RUNS == [0, 1, 2]


def test_more_seeds_run_the_new_ones_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_experiment(toy.TOY, THREE, store)
    assert run_experiment(toy.TOY, Settings(seeds=5), store) == squares(5)
    assert toy.RUNS == [0, 1, 2, 3, 4]


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy.STOPPED, THREE, store)
    assert toy.RUNS == [0, 1]
    assert run_experiment(toy.TOY, THREE, store) == squares(3)
    assert toy.RUNS == [0, 1, 2]


def test_half_a_file_is_no_result(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_experiment(toy.TOY, THREE, store)
    path = store.path(toy.TOY, {"seed": 1})
    path.write_text(path.read_text()[:9])
    assert run_experiment(toy.TOY, THREE, store) == squares(3)
    assert toy.RUNS == [0, 1, 2, 1]


def test_other_code_makes_new_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    run_experiment(toy.TOY, THREE, store)
    monkeypatch.setattr(framework, "code_version", lambda sources: "changed")
    run_experiment(toy.TOY, THREE, store)
    assert toy.RUNS == [0, 1, 2] * 2


def test_the_version_depends_on_the_content_of_files(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("a = 1\n")
    before = code_version((str(source),))
    source.write_text("a = 2\n")
    code_version.cache_clear()
    assert code_version((str(source),)) != before


def test_processes_give_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    assert run_experiment(toy.TOY, THREE, Store(tmp_path), jobs=2) == squares(3)
    assert toy.RUNS == []  # in other processes


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_is_named(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(ArithmeticError, match="no result") as caught:
        run_experiment(toy.FAILING, THREE, Store(tmp_path), jobs=jobs)
    assert '"seed"' in "".join(caught.value.__notes__)


def test_progress_says_how_long_it_takes() -> None:
    now = [0.0]
    text = io.StringIO()
    progress = Progress(text, lambda: now[0])
    progress.show("toy", 0, 4, 0.0, 8.0)
    now[0] = 100.0
    progress.show("toy", 1, 4, 2.0, 6.0)
    now[0] = 110.0
    progress.show("toy", 2, 4, 4.0, 4.0)  # too soon after the previous line
    progress.show("toy", 4, 4, 8.0, 0.0)
    assert text.getvalue().splitlines() == [
        "toy: 0 of 4 cells",
        "toy: 1 of 4 cells, about 5 min left",
        "toy: 4 of 4 cells",
    ]


def test_csv_files_read_back(tmp_path: Path) -> None:
    rows: list[Row] = [{"model": "2emb", "cost": 1.5, "n": 3, "ok": True}, {"model": "nce", "cost": None, "late": 1}]
    write_csv(tmp_path / "a" / "b.csv", rows)
    assert read_csv(tmp_path / "a" / "b.csv") == [
        {"model": "2emb", "cost": 1.5, "n": 3, "ok": True, "late": None},
        {"model": "nce", "cost": None, "n": None, "ok": None, "late": 1},
    ]


def test_spread_leaves_out_what_is_no_number() -> None:
    assert spread([1.0, float("nan"), 3.0]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methdos"], "no experiment 'methdos'; did you mean methods?"),
        (["--seeds", "0"], "must be a whole number of at least 1, is '0'"),
        (["--jobs", "two"], "must be a whole number of at least 1, is 'two'"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "brute-force" in capsys.readouterr().out


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.__main__.EXPERIMENTS", {"toy": toy.STOPPED})
    assert main(["--out", str(tmp_path), "--cache", str(tmp_path / "cache"), "--jobs", "1"]) == INTERRUPTED
    assert "goes on from here" in capsys.readouterr().err


def test_an_unwritable_folder_is_an_error_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.__main__.EXPERIMENTS", {"toy": toy.TOY})
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file"), "--cache", str(tmp_path / "cache"), "--jobs", "1"]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_sources_of_experiments_exist() -> None:
    from experiments.registry import EXPERIMENTS

    for experiment in EXPERIMENTS.values():
        assert [name for name in experiment.sources if not (ROOT / name).exists()] == []
