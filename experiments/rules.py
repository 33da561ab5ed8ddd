"""Provisioning rules for given schedules: the exact one, the paper's, and fixed ratios.

For comparison only; plans are provisioned by `provisioning.provision`. All rules start from the same stages and are
priced by the same cost model (`plan.choice_of`):

- `exact`: the cheapest pods.
- `newton`: [HeterPS], section 5.1, with equations (11) to (13) as corrected by errata 3 to 6 and 8: Newton's method for
  k_1 on the continuous relaxation, the other k_i from equation (12), all rounded up.
- `literal_first_units`: the lower bound of k_1 as equation (13) is printed. Its unit is wrong (erratum 3), and with the
  minimum it ignores the slower of computing and transfer (erratum 4), so it serves only for comparison.
- `static_ratio` (StaRatio): one GPU to six CPU cores, the ratio of a server ([HeterPS], 6.1, after AIBox).
- `static_server_ratio` (StaPSRatio): 1 : 6 : 6 with as many cores again for parameter servers (after BytePS).

The two ratios are scaled up to the least size that meets the floor. [HeterPS] does not define how cards are divided
among several stages on GPUs, or cores among stages on CPUs: here evenly, with the remainder to the first stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from heterps_planner.errors import ProblemError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments
from heterps_planner.plans.plan import choice_of
from heterps_planner.search.path import Stage
from heterps_planner.search.points import Choice
from heterps_planner.search.provisioning import provision, schedule_of

__all__ = ["CORES_PER_GPU", "RULES", "exact", "literal_first_units", "newton", "static_ratio", "static_server_ratio"]

CORES_PER_GPU = 6
_MAX_STEPS = 100
_CLOSE = 1e-12  # relative change of k_1 that ends Newton's method
_ROUNDING = 1e-9  # a number of pods this close above a whole one is that one

Rule = Callable[[Problem, Segments, list[Stage]], Choice | None]


def exact(problem: Problem, segments: Segments, stages: list[Stage]) -> Choice | None:
    """Return the cheapest provision of a schedule, or None if no provision keeps floor, limits and ceiling."""
    found = provision(schedule_of(segments, stages, [None] * len(stages)), segments)
    if not math.isfinite(found.rate[0]):
        return None
    pods = [int(k) for k in found.pods[0]]
    return choice_of(segments, stages, pods[:-1], pods[-1])


def newton(problem: Problem, segments: Segments, stages: list[Stage]) -> Choice | None:
    """Return the provision of [HeterPS], section 5.1, or None if it exceeds a limit or the ceiling.

    With continuous k the stages of a balanced plan (11) take `k_i = par_i / (1/theta - seq_i)`, whichever of computing
    and transfer takes more. Their cost per sample never falls with theta, so that the k_1 of least cost is the one of
    the floor (erratum 8). The search for it is Newton's method on `stage_time(k_1) = 1 / floor`, whose function is
    convex and falling in k_1: from one pod on the steps never overshoot.

    Raises:
        ProblemError: there is no floor, or the stages have measured tables; equations (11) to (13) then say nothing.
    """
    if segments.floor == 0:
        raise ProblemError("problem.minSamplesPerSecond", "must be > 0: the rule provisions for the floor, and is 0")
    _refuse_tables(segments)
    seconds = 1 / segments.floor
    first = _newton_first(*_coefficients(segments, stages[0]), seconds)
    if first is None:
        return None
    theta = 1 / segments.stage_time(*stages[0], first)
    memory = _least_pods(segments, stages)
    if memory is None:
        return None
    pods = [max(_whole(first), memory[0])]
    for stage, least in zip(stages[1:], memory[1:], strict=True):
        needed = [par / (1 / theta - seq) if 1 / theta > seq else math.inf for seq, par in _lines(segments, stage)]
        if not math.isfinite(max(needed)):
            return None
        pods.append(max(_whole(max(needed)), least))
    servers = int(segments.server_need(np.array([segments.floor]))[0])
    return _checked(segments, stages, pods, servers)


def literal_first_units(problem: Problem, first: Stage) -> float:
    """Return the bound of k_1 as equation (13) of [HeterPS] is printed, in units.

    `min(a OCT / (theta B_o - (1 - a) OCT), b ODT / (theta B_o - (1 - b) ODT))`, with the OCT, a of the whole stage and
    the ODT, b of its last layer.

    Errata: 3 (theta * B_o is no time), 4 (the minimum).

    Returns:
        The bound, infinite where a denominator is not positive.
    """
    begin, end, t = first
    pool = problem.pools[t]
    times = [layer.pools[pool.name] for layer in problem.layers[begin : end + 1]]
    parallel = sum(x.compute_seconds * x.parallel_fraction for x in times)
    sequential = sum(x.compute_seconds for x in times) - parallel
    send = times[-1].transfer_seconds * times[-1].transfer_parallel_fraction
    right = problem.min_samples_per_second * problem.batch_size
    spare = (right - sequential, right - (times[-1].transfer_seconds - send))
    return min(part / left if left > 0 else math.inf for part, left in zip((parallel, send), spare, strict=True))


def static_ratio(problem: Problem, segments: Segments, stages: list[Stage]) -> Choice | None:
    """Return StaRatio: one GPU to six CPU cores, which training and charged parameter servers share.

    Returns:
        The least size that meets the floor, or None if it exceeds a limit or the ceiling.
    """
    return _least_size(problem, segments, stages, separate_servers=False)


def static_server_ratio(problem: Problem, segments: Segments, stages: list[Stage]) -> Choice | None:
    """Return StaPSRatio: GPUs to CPU cores for training to CPU cores for parameter servers as 1 : 6 : 6.

    Returns:
        The least size that meets the floor, or None if it exceeds a limit or the ceiling.

    Raises:
        ProblemError: the problem names no pool for the parameter servers.
    """
    if problem.parameter_server is None:
        raise ProblemError("problem.parameterServer", "is missing: the rule needs the pool of its cores")
    return _least_size(problem, segments, stages, separate_servers=True)


RULES: dict[str, Rule] = {
    "exact": exact,
    "newton": newton,
    "static-ratio": static_ratio,
    "static-server-ratio": static_server_ratio,
}


def _lines(segments: Segments, stage: Stage) -> list[tuple[float, float]]:
    """Return (seq, par) of computing and of transfer: seconds per sample on k pods are `seq + par / k`."""
    first, last, pool = stage
    return [
        (float(segments.seq_LLT[first, last, pool]), float(segments.par_LLT[first, last, pool])),
        (float(segments.send_seq_LT[last, pool]), float(segments.send_par_LT[last, pool])),
    ]


def _coefficients(segments: Segments, stage: Stage) -> tuple[FloatArray, FloatArray]:
    seq, par = zip(*_lines(segments, stage), strict=True)
    return np.array(seq), np.array(par)


def _newton_first(seq: FloatArray, par: FloatArray, seconds: float) -> float | None:
    """Solve `max(seq + par / k) = seconds` for k >= 1 by Newton's method; None if there is no solution."""
    if not (seq[par > 0] < seconds).all() or not (seq <= seconds).all():
        return None
    k = 1.0
    for _ in range(_MAX_STEPS):
        time = seq + par / k
        active = int(time.argmax())
        excess = float(time[active]) - seconds
        if excess <= 0:
            break
        step = excess * k * k / float(par[active])
        k += step
        if step <= _CLOSE * k:
            break
    return k


