"""From measured times to a pool's profile: pure arithmetic, explained in docs/profiling.md.

Symbols: B samples of a whole batch, k workers, F fixed and P per-batch seconds of the workers' own work, S seconds of
the parameter server, O overhead of a stage, T(k) seconds and W(k) processor seconds of a whole step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_runtime.profiler.memory import LayerBytes
from heterps_runtime.profiler.readings import Line, Reading, fit_line
from heterps_runtime.profiler.rehearsal import Whole

__all__ = ["NOISY", "LayerFacts", "Measured", "combine", "is_noisy"]

_LEAST_SECONDS = 1e-9  # the time of a layer must be positive
NOISY = 0.05  # relative spread at which a number is measured again, and then reported


@dataclass(frozen=True)
class LayerFacts:
    """The measurements of a layer."""

    name: str
    kind: str
    input_bytes: float  # per sample
    weight_bytes: float
    dense_bytes: float  # of them, those of dense parameters
    memory: LayerBytes
    busy: Mapping[int, Reading]  # by size: the worker's own work
    rows: Mapping[int, Reading]  # by size: embedding rows at the server
    dense: Reading  # of a whole batch: dense parameters
    transfer: Mapping[int, Reading]  # by size of a micro-batch: there and back; empty for the last layer
    transfer_processor: Mapping[int, Reading]  # the same in processor seconds, of both sides


@dataclass(frozen=True)
class Measured:
    """The measurements of a pool."""

    batch_size: int
    layers: Sequence[LayerFacts]
    alone: Whole
    together: Whole | None  # of two workers; None: there is room for one only
    threads: int | None  # of a worker that computes on the CPU; None: it computes on an accelerator
    feed_seconds: float = 0.0  # the feed's thread, for a whole batch
    all_reduces: bool = False  # workers have replicas of the dense parameters, and wait for no server to update them


def combine(measured: Measured) -> dict[str, Any]:
    """The profile's numbers: `batchSize`, `layers`, `stage`, `parameterServer`, `calibration` and `warnings`."""
    batch, alone, together = measured.batch_size, measured.alone, measured.together
    lines = [fit_line({n: r.seconds for n, r in layer.busy.items()}) for layer in measured.layers]
    # 1. Timing single layers causes overhead and cache misses: scale the times to those of whole steps.
    separate = sum(line.at(batch) for line in lines)
    scale = alone.busy.seconds / separate
    lines = [Line(line.fixed * scale, line.per_sample * scale) for line in lines]
    fixed, parallel = sum(line.fixed for line in lines), sum(line.per_sample * batch for line in lines)
    # 2. The rest of a step is the servers' work, as far as the worker waits for it, and the stage's overhead. However
    # many servers there are, a step takes as long as the feed, which works beside the worker and divides like its work.
    rest = max(alone.step.seconds - alone.busy.seconds, 0.0)
    feed = min(max(measured.feed_seconds - alone.busy.seconds, 0.0), rest)
    rest -= feed
    parallel += feed
    row_seconds = [layer.rows[batch].seconds for layer in measured.layers]
    dense_seconds = [layer.dense.seconds for layer in measured.layers]
    served = sum(row_seconds) + sum(dense_seconds)
    waited = min(1.0, rest / served) if served > 0 else 0.0
    overhead = rest - waited * served
    # 3. Steps of two workers show which part is divided among workers.
    alpha, overhead_fixed = 1.0, overhead
    if together is not None:
        alpha, overhead_fixed = _parallel(together, fixed, parallel, waited * served, overhead, feed)
    work = [line.per_sample * batch + r + d for line, r, d in zip(lines, row_seconds, dense_seconds, strict=True)]
    processor, stage_processor = _processor(measured, [line.fixed for line in lines], work)
    layers = []
    waits = [feed, *(0.0 for _ in lines[1:])]  # the first stage has the first layer
    for layer, line, wait, rows, dense, used in zip(
        measured.layers, lines, waits, row_seconds, dense_seconds, processor, strict=True
    ):
        own, at_server = line.per_sample * batch + wait, waited * rows
        own_fixed = line.fixed + waited * dense
        entry = {
            "name": layer.name,
            "kind": layer.kind,
            "inputBytes": layer.input_bytes,
            "weightBytes": layer.weight_bytes,
            "denseBytes": layer.dense_bytes,
            "residentBytes": layer.memory.resident,
            "activationBytes": layer.memory.activation,
            "computeSeconds": max(own_fixed + own + at_server, _LEAST_SECONDS),
            "computeFixedSeconds": own_fixed,
            "parallelFraction": alpha * own / (own + at_server) if own + at_server > 0 else 0.0,
            "serverSeconds": at_server,
            "serverFixedSeconds": 0.0 if measured.all_reduces else waited * dense,
            "processorSeconds": used.at(batch),
            "processorFixedSeconds": used.fixed,
            "spread": layer.busy[batch].spread,
        }
        layers.append(entry | _transfer(layer, batch))
    separate_step = separate + served
    return {
        "batchSize": batch,
        "layers": layers,
        "stage": {
            "stageSeconds": overhead,
            "stageFixedSeconds": overhead_fixed,
            "stageParallelFraction": 1.0 if overhead > overhead_fixed else 0.0,
            "stageProcessorSeconds": stage_processor,
            "stageSerialSeconds": _serial(measured, overhead),
        },
        "parameterServer": _servers(measured),
        "calibration": {
            "stepSeconds": alone.step.seconds,
            "stepSpread": alone.step.spread,
            "busySeconds": alone.busy.seconds,
            "feedSeconds": measured.feed_seconds,
            "separateLayersSeconds": separate,
            "separateServerSeconds": served,
            "scale": scale,
            "residual": (alone.step.seconds - separate_step) / alone.step.seconds,
            "activities": alone.activities,
            "processor": alone.processor,
            "steps": alone.steps,
            "twoWorkers": None
            if together is None
            else {
                "stepSeconds": together.step.seconds,
                "stepSpread": together.step.spread,
                "busySeconds": together.busy.seconds,
                "activities": together.activities,
                "processor": together.processor,
                "steps": together.steps,
            },
        },
        "warnings": _warnings(measured),
    }


