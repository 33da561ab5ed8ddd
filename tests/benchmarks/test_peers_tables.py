"""The bench of peers: ratios within rounds, what tables say of failures, and whether all learn the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._peers.entrants import CEILING, HETERPS, Entrant
from benchmarks._peers.plot import draw
from benchmarks._peers.rounds import FAILURE, Cell
from benchmarks._peers.tables import agreement, table
from benchmarks._ratios import ratios, spread

OURS, PEER = Entrant(HETERPS, "heterps", ()), Entrant("peer", "peer", (), differs="it has no rows")
TOP = Entrant(CEILING, "ceiling", (), learns=False)


def outcome(rate: float, loss: float | None = None, auc: float = 0.75) -> dict[str, Any]:
    quality = {} if loss is None else {"logLoss": loss, "auc": auc}
    return {"samplesPerSecond": rate, "samplesPerCpuSecond": rate / 2, "others": 0.25, **quality}


def test_ratios_are_of_the_same_round() -> None:
    # The machine is half as fast in the second round: the ratio of the medians would be 1.5.
    assert ratios([300, 100, None, 80], [100, 50, 90, None]) == [3.0, 2.0]
    assert spread([3.0, 2.0, 7.0], ".2f") == "3.00 (2.00 - 7.00)"
    assert spread([3.0], ".1f") == "3.0"
    assert spread([], ".1f") == ""


def test_a_table_has_ratios_to_heterps_and_to_the_ceiling_and_says_what_differs_or_failed() -> None:
    rounds = [
        {HETERPS: outcome(3000, 0.5), "peer": outcome(1000, 0.51), CEILING: outcome(4000)},
        {HETERPS: outcome(1000, 0.5), "peer": outcome(500, 0.51), CEILING: outcome(2000)},
        {HETERPS: outcome(2000, 0.5), "peer": {FAILURE: "worker 0 hangs"}, CEILING: outcome(2500)},
    ]
    lines = list(table(Cell("deep", "fp32"), [OURS, PEER, TOP], rounds))
    assert lines[0].startswith("| deep, fp32 | samples/s")
    assert lines[2] == ("| HeterPS | 2,000 (1,000 - 3,000) | 1 | 0.75 (0.50 - 0.80) | 1,000 | 0.5000 | 0.7500 |")
    assert lines[3] == "| peer | 750 (500 - 1,000) | 2.50 (2.00 - 3.00) | 0.25 (0.25 - 0.25) | 375 | 0.5100 | 0.7500 |"
    assert lines[4] == "| ceiling | 2,500 (2,000 - 4,000) | 0.75 (0.50 - 0.80) | 1 | 1,250 |  |  |"
    assert lines[5:] == [
        "",
        "- peer: it has no rows.",
        "- peer failed in 1 of 3 rounds: worker 0 hangs",
        "- Other programs used 25 (25 - 25) % of the cores meanwhile.",
    ]


def test_a_peer_that_never_ran_has_no_figures() -> None:
    rounds = [{HETERPS: outcome(3000, 0.5), "peer": {FAILURE: "not here"}}]
    lines = list(table(Cell("deep", "fp32"), [OURS, PEER], rounds))
    assert lines[3] == "| peer | failed |  |  |  |  |  |"


def test_entrants_that_learn_something_else_are_named() -> None:
    third = Entrant("third", "third", ())
    full = [{HETERPS: outcome(1, 0.5), "peer": outcome(1, 0.5019), "third": outcome(1, 0.5051), CEILING: outcome(1)}]
    short = [
        {
            HETERPS: outcome(1, 0.5, 0.7509),
            "peer": outcome(1, 0.5, 0.7489),
            "third": outcome(1, 0.5),
            CEILING: outcome(1),
        }
    ]
    assert list(agreement([OURS, PEER, third, TOP], {"fp32": full, "bf16": short})) == [
        "Held-out log losses in fp32: all within 0.002 of their median, except third (+0.0032).",
        "Held-out log losses in bf16: all within 0.002 of their median.",
        "AUC in bf16: all within 0.001 of that in fp32, except peer (-0.0011).",
    ]
    assert list(agreement([OURS, TOP], {"fp32": [{HETERPS: outcome(1, 0.5), CEILING: outcome(1)}]})) == []


def test_the_picture_shows_a_mark_for_each_entrant_that_has_figures(tmp_path: Path) -> None:
    rounds = [
        {HETERPS: outcome(3000, 0.5), "peer": {FAILURE: "hangs"}},
        {HETERPS: outcome(1000, 0.5), "peer": outcome(500)},
    ]
    draw(tmp_path / "p.svg", {"deep": [OURS, PEER]}, {Cell("deep", "fp32"): rounds, Cell("deep", "bf16"): rounds[:1]})
    text = (tmp_path / "p.svg").read_text()
    assert all(f"<!-- {word} -->" in text for word in (HETERPS, "peer", "deep", "fp32", "bf16"))
