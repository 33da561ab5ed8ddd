"""docs/papers.md leaves nothing of the two papers out, and everything that it names exists."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from experiments import paper
from experiments.registry import EXPERIMENTS

from tests.repo.test_readme import help_of

ROOT = Path(__file__).parents[2]
LEDGER = (ROOT / "docs/papers.md").read_text()
HETERPS, BALANCENET = (
    [line for line in part.splitlines() if line.startswith("| ")]
    for part in re.split(r"^(?=## BalanceNet: systems)", LEDGER, maxsplit=1, flags=re.M)
)
STATES = ("done", "partly", "open: accelerators", "open: not built", "not applicable")
MODULES = re.findall(r"`python -m ([\w.]+)([^`]*)`", LEDGER)


def numbered(lines: list[str], kind: str) -> list[int]:
    """Return the numbers that have a row of their own, in order."""
    return sorted(int(found[1]) for line in lines if (found := re.match(rf"\| {kind} (\d+): ", line)))


def rows_with_a_state() -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in HETERPS + BALANCENET]
    return [row for row in rows if len(row) >= 5 and row[1] in STATES]


@pytest.mark.parametrize(
    ("lines", "kind", "last"),
    [
        (HETERPS, "Equation", 16),
        (HETERPS, "Figure", 16),
        (HETERPS, "Table", 3),
        (HETERPS, "Algorithm", 1),
        (BALANCENET, "Equation", 5),
        (BALANCENET, "Figure", 7),
        (BALANCENET, "Algorithm", 1),
    ],
)
def test_each_number_of_a_paper_has_one_row(lines: list[str], kind: str, last: int) -> None:
    assert numbered(lines, kind) == list(range(1, last + 1))


def test_each_stated_percentage_has_a_row() -> None:
    table = LEDGER.partition("## HeterPS: stated percentages")[2].partition("\n## ")[0]
    stated = [*paper.FIGURE_4.values(), *paper.FIGURE_8.values(), *paper.FIGURE_11.values()]
    stated += [value for values in paper.FIGURE_5.values() for value in values.values()]
    shown = [float(text.replace(",", "")) for text in re.findall(r"^\| [^|]+ \| ([\d.,]+) % \|", table, re.M)]
    assert sorted(stated) == sorted(value for value in shown if value != 55.8)
    for words in ("55.8 %", "9.5 times", "3.8 times", "14.5 times", "6.9 times", "17.4 times", "0.2 to 1.8 %"):
        assert f"| {words} |" in table


def test_each_row_has_a_state_and_each_open_row_its_reason() -> None:
    rows = rows_with_a_state()
    assert len(rows) > 75
    for row in rows:
        assert row[1] != "done" or "`" in "".join(row[2:4]), row
        assert not row[1].startswith(("open", "partly", "not app")) or any(row[4:]), row
    for line in HETERPS + BALANCENET:
        if re.match(r"\| (Equation|Figure|Table|Algorithm) \d", line):
            assert line.split(" | ")[1] in STATES, line


def test_each_path_exists_with_what_it_names() -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w/]+\.py):?(\w*)`", LEDGER)
    assert len(named) > 60
    for path, name in named:
        found = [base / path for base in (ROOT, ROOT / "operator", ROOT / "runtime") if (base / path).exists()]
        assert found, f"{path} does not exist"
        if name:
            assert re.search(rf"^(def|class) {name}\b", found[0].read_text(), re.M), f"{path} has no {name}"


def test_each_command_exists() -> None:
    assert len(MODULES) > 40
    for module, rest in MODULES:
        assert module == "pytest" or find_spec(module), module
        words = rest.split()
        if module == "pytest":
            assert [word for word in words if not (ROOT / word).exists()] == []
        if module == "experiments":
            assert set(words) <= EXPERIMENTS.keys(), rest
        source = find_spec(module)
        if module not in ("pytest", "experiments") and source is not None and source.origin is not None:
            for option in re.findall(r"--[a-z-]+", rest):
                assert f'"{option}"' in Path(source.origin).read_text(), f"{module} has no {option}"
    for target in re.findall(r"`make ([a-z-]+)`", LEDGER):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
    for verb, rest in re.findall(r"`heterps ([a-z]+) ([^`]*)`", LEDGER):
        for word in rest.split():
            assert word in help_of(verb) if word.startswith("--") else "/" not in word or (ROOT / word).exists(), word
