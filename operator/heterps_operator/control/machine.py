"""What people are told of a plan on one machine, whose cores all its processes share."""

from __future__ import annotations

import math

from heterps_operator.formatting import format_rate
from heterps_planner.plans.plan import Machine

__all__ = ["describe_cores", "describe_shortage", "is_busy"]

_NOTICEABLE = 0.99  # of the throughput that a plan has with a core for each unit; what is above is rounding
_FIX = "plan fewer units (maxUnits of its pools), or run the job on a cluster (heterps submit)"


def describe_cores(machine: Machine) -> str:
    """How many cores the machine has, and how many the plan would keep busy."""
    return f"this machine has {_cores(machine.cores)}; the plan keeps {machine.busy_cores:.1f} busy"


def describe_shortage(machine: Machine | None, throughput: float | None, floor: float) -> str:
    """What becomes of a plan that wants more cores than its machine has, and what to do; empty if they suffice.

    Args:
        machine: the machine; None: the plan is for a cluster.
        throughput: samples per second that the plan predicts.
        floor: samples per second that the job asks for; 0: none.
    """
    if machine is None or throughput is None or throughput >= machine.throughput_on_pools * _NOTICEABLE:
        return ""
    there = machine.throughput_on_pools
    text = f"{describe_cores(machine)}: expect about {_about(throughput)} samples/s here instead of {_about(there)}"
    if floor and throughput < floor:
        text += f", which is below the floor of {format_rate(floor)} (objective.minSamplesPerSecond)"
    return f"{text}; {_FIX}"


def is_busy(machine: Machine) -> bool:
    """Whether the plan keeps all cores of its machine busy, so that more workers would only share them."""
    return machine.busy_cores >= machine.cores


def _cores(number: float) -> str:
    return f"{number:g} core{'s' * (number != 1)}"


def _about(value: float) -> str:
    """A prediction in two digits: the third one would be a promise."""
    return f"{round(value, 1 - math.floor(math.log10(value))):,.0f}" if value >= 100 else f"{value:.2g}"