def _parallel(
    together: Whole, fixed: float, parallel: float, served: float, overhead: float, feed: float
) -> tuple[float, float]:
    """Alpha of the workers' own work, and the fixed part of the overhead, from a step of two workers.

    T(2) = F + P (1 - alpha / 2) + S + O(2), where O(2) is the time of two workers beside their own, the feeds' and the
    servers' work.
    """
    step, busy = together.step.seconds, together.busy.seconds
    second = max(step - busy - feed / 2 - served, 0.0)
    overhead_fixed = min(max(2 * second - overhead, 0.0), overhead)
    modelled = overhead_fixed + (overhead - overhead_fixed) / 2
    alpha = 2 * (1 - (step - fixed - served - modelled) / parallel) if parallel > 0 else 1.0
    return min(max(alpha, 0.0), 1.0), overhead_fixed


def _processor(measured: Measured, fixed: Sequence[float], work: Sequence[float]) -> tuple[list[Line], float]:
    """Processor seconds of each layer, and of each worker of a stage beside its layers.

    W(2) - W(1) is the cost of one more worker. Part of it is the fixed cost of the layers in each piece of a batch. The
    rest is the cost of one more process: messages, rows that both workers need, a copy of the dense parameters. The
    remainder of W(1) is proportional to the samples, and is divided among the layers in proportion to their `work`.

    Args:
        measured: has the whole steps.
        fixed: of each layer, seconds of the worker per piece of a batch.
        work: of each layer, seconds of workers and servers per whole batch.

    Returns:
        A line per layer, whose fixed part each worker pays per piece; and the seconds per worker.
    """
    used = measured.alone.processor
    alone = sum(used.values())
    # Processor seconds exceed the seconds of a worker with several threads, and fall below those of one that waits.
    fixed = [seconds * used["workers"] / measured.alone.step.seconds for seconds in fixed]
    if measured.together is not None:
        worker = sum(measured.together.processor.values()) - alone
    else:  # without a second worker: the known costs that do not depend on the samples
        worker = sum(fixed) + used["coordinator"]
    worker = min(max(worker, 0.0), alone)
    share = min(1.0, worker / sum(fixed)) if sum(fixed) > 0 else 0.0
    rate = (alone - worker) / sum(work) / measured.batch_size
    lines = [Line(f * share, w * rate) for f, w in zip(fixed, work, strict=True)]
    return lines, worker - share * sum(fixed)


