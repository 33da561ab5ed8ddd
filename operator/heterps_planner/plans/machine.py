"""Plans on one machine, where the processes of all stages and servers share its cores.

The cost model gives each unit its own core, as pods on a cluster have. On one machine a plan may need more cores than
exist. Then its throughput is bounded by the processor time of a sample in all processes together: workers, parameter
servers and coordinator.

    W = sum over stages of  n s + sum over its layers of (M n f + (p - f) B/B_o) + M n g + (q - g) B/B_o
    T = max(T_0, W/C, o + (W - o)/C)

in seconds per batch of B samples, with, of the problem file,

    n, M       workers of the stage; micro-batches, 1 if the plan has one stage
    p, f       `processorSeconds` and `processorFixedSeconds` of a layer
    s          `stageProcessorSeconds` of the stage's pool
    q, g       `transferProcessorSeconds` and `transferProcessorFixedSeconds` of its last layer; 0 in the last stage
    T_0        what the cost model predicts with a core for each unit
    o          the longest time of a stage in which one process works and the others wait: its overhead
               (`stageSeconds`), or what was measured of it in all processes (`stageSerialSeconds`)
    C          cores

W/C is the bound of a machine whose cores are never idle. During o only one process works, and all cores share the rest
of W. The plan keeps W/T_0 cores busy if it has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps_planner.model.cost_model import cost_of_training, stage_work
from heterps_planner.model.problem import Problem
from heterps_planner.plans.plan import Machine, Plan
from heterps_planner.search.path import Stage

__all__ = ["is_measured", "processor_seconds_per_sample", "share_cores", "throughput_on_cores"]


def is_measured(problem: Problem) -> bool:
    """Return whether the problem contains the layers' processor times; hand-written problems may not."""
    return all(times.processor_seconds is not None for layer in problem.layers for times in layer.pools.values())


def processor_seconds_per_sample(problem: Problem, stages: Sequence[Stage], pods: Sequence[int]) -> float:
    """Return W/B: the processor seconds of one sample in all processes of a job.

    Args:
        problem: a measured problem.
        stages: (first layer, last layer, pool) of each stage.
        pods: workers of each stage.
    """
    batch, training = problem.batch_size, problem.training_batch_size
    pieces = problem.micro_batches if len(stages) > 1 else 1
    total = 0.0
    for index, ((first, last, number), workers) in enumerate(zip(stages, pods, strict=True)):
        pool = problem.pools[number]
        total += workers * pool.stage_processor_seconds / training
        times = [layer.pools[pool.name] for layer in problem.layers[first : last + 1]]
        parts = [(t.processor_seconds or 0.0, t.processor_fixed_seconds) for t in times]
        if index < len(stages) - 1:
            parts.append((times[-1].transfer_processor_seconds, times[-1].transfer_processor_fixed_seconds))
        for seconds, fixed in parts:
            total += pieces * workers * fixed / training + (seconds - fixed) / batch
    return total


def throughput_on_cores(
    problem: Problem, stages: Sequence[Stage], pods: Sequence[int], throughput: float, cores: float
) -> float:
    """Return the samples per second that stages reach on one machine, 1/T.

    Args:
        problem: a measured problem.
        stages: (first layer, last layer, pool) of each stage.
        pods: workers of each stage.
        throughput: prediction of the cost model, with a core for each unit.
        cores: cores of the machine, > 0; may be a fraction or infinite.
    """
    work = processor_seconds_per_sample(problem, stages, pods)
    pools = [(problem.pools[pool], workers) for (_, _, pool), workers in zip(stages, pods, strict=True)]
    overheads = [stage_work((), pool, problem).on(workers * pool.units_per_pod) for pool, workers in pools]
    measured = [pool.stage_serial_seconds / problem.batch_size for pool, _ in pools]
    serial = min(max(*overheads, *measured), work)
    return 1 / max(1 / throughput, work / cores, serial + (work - serial) / cores)


def share_cores(problem: Problem, plan: Plan, cores: float) -> Plan:
    """Return the plan with the throughput and cost that one machine's cores allow.

    The lower bound stays valid: no plan that meets the floor on its pools costs less, and sharing cores makes none
    cheaper.

    Args:
        problem: a measured problem.
        plan: plan of this problem, with a core for each unit.
        cores: cores of the machine, > 0.
    """
    stages = [(stage.first_layer, stage.last_layer, problem.pool_index(stage.pool)) for stage in plan.stages]
    pods = [stage.pods for stage in plan.stages]
    throughput = throughput_on_cores(problem, stages, pods, plan.throughput, cores)
    busy = processor_seconds_per_sample(problem, stages, pods) * plan.throughput
    plan = replace(plan, machine=Machine(cores, busy, plan.throughput))
    if throughput == plan.throughput:
        return plan
    # Those of the pools: sharing cores makes checkpoints rarer, which changes the lost time by next to nothing.
    cost = cost_of_training(problem.samples, throughput, plan.cost_per_hour) * (1 + plan.lost_time)
    gap = (cost - plan.lower_bound) / cost if cost > 0 else 0.0
    return replace(plan, throughput=throughput, cost=cost, gap=gap, optimal=gap == 0.0)
