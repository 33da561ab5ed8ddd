"""`heterps plan JOB | --problem FILE`: the cheapest plan that is fast enough, and why."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps_operator.api.job import JobSpec
from heterps_operator.cli.options.plan import check_plan_options
from heterps_operator.cli.plans.files import read_json, write_document, write_frontier
from heterps_operator.cli.plans.search import Search, open_search
from heterps_operator.cli.profile import measure
from heterps_operator.cli.session import Programs, open_session
from heterps_operator.control.problem import adapt_problem
from heterps_operator.errors import UsageError
from heterps_operator.terminal.console import Console, make_console
from heterps_operator.terminal.display import make_display
from heterps_planner.errors import DeadlineError
from heterps_planner.model.problem import Problem
from heterps_planner.planning import allowance
from heterps_planner.planning import plan as solve
from heterps_planner.plans.explain import explain
from heterps_planner.plans.frontier import Frontier, frontier
from heterps_planner.plans.machine import is_measured, share_cores
from heterps_planner.plans.plan import NOTHING_FOUND, Infeasible, Plan
from heterps_planner.scenarios.evaluate import evaluate
from heterps_planner.scenarios.variants import Variant, choose_variant, read_problems
from heterps_planner.scenarios.what_if import change, read_setting
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_OK

__all__ = ["plan"]

Problems = dict[Variant, Problem]  # as `read_problems` returns them

_PROBLEM_SECONDS = 120.0  # time limit for a problem file; as the default of a job's scheduling.timeoutSeconds


def plan(arguments: Namespace, programs: Programs) -> int:
    """Plan the job or problem of the command line; return the exit code.

    Raises:
        HeterpsError: the job, a file or an option cannot be used.
        PlannerError: the problem, the method or the stages cannot be used.
    """
    check_plan_options(arguments)
    console = make_console(stderr=arguments.output != "table")
    several = len(arguments.problem or []) > 1 or arguments.line is not None
    problems: Problems = {}
    job: JobSpec | None = None
    if not several:
        document, job, code = _document(arguments, programs, console)
        if document is None:
            return code
        problems = read_problems(document)
        arguments.cores = _shared_cores(next(iter(problems.values())), arguments, job, programs)
    limit = arguments.timeout or (job.planner_timeout_seconds if job is not None else None)
    if limit is None and problems and not arguments.compare and arguments.prices is None:
        limit = _PROBLEM_SECONDS
    watched = make_console(stderr=True)
    with open_search(watched if watched.is_terminal and not arguments.quiet else None, limit) as search:
        try:
            return _answer(problems, arguments, job, search, console)
        except DeadlineError:
            if not search.interrupted:
                raise
            watched.print("interrupted before any plan was found", markup=False, highlight=False)
            return EXIT_INTERRUPTED


def _answer(problems: Problems, arguments: Namespace, job: JobSpec | None, search: Search, console: Console) -> int:
    """Give the answer that the options select. Modules of rare answers are imported on demand."""
    if arguments.line is not None:
        from heterps_operator.cli.plans.jobs import plan_waiting

        return plan_waiting(arguments, search, console)
    if not problems:
        from heterps_operator.cli.plans.jobs import plan_jobs

        return plan_jobs(arguments, search, console)
    if arguments.compare:
        from heterps_operator.cli.plans.compare import compare_methods

        return compare_methods(_chosen(problems, arguments, job, search), arguments, search, console)
    if arguments.prices is not None:
        from heterps_operator.cli.plans.prices import follow_prices

        return follow_prices(_chosen(problems, arguments, job, search), arguments, search, console)
    if arguments.what_if:
        from heterps_operator.cli.plans.compare import show_what_if

        wanted = {name: _change(problem, arguments.what_if) for name, problem in problems.items()}
        (problem, found), (changed, other) = (_solve(each, arguments, job, search) for each in (problems, wanted))
        _say_if_interrupted(search)
        return show_what_if(problem, found, changed, other, arguments, console)
    return _plan_one(problems, arguments, job, search, console)


def _plan_one(problems: Problems, arguments: Namespace, job: JobSpec | None, search: Search, console: Console) -> int:
    problem, found = _solve(problems, arguments, job, search)
    _say_if_interrupted(search)
    # A plan with a margin is on no frontier, which trusts the profile.
    drawn = arguments.frontier or (arguments.html and found.feasible and not arguments.robust)
    whole = _frontier(problem, search) if drawn else None
    if whole is not None and not whole.points and not whole.complete:
        text = "the frontier is left out: none of its plans was found within the time limit; raise --timeout"
        make_console(stderr=True).print(text, markup=False, highlight=False)
        whole = None
    if whole is not None and arguments.frontier:
        _show_frontier(problem, found, whole, arguments.frontier)
    if isinstance(found, Infeasible):
        write_document(arguments.output, found.to_json())
        if arguments.output == "table":
            make_console(stderr=True).print(f"{found.reason}: {found.message}", markup=False, highlight=False)
        return EXIT_INFEASIBLE
    trusting = None
    if found.robust is not None:
        trusting = _shared(problem, solve(problem, deadline=search.deadline, clock=search.clock), arguments)
    explanation = explain(problem, found, allowance(search.should_stop, found.seconds, search.clock))
    search.finish()
    if arguments.html is not None:
        from heterps_operator.cli.plans.pages import write_page
        from heterps_operator.page.plan_page import plan_page
        from heterps_operator.page.sections.reasons import Planned
        from heterps_operator.terminal.explanation import describe_selections

        name = _name(arguments, job)
        planned = Planned(problem, found, explanation, whole, tuple(describe_selections(found)))
        write_page(plan_page(name, planned, time.time()), arguments.html)
    if arguments.output == "table":
        from heterps_operator.terminal.explanation import render_plan

        without_margin = trusting.cost if isinstance(trusting, Plan) else None
        console.print(render_plan(problem, found, explanation, without_margin=without_margin))
        return EXIT_OK
    document = {**found.to_json(), "explanation": explanation.to_json()}
    if isinstance(trusting, Plan):
        document["robust"]["costWithoutMargin"] = trusting.cost
    write_document(arguments.output, document)
    return EXIT_OK


def _shared_cores(problem: Problem, arguments: Namespace, job: JobSpec | None, programs: Programs) -> float:
    """Cores shared by all processes of the plan; 0: each unit has its own core."""
    if arguments.cores and not is_measured(problem):
        raise UsageError(
            "--cores: the problem does not say what its layers cost in processor time (processorSeconds of each layer "
            "and pool); write it with heterps profile JOB --to FILE, or leave the option out"
        )
    if arguments.cores is not None:
        return float(arguments.cores)
    return programs.cores() if job is not None and is_measured(problem) else 0.0


def _say_if_interrupted(search: Search) -> None:
    search.finish()
    if search.interrupted:
        text = "interrupted: what follows is the best plan so far"
        make_console(stderr=True).print(text, markup=False, highlight=False)


def _document(
    arguments: Namespace, programs: Programs, console: Console
) -> tuple[dict[str, Any] | None, JobSpec | None, int]:
    """Return the problem file's content and the job; without content, the exit code gives the reason."""
    if arguments.problem:
        return read_json(arguments.problem[0], "--problem"), None, EXIT_OK
    display = make_display(console, quiet=arguments.quiet, verbose=arguments.verbose)
    session = open_session(arguments.job, arguments.work_directory, programs, goal="profile")
    if arguments.profile is not None:
        return adapt_problem(read_json(arguments.profile, "--profile"), session.job), session.job, EXIT_OK
    with session.workspace.locked():
        measured, code = measure(
            session, display, refresh=arguments.refresh_profile, machine=arguments.output == "json"
        )
    return measured, session.job, code


