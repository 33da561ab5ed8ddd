"""The measurements of a pool: whole steps, single layers, cuts."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import zmq

from heterps_runtime.config import PoolConfig, RunConfig
from heterps_runtime.contract import PROFILE_VERSION
from heterps_runtime.cores import usable_cores
from heterps_runtime.intake import resolve_loss
from heterps_runtime.malloc import keep_freed_memory
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.profiler.combine import NOISY, LayerFacts, Measured, combine, is_noisy
from heterps_runtime.profiler.layers import LayerProbe, LayerSeconds
from heterps_runtime.profiler.memory import anonymous_bytes, device_bytes
from heterps_runtime.profiler.readings import Reading
from heterps_runtime.profiler.rehearsal import Rehearsal
from heterps_runtime.profiler.transfers import TransferProbe
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.warm import warm_up_server, warm_up_worker
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.worker.main import open_data
from heterps_runtime.worker.member import Place, WorkerMember
from heterps_runtime.worker.model import UserModel, Workload, choose_device, set_precision
from heterps_runtime.worker.steps.source import BatchSource, Data

__all__ = ["measure_pool"]

_ROUNDS = 7  # repetitions of each size before the spread is judged
_MORE_ROUNDS = 8  # for a layer that varies too much
_WARM_ROUNDS = 2
_TRANSFER_ROUNDS = 5

Say = Callable[[str], None]


def measure_pool(config: RunConfig, pool: str, rehearsal: Rehearsal, say: Say, link: ControlLink) -> dict[str, Any]:
    """Measure a pool.

    Args:
        config: the job.
        pool: name of the pool of this process.
        rehearsal: processes for whole steps, entered.
        say: reports the current activity.
        link: shows the progress of preparing the data.

    Returns:
        The profile (docs/profiling.md).

    Raises:
        ValueError: model or data are wrong, as in a worker.
    """
    here = config.pools[pool]
    all_reduces = config.all_reduces_on(here)
    say(f"profiling pool {pool}: loading data and model")
    # Before a second worker needs the same cache; streamed data is read into that of the measurement.
    data = open_data(rehearsal.config if config.streams_data else config, link)
    model = UserModel.build(config, data.train.schema.features)
    data.train.check_features(model.layered.inputs)
    loss = resolve_loss(config.loss)
    device = choose_device(here, 0)
    set_precision(config, device)
    workers, why_one = _room(here, device)
    rehearsal.launch(len(model.layered.layers), workers)
    _compile(config, model)
    keep_freed_memory()  # as a worker does
    memory = {"baseBytes": float(anonymous_bytes() or 0)}  # of a worker, before it computes
    if (card := device_bytes(device)) is not None:
        memory |= {"deviceBytes": float(card[0]), "deviceBaseBytes": float(card[1])}
    say(f"running whole steps with {workers} worker(s)" + (f" ({why_one})" if why_one else ""))

    def member(
        changed: RunConfig,
        to_coordinator: ControlLink,
        context: zmq.Context[zmq.Socket[bytes]],
        credentials: Credentials,
    ) -> WorkerMember:
        place = Place(0, 0, pool, "127.0.0.1", all_reduces=all_reduces)
        workload = Workload(model, loss, device)
        return WorkerMember(changed, to_coordinator, context, credentials, place, workload, Data(data.train, None))

    wholes = {w.workers: w for w in rehearsal.measure(member)}
    rehearsal.end()
    for whole in wholes.values():
        say(
            f"{whole.workers} worker(s): {whole.step.seconds * 1e3:.2f} ms per step, of which each computes "
            f"{whole.busy.seconds * 1e3:.2f} ms"
        )
    probe = LayerProbe(config, model, data.train, loss, device, all_reduces=all_reduces)
    facts, remeasured = _measure_layers(config, model, probe, device, say)
    threads = torch.get_num_threads() if device.type == "cpu" else None
    feed = _measure_feed(config, model, data, device, probe.largest)
    measured = Measured(probe.largest, facts, wholes[1], wholes.get(2), threads, feed, all_reduces)
    profile = combine(measured)
    if why_one:
        profile["warnings"].append(f"pool {pool}: {why_one}")
    for warning in profile["warnings"]:
        say(f"warning: {warning}")
    return {
        "version": PROFILE_VERSION,
        **profile,
        "samples": data.train.num_rows,
        "memory": memory,
        "measured": {
            "device": _device_name(device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "cpu": _cpu_model(),
            "cores": usable_cores(),
        },
        "remeasured": remeasured,
    }


def _measure_layers(
    config: RunConfig, model: UserModel, probe: LayerProbe, device: torch.device, say: Say
) -> tuple[list[LayerFacts], int]:
    """Time the layers at a whole batch, a half and a quarter, and the cuts at two sizes of a micro-batch."""
    batch = probe.largest
    sizes = sorted({max(1, batch // share) for share in (1, 2, 4)})
    say(f"timing {len(probe.stages)} layers at {', '.join(map(str, sizes))} samples")
    samples: dict[int, list[list[LayerSeconds]]] = {size: [] for size in sizes}

    def repeat(rounds: int) -> None:
        for _ in range(rounds):  # sizes alternate, so that slow moments of the machine affect all of them
            for size in sizes:
                samples[size].append(probe.step(size))

    for _ in range(_WARM_ROUNDS):
        for size in sizes:
            probe.step(size)
    repeat(_ROUNDS)
    noisy = _noisy(samples[batch])
    if noisy:
        say(f"measuring again: {len(noisy)} layer(s) vary by {NOISY:.0%} or more")
        for steps in samples.values():
            steps.clear()
        repeat(_ROUNDS + _MORE_ROUNDS)
    memory = probe.memory()
    transfers, processor = _measure_transfers(config, probe, device, batch)
    facts = [
        LayerFacts(
            name=layer.name,
            kind=layer.kind,
            input_bytes=probe.input_bytes[i],
            weight_bytes=layer.weight_bytes,
            dense_bytes=layer.dense_bytes,
            memory=memory[i],
            busy={n: Reading.of([s[i].busy for s in steps]) for n, steps in samples.items()},
            rows={n: Reading.of([s[i].rows for s in steps]) for n, steps in samples.items()},
            dense=Reading.of([s[i].dense for s in samples[batch]]),
            transfer=transfers[i] if i < len(transfers) else {},
            transfer_processor=processor[i] if i < len(processor) else {},
        )
        for i, layer in enumerate(model.layered.layers)
    ]
    return facts, len(noisy)


def _measure_feed(config: RunConfig, model: UserModel, data: Data, device: torch.device, batch: int) -> float:
    """Seconds in which the feed prepares a whole batch, with as many threads as it has."""
    source = BatchSource(config, data, model.layered.tables, device)
    module = model.stage(0, len(model.layered.layers) - 1, device)
    whole_batches = max(1, data.train.num_rows // config.global_batch_size)
    seconds = []
    for number in range(_WARM_ROUNDS + _ROUNDS):
        step = number % whole_batches
        began = time.perf_counter()
        source.prepare(step, step + 1, [MicroBatch(0, 0, batch, (0,))], module, training=True, num_servers=2)
        seconds.append(time.perf_counter() - began)
    return Reading.of(seconds[_WARM_ROUNDS:]).seconds / source.threads


def _noisy(steps: list[list[LayerSeconds]]) -> list[int]:
    readings = [Reading.of([s.busy for s in layer]) for layer in zip(*steps, strict=True)]
    whole = sum(r.seconds for r in readings)
    return [i for i, reading in enumerate(readings) if is_noisy(reading, whole)]


def _measure_transfers(
    config: RunConfig, probe: LayerProbe, device: torch.device, batch: int
) -> tuple[list[dict[int, Reading]], list[dict[int, Reading]]]:
    """Seconds of each cut by size, and processor seconds."""
    largest = max(1, batch // config.micro_batches)
    sizes = sorted({largest, max(1, largest // 4)})
    seconds: list[dict[int, Reading]] = [{} for _ in probe.stages[:-1]]
    processor: list[dict[int, Reading]] = [{} for _ in probe.stages[:-1]]
    link = TransferProbe(device, LinkSecurity(secrets.token_hex(16), config.encrypted))
    try:
        for size in sizes:
            for i, cut in enumerate(probe.cuts(size)):
                link.measure(cut)
                took, used = zip(*(link.measure(cut) for _ in range(_TRANSFER_ROUNDS)), strict=True)
                seconds[i][size], processor[i][size] = Reading.of(took), Reading.of(used)
    finally:
        link.close()
    return seconds, processor


def _compile(config: RunConfig, model: UserModel) -> None:
    bags = any(s.kind == "bag" for s in model.layered.stage(0, len(model.layered.layers) - 1).sites)
    sparse = SparseOptimizer.from_manifest(config.sparse_optimizer)
    dense = DenseOptimizer.from_manifest(config.dense_optimizer)
    warm_up_worker(config.dtype_name, config.wire_precision, bags=bags)
    warm_up_server(sparse, dense, config.dtype_name, config.wire_precision, rules=bool(config.tables))


def _room(pool: PoolConfig, device: torch.device) -> tuple[int, str]:
    """The number of workers that fit on this machine (1 or 2), and the reason if it is 1."""
    if pool.max_units is not None and pool.max_units < 2 * pool.units_per_pod:
        return 1, f"the pool has units for one worker (maxUnits {pool.max_units})"
    if device.type == "cpu":
        cores = usable_cores()
        if cores < 2 * pool.units_per_pod:
            return 1, f"this process may use {cores:g} core(s), two workers need {2 * pool.units_per_pod}"
        return 2, ""
    cards = torch.cuda.device_count() if device.type == "cuda" else torch.xpu.device_count()
    return (2, "") if cards > 1 else (1, "there is one accelerator here")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return device.type


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()
