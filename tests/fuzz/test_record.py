"""A run continues where the earlier ones ended, unless the code has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Outcome
from tests.fuzz.record import Count, Record, add, missing, seed_of
from tests.fuzz.target import find
from tests.fuzz.version import imports_of, version_of


def test_inputs_and_time_of_all_runs_are_added_and_figures_are_the_largest() -> None:
    count = add(Count("a"), Outcome("x", inputs=300, seconds=2.0, coverage=10, corpus=7, memory_mib=90))
    count = add(count, Outcome("x", inputs=200, seconds=1.5, coverage=9, corpus=8, memory_mib=80))
    assert count == Count("a", inputs=500, seconds=3.5, runs=2, coverage=10, corpus=8, memory_mib=90)


def test_a_run_gets_what_is_missing_with_another_seed() -> None:
    count = Count("a")
    seeds = []
    for done in (400, 599, 2):
        seeds.append(seed_of(5, count))
        count = add(count, Outcome("x", inputs=done))
    assert seeds == [5, 6, 7]
    assert missing(Count("a"), 1000) == 1000
    assert missing(Count("a", inputs=999), 1000) == 1
    assert missing(count, 1000) == 0
    assert missing(Count("a", inputs=1, finding="file"), 1000) == 0, "its code must change first"


def test_counts_outlive_the_process_and_belong_to_one_version_of_the_code(tmp_path: Path) -> None:
    file = tmp_path / "fuzz" / "counts.json"
    count = Count("a", inputs=5, seconds=0.5, runs=1, finding="file")
    Record(file).keep("x", count)
    Record(file).keep("y", Count("b", inputs=7))
    assert Record(file).count("x", "a") == count
    assert Record(file).count("y", "b").inputs == 7
    assert Record(file).count("x", "b") == Count("b")
    assert Record(file).count("z", "a") == Count("a")
    assert [found.name for found in file.parent.iterdir()] == ["counts.json"]


def test_the_version_depends_on_every_imported_module(tmp_path: Path) -> None:
    for name, text in (
        ("a.py", "import p.b"),
        ("p/__init__.py", ""),
        ("p/b.py", "def late():\n    from p import c"),
        ("p/c.py", "import json"),
        ("p/d.py", ""),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(imports_of("a", [tmp_path])) == ["a", "p", "p.b", "p.c"]


@pytest.mark.parametrize(
    ("target", "module"),
    [("wire.message", "heterps_runtime.wire.codec"), ("client.watch", "heterps_operator.client.watching")],
)
def test_a_parser_is_part_of_its_version(target: str, module: str) -> None:
    found = imports_of(f"tests.fuzz.targets.{target.partition('.')[0]}")
    assert module in found
    assert "heterps_runtime.worker.steps.engine" not in found
    assert len(version_of(find(target))) == 16