def _whole(pods: float) -> int:
    return max(1, math.ceil(pods * (1 - _ROUNDING)))


def _least_pods(segments: Segments, stages: list[Stage]) -> list[int] | None:
    """Return the least pods of each stage for its memory, or None if no number is enough."""
    if segments.least_LLT is None:
        return [1] * len(stages)
    least = [float(segments.least_LLT[stage]) for stage in stages]
    return [int(k) for k in least] if math.isfinite(max(least)) else None


def _refuse_tables(segments: Segments) -> None:
    if segments.pieces:
        raise ProblemError("problem.layers", "must not have measured tables: the rule knows Amdahl's law only")


def _checked(segments: Segments, stages: list[Stage], pods: list[int], servers: int) -> Choice | None:
    """Return the choice if it keeps floor, limits and ceiling."""
    choice = choice_of(segments, stages, pods, servers)
    used = np.zeros(segments.num_pools)
    np.add.at(used, [t for _, _, t in stages], pods)
    used[segments.server_pool] += servers
    slack = 1 + FLOOR_TOLERANCE
    if choice.throughput * slack < segments.floor or choice.price > segments.ceiling * slack:
        return None
    return choice if (used <= segments.limit_T).all() else None


def _least_size(problem: Problem, segments: Segments, stages: list[Stage], *, separate_servers: bool) -> Choice | None:
    """Return the provision with the fewest GPUs, and six cores for each, that meets the floor."""
    on_cpu = [problem.pools[t].device_type == "CPU" for _, _, t in stages]
    per_pod = [problem.pools[t].units_per_pod for _, _, t in stages]
    server_unit = int(segments.units_T[segments.server_pool])
    memory = _least_pods(segments, stages)
    if memory is None:
        return None
    shares_cores = math.isinf(segments.server_most) and not separate_servers

    def at(size: int) -> tuple[list[int], int]:
        """Return the pods of the stages and of the parameter servers."""
        cores = _divide(CORES_PER_GPU * size, sum(on_cpu) + shares_cores)
        servers = segments.server_least
        if separate_servers:
            servers = CORES_PER_GPU * size // server_unit
        elif shares_cores:
            servers = cores.pop() // server_unit
        gpus = _divide(size, len(stages) - sum(on_cpu))
        units = [(cores if cpu else gpus).pop(0) for cpu in on_cpu]
        return [n // each for n, each in zip(units, per_pod, strict=True)], servers

    def reaches(size: int) -> bool:
        pods, servers = at(size)
        if any(n < k for n, k in zip(pods, memory, strict=True)) or (segments.server_par and not servers):
            return False
        return choice_of(segments, stages, pods, servers).throughput * (1 + FLOOR_TOLERANCE) >= segments.floor

    # More units than this exceed a limit, whatever the division.
    low, high = 0, int((segments.limit_T * segments.units_T).sum()) + 1
    if not reaches(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return _checked(segments, stages, *at(high))


def _divide(units: int, parts: int) -> list[int]:
    """Divide units evenly, with the remainder to the first parts."""
    return [units // parts + (i < units % parts) for i in range(parts)]
