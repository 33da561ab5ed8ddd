"""`heterps plan --compare` and `--what-if`: plans side by side."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from heterps_operator.cli.plans.files import write_document
from heterps_operator.cli.plans.search import Search
from heterps_operator.terminal.console import Console
from heterps_operator.terminal.plan_tables import MethodResult, best_bound, render_methods, render_what_if
from heterps_planner.errors import PlannerError
from heterps_planner.methods import METHODS
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_OK

__all__ = ["compare_methods", "show_what_if"]

_SECONDS_PER_METHOD = 10.0


def compare_methods(problem: Problem, arguments: Namespace, search: Search, console: Console) -> int:
    """Plan with every method, each within the time limit; return the exit code."""
    results: list[MethodResult] = []
    for i, method in enumerate(METHODS):
        if search.interrupted:
            break
        search.restart(arguments.timeout or _SECONDS_PER_METHOD, f"{method} ({i + 1} of {len(METHODS)})")
        results.append(_try(problem, method, arguments, search))
    search.finish()
    left_out = list(METHODS)[len(results) :]
    document = {
        "methods": [result.to_json(best_bound(results)) for result in results],
        "secondsPerMethod": arguments.timeout or _SECONDS_PER_METHOD,
        "leftOut": left_out,
    }
    write_document(arguments.output, document)
    if arguments.output == "table":
        console.print(render_methods(results, arguments.timeout or _SECONDS_PER_METHOD))
    if search.interrupted:
        console.print(f"interrupted; not tried: {', '.join(left_out) or 'none'}", markup=False, highlight=False)
    if any(result.plan is not None for result in results):
        return EXIT_OK
    return EXIT_INTERRUPTED if search.interrupted else EXIT_INFEASIBLE


def _try(problem: Problem, method: str, arguments: Namespace, search: Search) -> MethodResult:
    try:
        found = plan(
            problem,
            method,
            seed=arguments.seed or 0,
            robust=arguments.robust or 0.0,
            deadline=search.deadline,
            progress=search.progress,
            clock=search.clock,
        )
    except PlannerError as error:
        return MethodResult(method, search.seconds, None, str(error), search.should_stop())
    seconds = search.seconds
    if isinstance(found, Infeasible):
        return MethodResult(method, seconds, None, found.message, search.should_stop())
    return MethodResult(method, seconds, replace(found, seconds=seconds), None, search.should_stop())


def show_what_if(
    problem: Problem,
    found: Plan | Infeasible,
    changed: Problem,
    other: Plan | Infeasible,
    arguments: Namespace,
    console: Console,
) -> int:
    """Show the current plan beside the plan of the changed problem; return the exit code."""
    settings = list(arguments.what_if)
    document = {"asIs": found.to_json(), "whatIf": {"settings": settings, **other.to_json()}}
    if isinstance(found, Plan) and isinstance(other, Plan):
        document["difference"] = {
            "cost": other.cost - found.cost,
            "costPerHour": other.cost_per_hour - found.cost_per_hour,
            "throughput": other.throughput - found.throughput,
        }
    write_document(arguments.output, document)
    if arguments.output == "table":
        console.print(render_what_if(problem, found, changed, other, settings))
    return EXIT_OK if isinstance(other, Plan) else EXIT_INFEASIBLE
