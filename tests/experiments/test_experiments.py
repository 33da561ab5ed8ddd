"""`python -m experiments --quick` as users run it, and properties of its rows that hold for any numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from experiments import report
from experiments.__main__ import main
from experiments.clusters import cluster
from experiments.framework import Row
from experiments.registry import EXPERIMENTS
from experiments.robustness import perturbed
from experiments.tables import number, read_csv
from experiments.trials import SEEDLESS

from heterps_planner import METHODS


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished quick run."""
    folder = tmp_path_factory.mktemp("experiments")
    arguments = ["--quick", "--seeds", "1", "--jobs", "1", "--out", str(folder), "--cache", str(folder / "cache")]
    assert main(arguments) == 0
    return folder


def rows_of(out: Path, name: str) -> list[Row]:
    return read_csv(out / "results" / f"{name}.csv")


def test_every_experiment_has_results(out: Path) -> None:
    assert {name for name in EXPERIMENTS if not rows_of(out, name)} == set()


def test_the_document_shows_every_picture_and_every_picture_exists(out: Path) -> None:
    text = (out / "experiments.md").read_text()
    pictures = {path.name for path in (out / "images" / "experiments").glob("*.png")}
    assert len(pictures) >= 6
    assert {name for name in pictures if f"](images/experiments/{name})" not in text} == set()
    assert text.count("](images/experiments/") == len(pictures)
    assert "nan" not in text
    assert "None" not in text


def test_every_method_is_in_the_grid(out: Path) -> None:
    assert {row["method"] for row in rows_of(out, "methods")} == set(METHODS) - {"brute-force", "bayesian"}


def test_no_method_is_below_the_certified_optimum(out: Path) -> None:
    gaps = [number(row, "gap_percent") for row in rows_of(out, "methods") if row["status"] == "ok"]
    assert len(gaps) > 15
    assert min(gaps) >= -1e-6
    exact = [number(row, "gap_percent") for row in rows_of(out, "methods") if row["method"] == "optimal"]
    assert max(exact) <= 1e-6


def test_the_tables_have_a_row_per_method_and_a_column_per_model(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tables", "--out", str(out)]) == 0
    gaps, times = (table.splitlines() for table in capsys.readouterr().out.split("\n\n"))
    assert len(gaps) == len(times) == 2 + len({row["method"] for row in rows_of(out, "methods")})
    assert gaps[1].split() == times[1].split() == ["NCE", "all"]
    assert gaps[2].split()[-2:] == ["0", "0"]  # the certified optimum itself
    assert main(["--tables", "--out", str(tmp_path)]) == 1
    assert "experiments methods` makes it" in capsys.readouterr().err


def test_every_plan_keeps_the_floor(out: Path) -> None:
    for row in rows_of(out, "methods"):
        if row["status"] == "ok":
            assert number(row, "throughput") >= number(row, "floor") * (1 - 1e-6)


def test_brute_force_and_the_exact_method_agree(out: Path) -> None:
    rows = [row for row in rows_of(out, "brute-force") if row["method"] == "brute-force"]
    assert rows
    assert all(abs(number(row, "gap_percent")) < 1e-6 for row in rows)


def test_exact_provisioning_is_never_dearer(out: Path) -> None:
    rows = [row for row in rows_of(out, "provisioning") if row["status"] == "ok"]
    assert {row["rule"] for row in rows} >= {"exact", "newton"}
    assert min(number(row, "saved_by_exact") for row in rows) >= -1e-9


def test_provisioning_again_costs_at_least_the_optimum(out: Path) -> None:
    regrets = [number(row, "reprovisioned_regret_percent") for row in rows_of(out, "robustness")]
    finite = [value for value in regrets if math.isfinite(value)]
    assert finite
    assert min(finite) >= -1e-6


def test_jobs_together_cost_between_alone_and_one_by_one(out: Path) -> None:
    for row in rows_of(out, "joint-jobs"):
        assert number(row, "cost") >= number(row, "alone_cost") * (1 - 1e-7)
        if row["sequential_cost"] is not None:
            assert number(row, "cost") <= number(row, "sequential_cost") * (1 + 1e-7)


def test_an_error_of_zero_changes_nothing_and_others_are_of_their_size() -> None:
    problem = cluster("nce", 2)
    generator = np.random.default_rng(0)
    assert perturbed(problem, 0.0, generator) == problem
    changes = []
    for _ in range(40):
        other = perturbed(problem, 0.1, generator)
        changes += [
            math.log(new.pools[pool].compute_seconds / old.pools[pool].compute_seconds)
            for new, old in zip(other.layers, problem.layers, strict=True)
            for pool in old.pools
        ]
    assert np.std(changes) == pytest.approx(0.1, rel=0.15)
    assert np.mean(changes) == pytest.approx(0.0, abs=0.02)


def test_seedless_methods_are_methods() -> None:
    assert set(METHODS) >= SEEDLESS


def test_a_document_without_results_is_only_its_head(tmp_path: Path) -> None:
    report.write_report(tmp_path)
    assert "## " not in (tmp_path / "experiments.md").read_text()
