"""One job in several precisions: a problem for each of them, and the one with the cheapest plan.

A precision belongs to the whole job: every worker of a stage must compute a sample in the same way, and a stage sends
its outputs in the type in which it has computed them. So each precision has a plan of its own, and the plans are
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.fields import Fields
from heterps_planner.model.problem import Problem
from heterps_planner.plans.plan import Candidate, Infeasible, Plan

__all__ = ["EXACTNESS", "choose_precision", "has_precisions", "read_problems"]

VERSION = 1
EXACTNESS = ("fp64", "fp32", "tf32", "fp16", "bf16")  # the most exact first
_TIE = 0.01  # relative: two measurements of one pool differ by more


def has_precisions(document: Mapping[str, Any]) -> bool:
    """Whether a problem file has a problem for each of several precisions."""
    return "precisions" in document


def read_problems(document: Any) -> dict[str, Problem]:
    """Parse and validate a problem file that has a problem for each of several precisions.

    Args:
        document: result of `json.load`.

    Returns:
        The problems by precision, the most exact first.

    Raises:
        ProblemError: a field is missing, unknown, of the wrong type or out of range; the message names it.
    """
    top = Fields(document, "problem")
    top.take_integer("version", least=VERSION, most=VERSION)
    given = Fields(top.take("precisions"), top.at("precisions"))
    top.finish()
    if not given.value:
        raise ProblemError(given.path, "must have a problem for each precision, is {}")
    for name in given.value:
        if name not in EXACTNESS:
            raise UnknownNameError(given.path, "precision", name, EXACTNESS)
    problems = {}
    for name in (name for name in EXACTNESS if name in given):
        try:
            problems[name] = Problem.from_json(given.take(name))
        except ProblemError as error:
            raise ProblemError(given.at(name) + error.path.removeprefix("problem"), error.complaint) from error
    return problems


def choose_precision(problems: Mapping[str, Problem], found: Mapping[str, Plan | Infeasible]) -> Plan | Infeasible:
    """Return the cheapest of the plans of several precisions.

    A plan that meets the floor goes before one that does not, as a machine's cores may make each of them slower than
    its problem says. Of plans whose costs differ by less than measurements do, that of the most exact precision is the
    choice.

    Args:
        problems: by precision, the most exact first.
        found: a plan of each precision, or why there is none.

    Returns:
        The plan with the figures of all precisions; or, if none has a plan, the refusal of the one that is the fastest,
        with the reasons of all.
    """
    plans = {name: plan for name in problems if isinstance(plan := found[name], Plan)}
    if not plans:
        refusals = {name: refusal for name in problems if isinstance(refusal := found[name], Infeasible)}
        nearest = max(refusals.values(), key=lambda refusal: refusal.best_throughput)
        reasons = "; ".join(f"{name}: {refusal.message}" for name, refusal in refusals.items())
        seconds = sum(refusal.seconds for refusal in refusals.values())
        return replace(nearest, message=f"no precision has a plan: {reasons}", seconds=seconds)
    fast = {
        name: plan
        for name, plan in plans.items()
        if plan.throughput >= problems[name].min_samples_per_second * (1 - 2 * FLOOR_TOLERANCE)
    } or plans
    least = min(plan.cost for plan in fast.values())
    chosen = next(name for name, plan in fast.items() if plan.cost <= least * (1 + _TIE))
    candidates = tuple(_candidate(name, found[name]) for name in problems)
    seconds = sum(one.seconds for one in found.values())
    return replace(plans[chosen], precision=chosen, candidates=candidates, seconds=seconds)


def _candidate(precision: str, found: Plan | Infeasible) -> Candidate:
    if isinstance(found, Infeasible):
        return Candidate(precision, message=found.message)
    return Candidate(precision, found.throughput, found.cost_per_hour, found.cost)
