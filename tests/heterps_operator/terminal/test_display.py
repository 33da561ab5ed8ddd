"""Terminal output, rendered from recorded turns to an in-memory console."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pytest
from rich.console import Console

from heterps_operator.client.views import JobView
from heterps_operator.formatting import format_duration, format_money, sparkline
from heterps_operator.state.bill import Bill, BillLine
from heterps_operator.state.status import Event
from heterps_operator.state.turn import Turn
from heterps_operator.terminal.display import LiveDisplay, PlainDisplay, QuietDisplay, make_display
from heterps_operator.terminal.job_tables import render_facts
from heterps_operator.terminal.report import build_report, render_report
from tests.heterps_operator.helpers.world import MEMBERS, World

BILL = Bill((BillLine("cpu", Decimal("0.04"), 3_600_000_000),), 1.0)


def make_console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=110, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def training() -> World:
    world = World().training()
    facts = {"loss": 0.51, "stages": [{"name": "stage-0", "samplesPerSecond": 61_000.0, "busyFraction": 0.82}]}
    world.set_phase("Training", committedSteps=40, totalSteps=100, **facts)
    return world


def turn(world: World, *events: Event) -> Turn:
    return Turn(world.job, world.observed(), world.status, BILL, events)


def test_the_live_view_shows_phase_plan_throughput_loss_cost_and_time_left() -> None:
    console, world = make_console(True), training()
    display = LiveDisplay(console)
    with display:
        display.on_turn(turn(world, Event("Warning", "ProcessRestarts", "worker-0-1 ended", 0.0)))
        console.print(display.render(turn(world)))
    shown = text_of(console)
    for words in (
        "Training",
        "step 40 of 100, 0.6 s left",
        "0.5100",
        "50,000 samples/s   predicted 52,000   floor 20,000",
        "$0.0400  at $2.54/h",
        "61,000",
        "mlp .. head (2 layers)",
        "warning: ProcessRestarts: worker-0-1 ended",
    ):
        assert words in shown


def test_the_live_view_shows_who_is_missing_while_starting() -> None:
    console, world = make_console(True), World().planned()
    world.member("worker-0-1")["message"] = "preparing data 40 %"
    console.print(LiveDisplay(console).render(turn(world)))
    assert "preparing data 40 %" in text_of(console)


def test_the_live_view_shows_what_is_measured() -> None:
    console, world = make_console(True), World()
    world.settle()
    world.listen()
    world.settle()
    world.deliver("cpu")
    world.settle()
    console.print(LiveDisplay(console).render(turn(world)))
    assert "measured: cpu; measuring: gpu" in text_of(console)


def test_plain_output_has_one_line_per_event_and_no_control_codes() -> None:
    console, world = make_console(False), training()
    display = PlainDisplay(console)
    display.on_turn(turn(world, Event("Normal", "PlanComputed", "plan 1 [a..b] " + "x" * 200, 0.0)))
    display.on_turn(turn(world))
    lines = text_of(console).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("plan 1 [a..b] " + "x" * 200)
    assert "step 40 of 100, loss 0.5100, 50,000 samples/s, cost $0.0400, 0.6 s left" in lines[2]
    assert "\x1b" not in text_of(console)


@pytest.mark.parametrize(
    ("terminal", "quiet", "kind"),
    [(True, False, LiveDisplay), (False, False, PlainDisplay), (True, True, QuietDisplay)],
)
def test_the_display_fits_the_console(terminal: bool, quiet: bool, kind: type) -> None:
    assert isinstance(make_display(make_console(terminal), quiet=quiet, verbose=False), kind)


def test_the_report_of_a_trained_job_shows_quality_throughput_bill_and_model() -> None:
    world = training()
    result = {"auc": 0.7131, "logLoss": 0.4891, "samples": 60_000}
    world.set_phase("Succeeded", evaluation=result, model="/m/[x]", samples=51_200, secondsTraining=65.0)
    for name in MEMBERS:
        world.end(name, 0)
    world.settle()
    world.end("coordinator", 0)
    world.settle()
    console = make_console(False)
    report = build_report(world.job, world.status, BILL, interrupted=False, logs="logs")
    console.print(render_report(report, "job.yaml"))
    shown = text_of(console)
    for words in (
        "tiny: trained",
        "0.7131",
        "60,000 samples",
        "50,000 samples/s measured, 52,000 samples/s predicted, 20,000 samples/s required",
        "cpu x2 [embedding] -> gpu x1 [mlp..head]",
        "51,200 samples in 1 min 05 s",
        "/m/[x]",
        "$0.0400",
    ):
        assert words in shown


def test_numbers_are_written_for_people() -> None:
    assert [format_money(x) for x in (0, 293.2, 0.5, 0.0034, 1e-12)] == [
        "$0.00",
        "$293.20",
        "$0.500",
        "$0.00340",
        "$0.000000000",
    ]
    assert [format_duration(x) for x in (8.24, 185, 7_800)] == ["8.2 s", "3 min 05 s", "2 h 10 min"]
    assert sparkline([1, 2, 3, 4], 4) == "▁▃▆█"
    assert sparkline([5.0] * 100, 10) == "▁" * 10
    assert sparkline([], 10) == ""


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        ({"samples": 9_000, "loss": 0.5, "accuracy": 0.9, "crossEntropy": 0.25}, ["accuracy", "cross-entropy"]),
        ({"samples": 9_000, "loss": 0.5}, ["loss"]),
        ({"samples": 9_000, "loss": 0.5, "auc": None, "logLoss": 0.25, "positives": 0}, ["log loss"]),
        ({"samples": 0, "loss": None, "auc": None, "logLoss": None, "positives": 0}, []),
    ],
    ids=["classes", "numbers", "one label only", "no samples"],
)
def test_the_report_shows_the_figures_that_there_are(evaluation: dict[str, Any], shown: list[str]) -> None:
    world = training()
    report = build_report(world.job, world.status, BILL, interrupted=False, logs="logs")
    console = make_console(False)
    console.print(render_report({**report, "phase": "Succeeded", "evaluation": evaluation}, "job.yaml"))
    held_out = [line.split("held-out ")[1].rstrip() for line in text_of(console).splitlines() if "held-out" in line]
    assert [line.split("  ")[0] for line in held_out] == shown
    assert not held_out or held_out[-1].endswith("(9,000 samples)")


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (
            {"stored": 41_876, "candidates": 9_000, "admitted": 50_000, "evicted": 8_124},
            ["41,876 at the end; 8,124 were evicted, 50,000 admitted; 9,000 ids have none yet"],
        ),
        ({"stored": 41_876, "candidates": 0, "admitted": 0, "evicted": 0}, []),
        (None, []),  # of a coordinator that does not count them
    ],
)
def test_the_report_says_how_many_rows_came_and_went(rows: dict[str, int] | None, shown: list[str]) -> None:
    world = training()
    report = build_report(world.job, world.status, BILL, interrupted=False, logs="logs")
    assert report["rows"] is None
    console = make_console(False)
    console.print(render_report({**report, "phase": "Succeeded", "rows": rows}, "job.yaml"))
    lines = [line.split() for line in text_of(console).splitlines()]
    assert [" ".join(line[1:]) for line in lines if line[:1] == ["rows"]] == shown


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        ({"auc": "0.713", "logLoss": "0.489"}, "AUC 0.7130, log loss 0.4890"),
        ({"accuracy": "0.9694", "crossEntropy": "0.0733"}, "accuracy 0.9694, cross-entropy 0.0733"),
        ({"samples": 4}, None),
    ],
)
def test_the_facts_of_a_job_on_a_cluster_show_its_quality(evaluation: dict[str, Any], shown: str | None) -> None:
    value = {"metadata": {"name": "digits", "namespace": "team"}, "spec": {}, "status": {"evaluation": evaluation}}
    console = make_console(False)
    console.print(render_facts(JobView.from_json(value)))
    found = [line.split("quality")[1].strip() for line in text_of(console).splitlines() if "quality" in line]
    assert found == ([shown] if shown else [])