def _serial(measured: Measured, overhead: float) -> float:
    """Seconds of a step in which one processor works and the others wait, however many workers there are.

    By Amdahl's law, on the K cores of two workers: T(2) = o + (W(2) - o) / K. It includes waiting for commits, for
    servers and for each other. While a worker waits for its accelerator, others can use its core: then it is the
    overhead.
    """
    together, threads = measured.together, measured.threads
    if together is None or threads is None:
        return overhead
    cores = 2 * threads
    serial = (cores * together.step.seconds - sum(together.processor.values())) / (cores - 1)
    return min(max(serial, overhead), max(together.step.seconds, overhead))


def _servers(measured: Measured) -> dict[str, float]:
    """Processor seconds of the parameter server's busiest core per sample, of the steps with most workers.

    Each worker of a batch pulls its own rows and dense parameters, so one worker alone would make servers look cheaper
    than they are for several.
    """
    most = measured.together or measured.alone
    return {"processorSecondsPerSample": most.server_core / measured.batch_size, "workers": most.workers}


def _transfer(layer: LayerFacts, batch: int) -> dict[str, float]:
    if not layer.transfer:
        return {"transferSeconds": 0.0, "transferFixedSeconds": 0.0, "transferParallelFraction": 0.0}
    # Of a batch in one piece: the planner adds the fixed part once per micro-batch. Each worker has its own
    # connection, so that the rest is divided among workers.
    line = fit_line({n: r.seconds for n, r in layer.transfer.items()})
    processor = fit_line({n: r.seconds for n, r in layer.transfer_processor.items()})
    return {
        "transferSeconds": line.at(batch),
        "transferFixedSeconds": line.fixed,
        "transferParallelFraction": 1.0,
        "transferProcessorSeconds": processor.at(batch),
        "transferProcessorFixedSeconds": processor.fixed,
    }


def _warnings(measured: Measured) -> list[str]:
    found = []
    batch, alone, together = measured.batch_size, measured.alone, measured.together
    for whole in (w for w in (alone, together) if w is not None):
        if whole.step.spread >= 2 * NOISY:
            found.append(
                f"steps of {whole.workers} worker(s) vary by {whole.step.spread:.0%} (interquartile range / median): "
                "something else uses this machine"
            )
    whole_step = sum(layer.busy[batch].seconds for layer in measured.layers)
    for layer in measured.layers:
        reading = layer.busy[batch]
        if is_noisy(reading, whole_step):
            found.append(f"layer {layer.name!r} varies by {reading.spread:.0%} even when measured again")
    if together is None:
        found.append("only one worker could be measured: how layers scale is taken from the batch sizes alone")
    elif together.step.seconds > 0.97 * alone.step.seconds:
        found.append(
            f"two workers take {together.step.seconds / alone.step.seconds:.2f} times as long as one for the same "
            "batch: more units of this pool on this machine do not help"
        )
    return found


def is_noisy(reading: Reading, whole_step: float) -> bool:
    """Whether a layer's spread is large, relative to its own time and to that of the whole step."""
    return reading.spread >= NOISY and reading.spread * reading.seconds >= 0.01 * whole_step
