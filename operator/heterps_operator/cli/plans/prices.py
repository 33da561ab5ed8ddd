"""`heterps plan --prices FILE`: the benefit of following a price series."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from heterps_operator.cli.plans.files import read_text, write_document
from heterps_operator.cli.plans.search import Search
from heterps_operator.errors import UsageError
from heterps_operator.terminal.console import Console
from heterps_operator.terminal.plan_tables import render_market
from heterps_planner.model.problem import Problem
from heterps_planner.scenarios.market import Followed, follow, read_ticks
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_OK

__all__ = ["follow_prices"]

_RESTART_SECONDS = 30.0
_POD_START_SECONDS = 60.0


def follow_prices(problem: Problem, arguments: Namespace, search: Search, console: Console) -> int:
    """Simulate training over the series, following prices and keeping the plan; return the exit code.

    Raises:
        UsageError: a file cannot be read or written.
        ProblemError: the series is invalid; the message names the tick.
    """
    ticks = read_ticks(read_text(arguments.prices, "--prices"))

    def train(moves: bool) -> Followed:
        return follow(
            problem,
            ticks,
            moves=moves,
            restart_seconds=_RESTART_SECONDS if arguments.restart_seconds is None else arguments.restart_seconds,
            pod_start_seconds=_POD_START_SECONDS
            if arguments.pod_start_seconds is None
            else arguments.pod_start_seconds,
            horizon_seconds=arguments.horizon_seconds,
            should_stop=search.should_stop,
            progress=search.progress,
        )

    followed, stayed = train(True), train(False)
    search.finish()
    if arguments.draw is not None:
        from heterps_operator.terminal.plots import plot_market

        try:
            plot_market(followed, stayed, Path(arguments.draw))
        except OSError as error:
            raise UsageError(f"--draw {arguments.draw}: cannot be written ({error.strerror})") from error
    write_document(arguments.output, {"following": followed.to_json(), "staying": stayed.to_json()})
    if arguments.output == "table":
        console.print(render_market(followed, stayed))
        if search.should_stop():
            console.print("stopped early: later ticks kept the last plan", markup=False, highlight=False)
    return EXIT_OK if followed.seconds is not None else EXIT_INFEASIBLE
