"""One job in several variants: a problem for each of them, and the one with the cheapest plan.

A variant is a precision and an exchange of dense gradients on CPU pools. Both belong to the whole job: each worker of a
stage must compute a sample in the same way, a stage sends its outputs in the type in which it has computed them, and a
pool with two exchanges would have two lines for each segment of the search. So each variant has a plan of its own, and
the plans are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.fields import Fields
from heterps_planner.model.problem import DENSE_EXCHANGES, Problem
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.plans.selection import Candidate, Selection

__all__ = ["EXACTNESS", "EXCHANGES", "PRECISIONS", "Variant", "choose_variant", "describe_variants", "read_problems"]

VERSION = 1
EXACTNESS = ("fp64", "fp32", "tf32", "fp16", "bf16")  # the most exact first
_TIE = 0.01  # relative: two measurements of one pool differ by more

# Keys of a problem file, or of a profile, that has a part for each of several names.
PRECISIONS = "precisions"
EXCHANGES = "denseExchanges"

Property = Literal["precision", "dense_exchange"]
Problems = Mapping["Variant", Problem]
Answers = Mapping["Variant", Plan | Infeasible]


class Variant(NamedTuple):
    """What is chosen for a whole job; an empty name: there is no choice."""

    precision: str = ""
    dense_exchange: str = ""


class _Level(NamedTuple):
    """One of the choices that a problem file may leave."""

    key: str
    name: Property
    title: str  # for messages
    names: tuple[str, ...]  # those to be preferred in a tie first


# The outer one first. Of two exchanges that cost the same, servers let a plan change without a restart.
_LEVELS = (
    _Level(PRECISIONS, "precision", "precision", EXACTNESS),
    _Level(EXCHANGES, "dense_exchange", "dense exchange", DENSE_EXCHANGES),
)


def describe_variants(document: Mapping[str, Any]) -> str:
    """Describe the choice that a problem file leaves: `several precisions (fp32, bf16)`; empty: it leaves none."""
    for level in _LEVELS:
        if level.key in document:
            return f"several {level.title}s ({', '.join(map(str, document[level.key]))})"
    return ""


def read_problems(document: Any) -> dict[Variant, Problem]:
    """Parse and validate a problem file, of one variant or several.

    Args:
        document: result of `json.load`.

    Returns:
        The problems, in the order in which variants are preferred if they cost the same.

    Raises:
        ProblemError: a field is missing, unknown, of the wrong type or out of range; the message names it.
    """
    return _read(document, "problem", Variant(), _LEVELS)


def _read(document: Any, path: str, variant: Variant, levels: tuple[_Level, ...]) -> dict[Variant, Problem]:
    """The problems of a file's part, with the choices that it may still leave."""
    for i, level in enumerate(levels):
        if isinstance(document, Mapping) and level.key in document:
            top = Fields(document, path)
            top.take_integer("version", least=VERSION, most=VERSION)
            given = Fields(top.take(level.key), top.at(level.key))
            top.finish()
            if not given.value:
                raise ProblemError(given.path, f"must have a problem for each {level.title}, is {{}}")
            for name in given.value:
                if name not in level.names:
                    raise UnknownNameError(given.path, level.title, name, level.names)
            problems: dict[Variant, Problem] = {}
            for name in (name for name in level.names if name in given):
                one = variant._replace(**{level.name: name})
                problems |= _read(given.take(name), given.at(name), one, levels[i + 1 :])
            return problems
    try:
        return {variant: Problem.from_json(document)}
    except ProblemError as error:
        raise ProblemError(path + error.path.removeprefix("problem"), error.complaint) from error


def choose_variant(problems: Problems, found: Answers) -> tuple[Variant, Plan | Infeasible]:
    """Return the variant with the cheapest plan, and this plan.

    A plan that meets the floor goes before one that does not, as a machine's cores may make each of them slower than
    its problem says. Of plans whose costs differ by less than measurements do, the first one is the choice: that of the
    most exact precision, and within a precision that with parameter servers.

    Args:
        problems: by variant, as `read_problems` returns them.
        found: a plan of each variant, or why there is none.

    Returns:
        The variant, and its plan with the figures of the other ones; or, if none has a plan, the refusal of the one
        that is the fastest, with the reasons of all.
    """
    groups: dict[str, list[Variant]] = {}
    for variant in problems:
        groups.setdefault(variant.precision, []).append(variant)
    precision, exchange = _LEVELS
    winners = dict(_cheapest(problems, {one: found[one] for one in group}, exchange) for group in groups.values())
    return _cheapest(problems, winners, precision)


def _cheapest(problems: Problems, found: Answers, level: _Level) -> tuple[Variant, Plan | Infeasible]:
    """The variant with the cheapest plan of some that differ at one level only; their order decides in a tie."""
    names = {variant: variant[Variant._fields.index(level.name)] for variant in found}
    if list(names.values()) == [""]:  # it leaves no choice
        return next(iter(found.items()))
    seconds = sum(one.seconds for one in found.values())
    plans = {variant: one for variant, one in found.items() if isinstance(one, Plan)}
    if not plans:
        refusals = {variant: one for variant, one in found.items() if isinstance(one, Infeasible)}
        nearest = max(refusals, key=lambda variant: refusals[variant].best_throughput)
        reasons = "; ".join(f"{names[variant]}: {refusal.message}" for variant, refusal in refusals.items())
        message = f"no {level.title} has a plan: {reasons}"
        return nearest, replace(refusals[nearest], message=message, seconds=seconds)
    fast = {
        variant: plan
        for variant, plan in plans.items()
        if plan.throughput >= problems[variant].min_samples_per_second * (1 - 2 * FLOOR_TOLERANCE)
    } or plans
    least = min(plan.cost for plan in fast.values())
    chosen = next(variant for variant, plan in fast.items() if plan.cost <= least * (1 + _TIE))
    selection = Selection(names[chosen], tuple(_candidate(names[variant], one) for variant, one in found.items()))
    if level.name == "precision":
        return chosen, replace(plans[chosen], precision=selection, seconds=seconds)
    return chosen, replace(plans[chosen], dense_exchange=selection, seconds=seconds)


def _candidate(name: str, found: Plan | Infeasible) -> Candidate:
    if isinstance(found, Infeasible):
        return Candidate(name, message=found.message)
    return Candidate(name, found.throughput, found.cost_per_hour, found.cost)
