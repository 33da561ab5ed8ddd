"""Tables with measured figures name the command that makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/flights/README.md"]
COMMAND = re.compile(r"python -m [a-z]|python (?:docs|examples)/\w|\bmake [a-z]|heterps (?:plan|run|profile)\b")
# A number with its unit, alone in its cell or with a spread behind it: 1.16 (1.15 - 1.20), +14 %, 86,152, 0.2 to 3.4 s.
FIGURE = re.compile(
    r"^\**[<>~+-]?\$?\d[\d,]*(?:\.\d+)?\**(?: to [\d.,]+)?"
    r"(?: ?(?:%|ms|s|us|h|min|MB|MiB|GB|kB|x|W))?(?: (?:±|\(|/) ?.*)?$"
)


class Table(NamedTuple):
    """A table of a document."""

    title: str  # of the innermost heading
    text: str  # of the headings above it, each down to the next heading, without the table's own lines
    rows: list[list[str]]  # without the head


def tables_of(text: str) -> Iterator[Table]:
    """Yield the tables of a document, with what is written in their sections."""
    above: list[tuple[int, str, list[str]]] = [(0, "", [])]  # level, heading, lines
    rows: list[list[str]] = []
    found: list[tuple[list[tuple[int, str, list[str]]], list[list[str]]]] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        fenced ^= line.startswith("```")
        if line.startswith("|") and not fenced:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            found.append((list(above), rows[2:]))
            rows = []
        heading = None if fenced else re.match(r"(#+) (.*)", line)
        if heading:
            level = len(heading[1])
            above = [entry for entry in above if entry[0] < level]
            above.append((level, heading[2], []))
        above[-1][2].append(line)
    for path, body in found:
        own = [entry for entry in path if entry[0] != 1 or len(path) <= 2]  # a document's introduction is no section
        yield Table(path[-1][1], "\n".join("\n".join(lines) for _, _, lines in own), body)


def is_measured(table: Table) -> bool:
    """Whether at least two cells and a third of a column, other than the first, are figures with decimals or units."""
    for column in range(1, max((len(row) for row in table.rows), default=0)):
        cells = [row[column] for row in table.rows if column < len(row)]
        figures = [cell for cell in cells if FIGURE.match(cell) and not re.fullmatch(r"\d{1,4}", cell)]
        if len(figures) >= 2 and 3 * len(figures) >= len(cells):
            return True
    return False


SAMPLE = """# Title

`make benchmark` prints all of it.

## Speed

{command}

### Of one part

| | samples/s | error |
|---|--:|--:|
| one worker | {figures} | +14 % |
| two workers | 120,508 (118,000 - 121,000) | -3 % |

## Fields

| field | default |
|---|---|
| `port` | 8080 |
| `timeout` | 60 |
"""


def test_the_guard_sees_what_it_looks_for() -> None:
    """A command counts for its section and those below, not for the whole document; defaults are no measurements."""
    found = {}
    for command in ("No command.", "`python -m benchmarks.training_speed` prints it."):
        speed, fields = tables_of(SAMPLE.format(command=command, figures="86,152"))
        assert is_measured(speed)
        assert not is_measured(fields)
        found[command[:2]] = bool(COMMAND.search(speed.text))
    assert found == {"No": False, "`p": True}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_a_table_with_measured_figures_names_its_command(document: Path) -> None:
    assert [t.title for t in tables_of(document.read_text()) if is_measured(t) and not COMMAND.search(t.text)] == []
