"""Parameter servers in a problem, and what the loss of a server or of a worker costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.fields import Fields
from heterps_planner.model.limits import MAX_RATE, MAX_SAMPLES, MAX_SECONDS, MAX_UNITS

__all__ = ["Interruption", "ParameterServer", "read_interruption", "read_servers"]


@dataclass(frozen=True)
class ParameterServer:
    """Units of a pool for the parameter servers: in proportion to the throughput, a fixed number, or both.

    With both, the number is fixed and its servers sustain `units / cores_per_sample_per_second` samples per second.
    """

    pool: str
    cores_per_sample_per_second: float | None = None  # units needed per (sample/s); None: servers limit nothing
    units: int | None = None  # None: as many as the throughput needs
    least_units: int = 0  # of those that the throughput decides


@dataclass(frozen=True)
class Interruption:
    """What an interruption costs the job: time in which it repeats what it has trained, or does not train."""

    # Seconds of the job: its other workers go on without the lost one, and repeat a step at most.
    worker_seconds: float = 10.0
    server_seconds: float = 60.0  # the job starts again from its last checkpoint
    checkpoint_samples: float = 0.0  # samples between two checkpoints, of which half are lost then


def read_servers(top: Fields, units_per_pod: Mapping[str, int]) -> ParameterServer | None:
    """Read the field `parameterServer` of a problem, if it has one.

    Args:
        top: the problem.
        units_per_pod: by the names of its pools.

    Raises:
        ProblemError: it is malformed.
    """
    value = top.take("parameterServer", None)
    if value is None:
        return None
    item = Fields(value, top.at("parameterServer"))
    name = item.take_name("pool")
    if name not in units_per_pod:
        raise UnknownNameError(item.at("pool"), "pool", name, units_per_pod)
    if "units" not in item and "coresPerSamplePerSecond" not in item:
        raise ProblemError(item.path, "must have coresPerSamplePerSecond, units or both")
    if "units" in item and "leastUnits" in item:
        raise ProblemError(item.at("leastUnits"), "has no effect with units, a fixed number; leave one of them out")
    pod, rate = units_per_pod[name], None
    units = _take_pods(item, "units", pod, name) if "units" in item else None
    least = _take_pods(item, "leastUnits", pod, name) if "leastUnits" in item else 0
    if "coresPerSamplePerSecond" in item:
        rate = item.take_number("coresPerSamplePerSecond", above=0, least=1 / MAX_RATE, most=MAX_SECONDS)
    item.finish()
    return ParameterServer(name, rate, units, least)


def _take_pods(item: Fields, field: str, pod: int, pool: str) -> int:
    """A number of units that are whole pods of a pool."""
    units = item.take_integer(field, least=1, most=MAX_UNITS)
    if units % pod:
        raise ProblemError(
            item.at(field), f"must be a multiple of the {pod} units per pod of pool {pool!r}, is {units}"
        )
    return units


def read_interruption(top: Fields) -> Interruption:
    """Read the field `interruption` of a problem; what is left out is as usual.

    Raises:
        ProblemError: it is malformed.
    """
    usual = Interruption()
    item = Fields(top.take("interruption", {}), top.at("interruption"))
    found = Interruption(
        worker_seconds=item.take_number("workerSeconds", usual.worker_seconds, least=0, most=MAX_SECONDS),
        server_seconds=item.take_number("serverSeconds", usual.server_seconds, least=0, most=MAX_SECONDS),
        checkpoint_samples=item.take_number("checkpointSamples", 0, least=0, most=MAX_SAMPLES),
    )
    item.finish()
    return found
