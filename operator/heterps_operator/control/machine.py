"""What people are told of a plan on one machine, whose cores all its processes share."""

from __future__ import annotations

import math

from heterps_operator.documents import Json
from heterps_operator.formatting import format_rate

__all__ = ["describe_cores", "describe_shortage", "is_busy"]

_NOTICEABLE = 0.99  # of the throughput that a plan has with a core for each unit; what is above is rounding
_FIX = "plan fewer units (maxUnits of its pools), or run the job on a cluster (heterps submit)"


def describe_cores(plan: Json) -> str:
    """How many cores the machine has, and how many the plan would keep busy; empty if it is for no one machine.

    Args:
        plan: the plan file.
    """
    machine = plan.get("machine")
    if machine is None:
        return ""
    return f"this machine has {_cores(machine['cores'])}; the plan keeps {machine['busyCores']:.1f} busy"


def describe_shortage(plan: Json, floor: float | None) -> str:
    """What becomes of a plan that wants more cores than its machine has, and what to do; empty if they suffice.

    Args:
        plan: the plan file.
        floor: samples per second that the job asks for; 0 or None: none.
    """
    machine = plan.get("machine")
    if machine is None or plan["throughput"] >= machine["throughputOnPools"] * _NOTICEABLE:
        return ""
    here, there = plan["throughput"], machine["throughputOnPools"]
    text = f"{describe_cores(plan)}: expect about {_about(here)} samples/s here instead of {_about(there)}"
    if floor and here < floor:
        text += f", which is below the floor of {format_rate(floor)} (objective.minSamplesPerSecond)"
    return f"{text}; {_FIX}"


def is_busy(plan: Json) -> bool:
    """Whether the plan keeps all cores of its machine busy, so that more workers would only share them."""
    machine = plan.get("machine")
    return machine is not None and bool(machine["busyCores"] >= machine["cores"])


def _cores(number: float) -> str:
    return f"{number:g} core{'s' * (number != 1)}"


def _about(value: float) -> str:
    """A prediction in two digits: the third one would be a promise."""
    return f"{round(value, 1 - math.floor(math.log10(value))):,.0f}" if value >= 100 else f"{value:.2g}"