def _change(problem: Problem, settings: list[str]) -> Problem:
    return change(problem, [read_setting(text) for text in settings])


def _chosen(problems: Problems, arguments: Namespace, job: JobSpec | None, search: Search) -> Problem:
    """Return the only problem, or that of the variant with the cheapest plan."""
    [*only] = problems.values()
    return only[0] if len(only) == 1 else _solve(problems, arguments, job, search)[0]


def _solve(
    problems: Problems, arguments: Namespace, job: JobSpec | None, search: Search
) -> tuple[Problem, Plan | Infeasible]:
    """Solve the problem of each variant; return the one that was chosen, and its plan."""
    found: dict[Variant, Plan | Infeasible] = {}
    late: DeadlineError | None = None
    for number, (variant, problem) in enumerate(problems.items()):
        try:
            found[variant] = _solve_one(problem, arguments, job, search, search.share(len(problems) - number))
        except DeadlineError as error:
            late = error
            found[variant] = Infeasible(arguments.method or "", NOTHING_FOUND, 0.0, str(error))
    if late is not None and not any(one.feasible for one in found.values()):
        raise late
    chosen, choice = choose_variant(problems, found)
    return problems[chosen], choice


def _solve_one(
    problem: Problem, arguments: Namespace, job: JobSpec | None, search: Search, deadline: float
) -> Plan | Infeasible:
    stages: Any = None
    if arguments.stages is not None:
        stages = read_json(arguments.stages, "--stages").get("stages")
    elif job is not None and arguments.method is None and job.stages_by_hand and not arguments.robust:
        stages = list(job.stages_by_hand)
    if stages is not None:
        found = evaluate(problem, stages, deadline=deadline, clock=search.clock)
    else:
        found = solve(
            problem,
            arguments.method or (job.method if job is not None else "optimal"),
            seed=arguments.seed or 0,
            robust=arguments.robust or 0.0,
            deadline=deadline,
            progress=search.progress,
            clock=search.clock,
        )
    found = replace(found, seconds=search.seconds) if search.interrupted else found
    return _shared(problem, found, arguments)


def _shared(problem: Problem, found: Plan | Infeasible, arguments: Namespace) -> Plan | Infeasible:
    """The plan limited by the machine's cores, if the plan is for one machine."""
    return share_cores(problem, found, arguments.cores) if arguments.cores and isinstance(found, Plan) else found


def _name(arguments: Namespace, job: JobSpec | None) -> str:
    return Path(arguments.problem[0]).stem if job is None else job.name


def _frontier(problem: Problem, search: Search) -> Frontier:
    """Compute the frontier within a time limit of its own."""
    # The frontier also shows plans below the floor.
    search.restart(None if search.deadline == float("inf") else search.deadline - search.clock(), "frontier")
    whole = frontier(
        replace(problem, min_samples_per_second=0.0), should_stop=search.should_stop, progress=search.progress
    )
    search.finish()
    return whole


def _show_frontier(problem: Problem, found: Plan | Infeasible, whole: Frontier, targets: list[str]) -> None:
    from heterps_operator.terminal.plots import plot_frontier

    if not whole.points:
        raise UsageError("--frontier: there is nothing to draw, the pools' limits allow no plan at all")
    for target in targets:
        try:
            if Path(target).suffix.lower() == ".csv":
                write_frontier(problem, whole.points, Path(target))
            else:
                plot_frontier(problem, whole.points, found if isinstance(found, Plan) else None, Path(target))
        except OSError as error:
            raise UsageError(f"--frontier {target}: cannot be written ({error.strerror})") from error
    if not whole.complete:
        text = f"--frontier: {len(whole.points)} of its plans; the plans between them are missing"
        make_console(stderr=True).print(text, markup=False, highlight=False)
