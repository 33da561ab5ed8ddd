"""Two unequal pools on one machine, and every method's plan on them: pure.

On a machine without a card, limits on the processor make them unequal. A unit of a pool is a process with a part of a
core. Profiles are measured with a whole core; here their times are divided by the part, since a process with half a
core takes twice as long. That is derived, and so tested by the runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heterps_planner import METHODS, DeadlineError, Plan, Problem, ProblemError, plan
from heterps_planner.model.cost_model import cost_of_training
from heterps_planner.model.problem import LayerTimes, Pool
from heterps_planner.model.segments import build_segments
from heterps_planner.search.limits import fastest

__all__ = ["CARD", "CLUSTER", "SAMPLES", "Answer", "Offer", "answers", "dollars", "limited", "plan_text"]

SAMPLES = 1e9  # costs are those of so many samples
FLOOR_OF_CLUSTER = 0.5  # of what the whole cluster reaches, as in the other experiments
METHOD_SECONDS = 10.0


@dataclass(frozen=True)
class Offer:
    """What a pool offers."""

    cores: float  # of one unit
    price: float  # dollars per unit and hour
    units: int


#: All units together take less than two cores, so that the limits bind and not the machine. A core's work costs twice
#: as much on the accelerators, of which there are enough; of the cheap cores there are too few.
CLUSTER: Mapping[str, Offer] = {"cpu": Offer(0.15, 0.04, 5), "accelerator": Offer(0.45, 0.24, 2)}

#: A card and whole cores beside it, at the paper's prices. Four cores of a machine with 16 feed the card.
CARD: Mapping[str, Offer] = {"cpu": Offer(1.0, 0.04, 12), "accelerator": Offer(1.0, 2.42, 1)}


@dataclass(frozen=True)
class Answer:
    """A method's plan."""

    method: str
    status: str  # "ok"; "misses the floor": the plan keeps as much of it as the method can; "none": no plan at all
    plan: Plan | None
    seconds: float  # processor time


def limited(problem: Problem, cluster: Mapping[str, Offer]) -> Problem:
    """Return a problem that was measured with whole cores for units that have parts of one.

    Args:
        problem: with the pools of `cluster`, measured with whole cores, one per unit.
        cluster: offers by pool.

    Returns:
        The problem with their limits and prices, and with half of what the whole cluster reaches as the floor.
    """
    servers = problem.parameter_server
    assert servers is not None
    server_cores = cluster[servers.pool].cores
    layers = tuple(
        replace(
            layer,
            pools={name: _slower(times, cluster[name].cores, server_cores) for name, times in layer.pools.items()},
        )
        for layer in problem.layers
    )
    cost = servers.cores_per_sample_per_second
    result = replace(
        problem,
        samples=SAMPLES,
        layers=layers,
        pools=tuple(_slower_pool(pool, cluster[pool.name]) for pool in problem.pools),
        parameter_server=replace(servers, cores_per_sample_per_second=None if cost is None else cost / server_cores),
        min_samples_per_second=0.0,
    )
    reached, _ = fastest(build_segments(result))
    return replace(result, min_samples_per_second=FLOOR_OF_CLUSTER * reached)


def _slower(times: LayerTimes, cores: float, server_cores: float) -> LayerTimes:
    wait, fixed_wait = times.server_seconds, times.server_fixed_seconds
    fixed = (times.compute_fixed_seconds - fixed_wait) / cores + fixed_wait / server_cores
    own = times.compute_seconds - times.compute_fixed_seconds - wait
    return replace(
        times,
        compute_seconds=fixed + own / cores + wait / server_cores,
        compute_fixed_seconds=fixed,
        server_seconds=wait / server_cores,
        server_fixed_seconds=fixed_wait / server_cores,
        transfer_seconds=times.transfer_seconds / cores,
        transfer_fixed_seconds=times.transfer_fixed_seconds / cores,
    )


def _slower_pool(pool: Pool, offer: Offer) -> Pool:
    return replace(
        pool,
        price_per_unit_hour=offer.price,
        max_units=offer.units,
        stage_seconds=pool.stage_seconds / offer.cores,
        stage_fixed_seconds=pool.stage_fixed_seconds / offer.cores,
    )


def answers(problem: Problem, seed: int, methods: Sequence[str] | None = None) -> list[Answer]:
    """Return the plans of methods, of all if none are named."""
    return [_answer(problem, method, seed) for method in methods or METHODS]


def _answer(problem: Problem, method: str, seed: int) -> Answer:
    """Return a method's plan; where none keeps the floor, the one for the most tenths of it."""
    began = time.process_time()
    for tenths in range(10, -1, -1):
        floor = tenths / 10 * problem.min_samples_per_second
        try:
            found = plan(
                replace(problem, min_samples_per_second=floor),
                method,
                seed=seed,
                deadline=time.process_time() + METHOD_SECONDS,
                clock=time.process_time,
            )
        except DeadlineError:
            continue
        except ProblemError:
            break  # the pretrained policy, outside its training domain
        if isinstance(found, Plan):
            status = "ok" if tenths == 10 else "misses the floor"
            return Answer(method, status, found, time.process_time() - began)
    return Answer(method, "none", None, time.process_time() - began)


def plan_text(plan: Plan) -> str:
    """Return a plan as a line; equal plans have equal lines."""
    stages = [f"{s.layers[0]}..{s.layers[-1]} on {s.units} {s.pool}" for s in plan.stages]
    return "; ".join([*stages, f"{plan.parameter_server.units} {plan.parameter_server.pool} for servers"])


def dollars(plan: Plan, samples_per_second: float) -> float:
    """Return what SAMPLES samples cost on a plan's units at a throughput."""
    return cost_of_training(SAMPLES, samples_per_second, plan.cost_per_hour)
