"""`python -m experiments --quick` as users run it, and properties of its rows that hold for any numbers."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments import plots, report
from experiments.__main__ import ONCE, main
from experiments.ablation import PARTS
from experiments.clusters import cluster, paper_case
from experiments.control_groups import unavailable
from experiments.derived import AS_DERIVED, EACH, FASTER, SLOWER, varied
from experiments.framework import Row
from experiments.registry import EXPERIMENTS
from experiments.robustness import perturbed
from experiments.tables import number, read_csv
from experiments.trials import SEEDLESS

from heterps_planner import METHODS
from heterps_planner.model.segments import build_segments
from heterps_planner.plans.assignments import Evaluator
from heterps_planner.policy import learning
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.network import initial_parameters

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


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
    written = {path.stem for path in (out / "results").glob("*.csv")}
    assert written == EXPERIMENTS.keys() - set(ONCE)
    assert {name for name in written if not rows_of(out, name)} == set()


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
    assert {row["method"] for row in rows_of(out, "paper-cases")} == set(METHODS) - {"brute-force", "bayesian"}


def test_no_method_is_below_the_certified_optimum(out: Path) -> None:
    names = ("methods", "paper-cases", "ablation", "derived-times")
    gaps = [number(row, "gap_percent") for name in names for row in rows_of(out, name) if row["status"] == "ok"]
    assert len(gaps) > 40
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


def test_plans_are_trained_for_real_and_equal_ones_once(out: Path) -> None:
    rows = rows_of(out, "figure-11")
    if unavailable():
        assert [row["status"] for row in rows] == ["not run"]
        pytest.skip(unavailable())
    assert [row["method"] for row in rows] == ["optimal", "rl-lstm"]
    assert rows[0]["plan"] == rows[1]["plan"]
    assert rows[0]["measured"] == rows[1]["measured"]
    assert number(rows[0], "measured") > 0
    assert number(rows[0], "steps") >= 1
    ratio = number(rows[0], "predicted") / number(rows[0], "measured")
    assert number(rows[0], "measured_cost") == pytest.approx(ratio * number(rows[0], "predicted_cost"), rel=1e-6)


def test_the_network_of_figure_12_trains(out: Path) -> None:
    [row] = rows_of(out, "figure-12")
    assert row["system"] == "HeterPS"
    assert number(row, "samples_per_second") > 0


def test_the_experiments_on_a_card_run_on_cores_where_there_is_none(out: Path) -> None:
    rows = rows_of(out, "figure-12-card")
    assert [row["system"] for row in rows] == ["HeterPS, both", "PyTorch, card"]
    assert all(number(row, "samples_per_second") > 0 for row in rows)
    plans = rows_of(out, "figure-11-card")
    assert [row["method"] for row in plans] == ["optimal", "rl-lstm"]
    assert all(number(row, "measured") > 0 for row in plans)


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


def test_each_table_has_a_caption_with_scope_seeds_and_clock(out: Path) -> None:
    for folder in (out, DOCS):
        paragraphs = (folder / "experiments.md").read_text().partition("\n## How to read")[2].split("\n\n")
        tables = [i for i, paragraph in enumerate(paragraphs) if paragraph.startswith("|")]
        assert len(tables) > 12
        for i in tables:
            caption = " ".join(paragraphs[i - 1].split())
            assert re.fullmatch(r"\*Scope: .+\. Seeds: .+\. Clock: .+\.\*", caption), paragraphs[i][:80]


def test_the_document_begins_with_what_holds_and_what_does_not(out: Path) -> None:
    brief = (out / "experiments.md").read_text().partition("\n## ")[2].partition("\n## ")[0]
    assert brief.startswith("In a hurry")
    assert len(brief.splitlines()) < 25
    rows = [line.split(" | ") for line in brief.splitlines() if line.startswith("| ")]
    assert len(rows) > 6
    assert {len(row) for row in rows} == {3}


def test_documents_are_those_that_the_stored_results_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "finish", lambda figure, path: None)
    shutil.copytree(DOCS / "results", tmp_path / "results")
    shutil.copy(DOCS / "papers.md", tmp_path)
    report.write_report(tmp_path)
    for name in ("experiments.md", "papers.md"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), f"{name}: run python -m experiments --draw"


def test_derived_numbers_vary_and_measured_ones_do_not() -> None:
    problem = paper_case("nce", 4)
    assert varied(problem, AS_DERIVED, 0) == problem
    changes = {}
    for world in (FASTER, SLOWER, EACH):
        other = varied(problem, world, 3)
        assert other.min_samples_per_second == problem.min_samples_per_second
        for old, new in zip(problem.layers, other.layers, strict=True):
            assert new.pools["cpu"].compute_seconds == old.pools["cpu"].compute_seconds
        changes[world] = [
            new.pools[name].compute_seconds / old.pools[name].compute_seconds
            for old, new in zip(problem.layers, other.layers, strict=True)
            for name in old.pools
            if name != "cpu"
        ]
    assert changes[FASTER] == pytest.approx([0.7] * 15)
    assert changes[SLOWER] == pytest.approx([1.3] * 15)
    assert len(set(changes[EACH])) == 15
    assert 0.7 <= min(changes[EACH]) < 0.9
    assert 1.1 < max(changes[EACH]) <= 1.3


def test_each_part_of_the_learned_scheduler_runs_alone(out: Path) -> None:
    rows = {row["variant"]: row for row in rows_of(out, "ablation")}
    assert list(rows) == list(PARTS)
    assert rows["learning only"]["found_by"] != "search"
    both = rows["both (rl-lstm)"]
    assert number(both, "gap_percent") <= number(rows["untrained"], "gap_percent") + 1e-9
    assert {row["status"] for row in rows.values()} <= {"ok", "infeasible"}


def test_search_only_learns_nothing() -> None:
    evaluator = Evaluator(build_segments(cluster("nce", 4)))
    settings = PARTS["search only"]
    assert isinstance(settings, learning.Settings)
    record = learning.learn(evaluator, "lstm", 0, settings=replace(settings, rounds=12))
    assert len(set(record.entropy)) > 1  # of the replayed schedules, which change
    weights = initial_parameters(np.random.default_rng(0), "lstm")
    adam = Adam(weights, settings.rate)
    adam.step({name: np.ones_like(value) for name, value in weights.items()})
    for name, value in initial_parameters(np.random.default_rng(0), "lstm").items():
        np.testing.assert_array_equal(weights[name], value)


def test_seedless_methods_are_methods() -> None:
    assert set(METHODS) >= SEEDLESS


def test_a_document_without_results_is_only_its_head(tmp_path: Path) -> None:
    report.write_report(tmp_path)
    assert "## " not in (tmp_path / "experiments.md").read_text()
