"""`heterps plan JOB | --problem FILE`: the cheapest plan that is fast enough, and why."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from heterps_operator.cli.profile import measure
from heterps_operator.cli.session import Programs, open_session
from heterps_operator.console import make_console
from heterps_operator.display import make_display
from heterps_operator.errors import UsageError
from heterps_operator.job import JobSpec
from heterps_operator.profiles import adapt_problem
from heterps_operator.values import Json
from heterps_planner.evaluate import evaluate
from heterps_planner.explain import explain
from heterps_planner.plan import Infeasible, Plan
from heterps_planner.planning import plan as solve
from heterps_planner.problem import Problem
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_OK

__all__ = ["plan"]


def plan(arguments: Namespace, programs: Programs) -> int:
    """Plan what the command line names; returns the exit code.

    Raises:
        HeterpsError: the job, a file or an option cannot be used.
        PlannerError: the problem, the method or the stages cannot be used.
    """
    _check_options(arguments)
    began = time.monotonic()
    console = make_console(stderr=arguments.output != "table")
    job: JobSpec | None = None
    if arguments.problem is not None:
        document = _read_json(arguments.problem, "--problem")
    else:
        display = make_display(console, quiet=arguments.quiet, verbose=arguments.verbose)
        session = open_session(arguments.job, arguments.work_directory, programs, goal="profile")
        job = session.job
        if arguments.profile is not None:
            document = adapt_problem(_read_json(arguments.profile, "--profile"), job)
        else:
            with session.workspace.locked():
                measured, code = measure(
                    session, display, refresh=arguments.refresh_profile, machine=arguments.output == "json"
                )
            if measured is None:
                return code
            document = measured
        began = time.monotonic()  # measuring is not searching
    problem = Problem.from_json(document)
    limit = arguments.timeout or (job.planner_timeout_seconds if job is not None else None)
    deadline = None if limit is None else began + limit
    found = _solve(problem, arguments, job, deadline)
    if arguments.frontier is not None:
        _draw(problem, found, arguments.frontier, deadline)
    if isinstance(found, Infeasible):
        _write(arguments.output, found.to_json())
        if arguments.output == "table":
            make_console(stderr=True).print(f"{found.reason}: {found.message}", markup=False, highlight=False)
        return EXIT_INFEASIBLE
    explanation = explain(problem, found, lambda: deadline is not None and time.monotonic() >= deadline)
    if arguments.output == "table":
        from heterps_operator.explanation import render_plan

        console.print(render_plan(problem, found, explanation))
    else:
        _write(arguments.output, {**found.to_json(), "explanation": explanation.to_json()})
    return EXIT_OK


def _check_options(arguments: Namespace) -> None:
    if (arguments.job is None) == (arguments.problem is None):
        raise UsageError("plan: name a job file or --problem FILE, one of the two")
    if arguments.problem is not None and arguments.profile is not None:
        raise UsageError("--profile: a --problem has its layers' times already; name a job file, or leave it out")
    if arguments.method is not None and arguments.stages is not None:
        raise UsageError("--stages: are a plan by hand, no method is needed; leave --method out")
    if arguments.frontier is not None:
        path = Path(arguments.frontier)
        if path.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise UsageError(f"--frontier {arguments.frontier}: must end in .png, .svg or .pdf")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"--frontier {arguments.frontier}: its folder does not exist")


def _solve(problem: Problem, arguments: Namespace, job: JobSpec | None, deadline: float | None) -> Plan | Infeasible:
    stages: Any = None
    if arguments.stages is not None:
        stages = _read_json(arguments.stages, "--stages").get("stages")
    elif job is not None and arguments.method is None and job.stages_by_hand:
        stages = list(job.stages_by_hand)
    if stages is not None:
        return evaluate(problem, stages, deadline=deadline)
    return solve(problem, arguments.method or (job.method if job is not None else "optimal"), deadline=deadline)


def _draw(problem: Problem, found: Plan | Infeasible, target: str, deadline: float | None) -> None:
    from heterps_operator.plots import plot_frontier
    from heterps_planner.frontier import frontier

    # The picture shows what less than the floor would cost, too.
    free = replace(problem, min_samples_per_second=0.0)
    points = frontier(free, should_stop=lambda: deadline is not None and time.monotonic() >= deadline).points
    if not points:
        raise UsageError("--frontier: there is nothing to draw, the pools' limits allow no plan at all")
    try:
        plot_frontier(problem, points, found if isinstance(found, Plan) else None, Path(target))
    except OSError as error:
        raise UsageError(f"--frontier {target}: cannot be written ({error.strerror})") from error


def _write(output: str, document: Json) -> None:
    if output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif output == "yaml":
        sys.stdout.write(yaml.safe_dump(dict(document), sort_keys=False))


def _read_json(name: str, option: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{option} {name}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{option} {name}: is no JSON ({error})") from error
    if not isinstance(document, dict):
        raise UsageError(f"{option} {name}: must hold a JSON object")
    return document
