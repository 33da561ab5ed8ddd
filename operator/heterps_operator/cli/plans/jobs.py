"""`heterps plan --problem A --problem B`, `heterps plan --line FILE`: jobs that share pools."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from heterps_operator.cli.plans.files import read_json, write_document
from heterps_operator.cli.plans.search import Search
from heterps_operator.errors import UsageError
from heterps_operator.terminal.console import Console, make_console
from heterps_operator.terminal.plan_tables import render_joint, render_line
from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.scenarios.joint import JointInfeasible, plan_together
from heterps_planner.scenarios.line import Line, plan_line
from heterps_planner.scenarios.variants import describe_variants
from heterps_runtime.contract import EXIT_INFEASIBLE, EXIT_OK

__all__ = ["plan_jobs", "plan_waiting"]


def plan_jobs(arguments: Namespace, search: Search, console: Console) -> int:
    """Plan the jobs together; return the exit code.

    Raises:
        UsageError: a file cannot be read, or is of several variants.
        ProblemError: a problem is invalid, or pools of the same name differ; the message names the file.
    """
    files: list[str] = arguments.problem
    problems = []
    for name in files:
        document = read_json(name, "--problem")
        if several := describe_variants(document):
            fix = "plan it alone, and give the problem of the one that is chosen"
            raise UsageError(f"--problem {name}: is of {several}; {fix}")
        try:
            problems.append(Problem.from_json(document))
        except ProblemError as error:
            raise ProblemError(f"{name}: {error.path}", error.complaint) from error
    stems = [Path(name).stem for name in files]
    names = stems if len(set(stems)) == len(stems) else [f"{i + 1}: {name}" for i, name in enumerate(files)]
    found = plan_together(problems, names=names, should_stop=search.should_stop)
    write_document(arguments.output, found.to_json(names))
    if isinstance(found, JointInfeasible):
        if arguments.output == "table":
            make_console(stderr=True).print(found.message, markup=False, highlight=False)
        return EXIT_INFEASIBLE
    if arguments.output == "table":
        console.print(render_joint(problems, names, found))
    return EXIT_OK


def plan_waiting(arguments: Namespace, search: Search, console: Console) -> int:
    """Plan those jobs of a line that can run at once; return the exit code.

    Raises:
        UsageError: the file cannot be read.
        ProblemError: the file is invalid; the message names the field.
    """
    line = Line.from_json(read_json(arguments.line, "--line"))
    found = plan_line(line, should_stop=search.should_stop)
    write_document(arguments.output, found.to_json())
    if arguments.output == "table":
        console.print(render_line(line, found))
    return EXIT_OK if found.plans else EXIT_INFEASIBLE
