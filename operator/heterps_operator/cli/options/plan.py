"""Options of `heterps plan`, and their valid combinations."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from heterps_operator.errors import UsageError

__all__ = ["PAGES", "PICTURES", "add_plan_options", "check_plan_options", "check_target"]

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
# Options that each select another kind of answer, with the options that they exclude.
_APART = {
    "compare": ("method", "stages", "what_if", "frontier", "html", "prices", "cores"),
    "prices": ("stages", "what_if", "frontier", "html", "robust", "method", "cores"),
    "what_if": ("frontier", "html"),
    "robust": ("stages", "frontier"),
}
_WITH_PRICES = ("restart_seconds", "pod_start_seconds", "horizon_seconds", "draw")
_OF_LINE = ("problem", "profile", "robust", "what_if", "compare", "prices")  # not with --line, besides those for one
_ALONE = (*_APART, "method", "stages", "frontier", "html", "seed", "cores")  # for a single problem only


def add_plan_options(parser: ArgumentParser) -> None:
    """Add the options that only `heterps plan` has."""
    add = parser.add_argument
    add(
        "--problem",
        metavar="FILE",
        action="append",
        help="plan this problem file instead of a job; several share pools",
    )
    add("--line", metavar="FILE", help="jobs that wait, in order: plan those that can run at once on what is free")
    add("--method", metavar="M", help="planning method (default: the job's, or optimal)")
    add("--seed", type=_seed, metavar="N", help="of methods that draw random numbers (default: 0)")
    add("--robust", type=_fraction, metavar="10%", help="keep the floor even if measured times are off by this much")
    add("--compare", action="store_true", help="a table of all methods on this problem")
    add("--what-if", metavar="NAME=VALUE", action="append", help="v100.maxUnits=16: plan with this change too")
    add("--prices", metavar="FILE", help="plan again at each tick of a price series (CSV or JSON)")
    add("--restart-seconds", type=_span, metavar="S", help="with --prices: a change stops training (default: 30)")
    add("--pod-start-seconds", type=_span, metavar="S", help="with --prices: a new pod starts (default: 60)")
    add("--horizon-seconds", type=_seconds, metavar="S", help="with --prices: a change must pay within this time")
    add("--draw", metavar="FILE", help="with --prices: draw what following them costs")
    add("--profile", metavar="FILE", help="take the layers' times from this problem file")
    add("--stages", metavar="FILE", help='take hand-written stages from this file: {"stages": [...]}')
    add("--cores", type=_cores, metavar="N", help="of the machine that all stages share; 0: a core for each unit, "
        "as on a cluster (default: this machine's for a job, 0 for a --problem)")  # fmt: skip
    add("--timeout", type=_seconds, metavar="SECONDS", help="time limit of the search (--compare: of each method)")
    add("--output", choices=("table", "json", "yaml"), default="table", help="(default: table)")
    add("--frontier", metavar="FILE", action="append", help="cost against throughput: .csv, .png, .svg or .pdf")
    add("--html", metavar="FILE", help="write a page with the plan, its timeline, frontier and reasons")
    add("--refresh-profile", action="store_true", help="measure the layers again")


def check_plan_options(arguments: Namespace) -> None:
    """Reject incompatible options before anything is measured.

    Raises:
        UsageError: the message names the option and the fix.
    """
    problems = arguments.problem or []
    if arguments.line is not None:
        if arguments.job is not None:
            raise UsageError("--line: names jobs of its own; leave the job file out")
        if others := _given(arguments, (*_OF_LINE, *_ALONE)):
            raise UsageError(f"{others[0]}: cannot be combined with --line; leave one of them out")
        return
    if (arguments.job is None) == (not problems):
        raise UsageError("plan: name a job file or --problem FILE, one of the two")
    if problems and arguments.profile is not None:
        raise UsageError("--profile: a --problem already has its layers' times; name a job file, or leave it out")
    if len(problems) > 1 and (others := _given(arguments, _ALONE)):
        raise UsageError(f"{others[0]}: is for one problem, --problem is given {len(problems)} times; leave one out")
    if arguments.method is not None and arguments.stages is not None:
        raise UsageError("--stages: give a plan by hand and need no method; leave --method out")
    for option, excluded in _APART.items():
        if _given(arguments, (option,)) and (others := _given(arguments, excluded)):
            raise UsageError(f"{others[0]}: cannot be combined with {_spell(option)}; leave one of them out")
    if arguments.prices is None and (others := _given(arguments, _WITH_PRICES)):
        raise UsageError(f"{others[0]}: is for --prices FILE only; add it, or leave the option out")
    for target in arguments.frontier or []:
        check_target("--frontier", target, (".csv", *PICTURES))
    if arguments.draw is not None:
        check_target("--draw", arguments.draw, PICTURES)
    if arguments.html is not None:
        check_target("--html", arguments.html, PAGES)


def _given(arguments: Namespace, options: tuple[str, ...]) -> list[str]:
    return [_spell(option) for option in options if getattr(arguments, option) not in (None, False)]


def _spell(option: str) -> str:
    return "--" + option.replace("_", "-")


def check_target(option: str, target: str, endings: tuple[str, ...]) -> None:
    """Check the name of a file that a command is to write.

    Args:
        option: the option that names it, for the message.
        target: the name.
        endings: the allowed ones, at least two, in lower case.

    Raises:
        UsageError: it has another ending, or its folder does not exist.
    """
    path = Path(target)
    if path.suffix.lower() not in endings:
        raise UsageError(f"{option} {target}: must end in {', '.join(endings[:-1])} or {endings[-1]}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {target}: its folder does not exist")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    if not 0 < (seconds := _number(text)) < math.inf:
        raise ArgumentTypeError(f"must be a number of seconds > 0, is {text!r}")
    return seconds


def _span(text: str) -> float:
    if not 0 <= (seconds := _number(text)) <= 1e9:
        raise ArgumentTypeError(f"must be a number of seconds, 0 to 1e9, is {text!r}")
    return seconds


def _cores(text: str) -> float:
    if not 0 <= (cores := _number(text)) <= 1e6:
        raise ArgumentTypeError(f"must be a number of cores, 0 to 1e6, is {text!r}")
    return cores


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ArgumentTypeError(f"must be a whole number >= 0 of at most 18 digits, is {text!r}")
    return int(text)


def _fraction(text: str) -> float:
    percent = text.endswith("%")
    value = _number(text.removesuffix("%")) / (100 if percent else 1)
    if not 0 < value <= 1:
        raise ArgumentTypeError(f"must be a relative error above 0 and at most 100%, such as 10% or 0.1, is {text!r}")
    return value
