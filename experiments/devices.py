"""Devices with their published figures, and the times of a model's layers on them by a roofline.

Layers are measured on CPU cores (`measure_profiles`). On any other device their times are derived (docs/models.md):

    compute = max(FLOPs / (peak * 0.5), bytes moved / (memory bandwidth * 0.75)),

because a kernel ends when its arithmetic and its traffic are both done (Williams, Waterman, Patterson, "Roofline",
2009). Embedding rows are never on a card: its host looks them up, like a CPU worker, with one card's share of cores and
network. Derived values are marked as such in the problem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heterps_planner.model.problem import Layer, LayerTimes, Pool, Problem

__all__ = ["CPU_CORES", "DEVICES", "Device", "LayerCounts", "add_pool", "derive_times", "load_profile", "with_transfer"]

_PROFILES = Path(__file__).parent / "profiles"

#: The paper's servers (section 6): 2 x 24 cores, 8 cards where there are cards, one 100 Gbit/s InfiniBand port.
CORES_PER_SERVER, CARDS_PER_SERVER, NETWORK_BYTES_PER_SECOND = 48, 8, 12.5e9
HOST_CORES_PER_CARD = CORES_PER_SERVER / CARDS_PER_SERVER

#: Share of the published peaks that is reached. Matrix products of a few hundred columns in full float32, and streams.
COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY = 0.5, 0.75
LAUNCH_SECONDS = 10e-6  # of one operation in PyTorch's eager mode, paid once per batch
LATENCY_SECONDS = 50e-6  # of one message between stages
#: alpha of a CPU core. Published speeds of Wide&Deep on Paddle's parameter servers rise from 285,000 to 1,020,000
#: samples/s from 4 to 16 servers of 16 threads (Paddle fleet documentation): a serial part of 0.00064 per thread.
CPU_PARALLEL_FRACTION = 0.9994
#: alpha of a card. 256 GPUs work like 128 (Li et al., "PyTorch Distributed", VLDB 2020): a serial part of 0.004.
CARD_PARALLEL_FRACTION = 0.996
#: Traffic of a layer's activations in a step, in multiples of what it reads and writes once: read and written forward,
#: read again backward together with the gradient of the output, gradient of the input written.
_ACTIVATION_PASSES = 3
#: The same for weights: read forward and backward, gradient written, read with weight and state by the optimizer.
_WEIGHT_PASSES = 6


@dataclass(frozen=True)
class Device:
    """One unit with its published figures and its cloud price."""

    name: str
    title: str
    device_type: str  # CPU: one core; GPU, XPU: one card
    peak_flops: float  # float32, per second
    memory_bandwidth: float  # bytes per second
    memory_bytes: float
    host_bandwidth: float  # bytes per second to the host, one way; for a core: its share of the memory bandwidth
    price_per_hour: float  # dollars
    source: str
    price_source: str


def _card(
    name: str,
    title: str,
    teraflops: float,
    gigabytes_per_second: float,
    gigabytes: float,
    pcie: int,
    price: float,
    source: str,
    price_source: str,
    device_type: str = "GPU",
) -> Device:
    """Return a card in PCI Express of a generation: 12, 25 or 50 GB/s of 16 lanes remain after protocol overhead."""
    host = {3: 12e9, 4: 25e9, 5: 50e9}[pcie]
    figures = (teraflops * 1e12, gigabytes_per_second * 1e9, gigabytes * 1e9, host)
    return Device(name, title, device_type, *figures, price, source, price_source)


_GOOGLE = "Google Cloud, on demand, us-central1"
#: Accelerators. Float32 without TF32, which is what the runtime computes in.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _card("v100", "NVIDIA V100 SXM2 16GB", 15.7, 900, 16, 3, 2.42, "NVIDIA V100 data sheet", "HeterPS, section 6"),
        _card("p100", "NVIDIA P100 PCIe 16GB", 9.3, 732, 16, 3, 1.46, "NVIDIA Tesla P100 data sheet", _GOOGLE),
        _card("p4", "NVIDIA P4", 5.5, 192, 8, 3, 0.60, "NVIDIA Tesla P4 data sheet", _GOOGLE),
        _card("t4", "NVIDIA T4", 8.1, 320, 16, 3, 0.35, "NVIDIA T4 data sheet", _GOOGLE),
        _card("k80", "NVIDIA K80, one of two GPUs", 4.37, 240, 12, 3, 0.45, "NVIDIA Tesla K80 board spec", _GOOGLE),
        _card("a10g", "NVIDIA A10", 31.2, 600, 24, 4, 1.006, "NVIDIA A10 data sheet", "AWS g5.xlarge, on demand"),
        _card("l4", "NVIDIA L4", 30.3, 300, 24, 4, 0.805, "NVIDIA L4 data sheet", "AWS g6.xlarge, on demand"),
        _card("l40s", "NVIDIA L40S", 91.6, 864, 48, 4, 1.861, "NVIDIA L40S data sheet", "AWS g6e.xlarge, on demand"),
        _card("a100-40", "NVIDIA A100 SXM 40GB", 19.5, 1555, 40, 4, 3.67, "NVIDIA A100 data sheet", _GOOGLE),
        _card("a100-80", "NVIDIA A100 SXM 80GB", 19.5, 2039, 80, 4, 5.07, "NVIDIA A100 data sheet", _GOOGLE),
        _card("h100", "NVIDIA H100 SXM 80GB", 66.9, 3350, 80, 5, 11.06, "NVIDIA H100 data sheet", _GOOGLE),
        _card("rtx2080ti", "NVIDIA RTX 2080 Ti", 13.4, 616, 11, 3, 0.30, "NVIDIA Turing whitepaper", "assumed"),
        _card("kunlun-k200", "Baidu Kunlun K200", 16, 512, 16, 4, 1.50, "Ouyang, Hot Chips 2020", "assumed", "XPU"),
        _card("kunlun-r200", "Baidu Kunlun R200", 32, 512, 16, 4, 2.00, "Kunlunxin R200 brief", "assumed", "XPU"),
    )
}


def _core(
    name: str, title: str, ghz: float, flops: int, server: tuple[float, int], price: float, source: tuple[str, str]
) -> Device:
    """Return a core: FLOPs per cycle, and its share of (memory GB/s, cores) of a processor."""
    bandwidth = server[0] * 1e9 / server[1]
    return Device(name, title, "CPU", ghz * 1e9 * flops, bandwidth, 10e9, bandwidth, price, *source)


#: CPU cores. The measured core stands for the first one, the paper's.
CPU_CORES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _core(
            "xeon-6271c",
            "Intel Xeon Gold 6271C, 24 cores",
            2.0,  # all cores, AVX-512
            64,
            (140.8, 24),
            0.04,
            ("Intel Xeon Scalable (Cascade Lake) specifications", "HeterPS, section 6"),
        ),
        _core(
            "epyc-7763",
            "AMD EPYC 7763, 64 cores",
            2.45,
            32,
            (204.8, 64),
            0.0765,  # two vCPUs per core
            ("AMD EPYC 7003 data sheet", "AWS c6a, on demand"),
        ),
        _core(
            "graviton3",
            "AWS Graviton3, 64 cores",
            2.6,
            32,
            (307.2, 64),
            0.0363,
            ("AWS Graviton technical guide", "AWS c7g, on demand"),
        ),
    )
}


@dataclass(frozen=True)
class LayerCounts:
    """Operation counts of a layer, per sample, forward and backward, except weights and operations.

    `row_bytes` counts pulled or pushed rows, each distinct row of a batch once.
    """

    flops: float
    activation_bytes: float  # read and written once, forward
    row_bytes: float
    looked_up_bytes: float  # result of the lookups, forward
    cut_bytes: float  # transferred if the pipeline is cut after the layer, both ways
    weight_bytes: float  # dense parameters
    operations: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LayerCounts:
        """Restore the result of `vars`."""
        return cls(**value)


def derive_times(
    layers: Sequence[Layer],
    counts: Sequence[LayerCounts],
    device: Device,
    *,
    batch_size: int,
    measured_pool: str = "cpu",
) -> list[LayerTimes]:
    """Return times of layers on one unit of a device, seconds per batch.

    Args:
        layers: measured on CPU cores.
        counts: counts of each layer.
        device: a card, or a core of another kind than the measured one.
        batch_size: batch size of the times, B_o.
        measured_pool: pool of the measured times in `layers`.
    """
    derive = _on_core if device.device_type == "CPU" else _on_card
    result = []
    for layer, count in zip(layers, counts, strict=True):
        fixed, per_sample = derive(layer.pools[measured_pool], count, device, batch_size)
        times = LayerTimes(
            compute_seconds=fixed + per_sample * batch_size,
            compute_fixed_seconds=fixed,
            parallel_fraction=CPU_PARALLEL_FRACTION if device.device_type == "CPU" else CARD_PARALLEL_FRACTION,
            derived=f"roofline of {device.title}",
            source=device.source,
        )
        result.append(with_transfer(times, count, device.device_type, batch_size))
    return result


def with_transfer(times: LayerTimes, count: LayerCounts, device_type: str, batch_size: int) -> LayerTimes:
    """Add the transfer after the layer, from its bytes and a unit's share of its server's network.

    Every unit uses its share, so the part that grows with the batch is divided by k.
    """
    if not count.cut_bytes:
        return times
    fixed = 2 * LATENCY_SECONDS  # both directions; the planner counts it once per micro-batch
    seconds = fixed + count.cut_bytes * batch_size / _network_share(device_type)
    return replace(times, transfer_seconds=seconds, transfer_fixed_seconds=fixed, transfer_parallel_fraction=1.0)


def _network_share(device_type: str) -> float:
    return NETWORK_BYTES_PER_SECOND / (CORES_PER_SERVER if device_type == "CPU" else CARDS_PER_SERVER)


def _on_card(measured: LayerTimes, count: LayerCounts, device: Device, batch_size: int) -> tuple[float, float]:
    """Return seconds per batch and seconds per sample."""
    compute, memory = device.peak_flops * COMPUTE_EFFICIENCY, device.memory_bandwidth * MEMORY_EFFICIENCY
    traffic = _ACTIVATION_PASSES * count.activation_bytes
    per_sample = max(count.flops / compute, traffic / memory)
    if count.row_bytes:
        # The host prepares rows while the card computes, but not faster than the slowest part.
        host = (measured.compute_seconds - measured.compute_fixed_seconds) / batch_size / HOST_CORES_PER_CARD
        network = 2 * count.row_bytes / _network_share(device.device_type)
        per_sample += max(host, network) + 2 * count.looked_up_bytes / device.host_bandwidth
    all_reduce = 2 * count.weight_bytes / NETWORK_BYTES_PER_SECOND  # a ring passes each server's port once
    fixed = LAUNCH_SECONDS * 3 * count.operations + _WEIGHT_PASSES * count.weight_bytes / memory + all_reduce
    return fixed, per_sample


def _on_core(measured: LayerTimes, count: LayerCounts, device: Device, batch_size: int) -> tuple[float, float]:
    """Scale the measured times by the layer's bottleneck on the measured core: arithmetic or memory."""
    reference = CPU_CORES["xeon-6271c"]
    traffic = _ACTIVATION_PASSES * count.activation_bytes + 2 * count.row_bytes
    bound_by_memory = traffic / reference.memory_bandwidth > count.flops / reference.peak_flops
    slower = (
        reference.memory_bandwidth / device.memory_bandwidth
        if bound_by_memory
        else reference.peak_flops / device.peak_flops
    )
    fixed = measured.compute_fixed_seconds * slower
    return fixed, (measured.compute_seconds - measured.compute_fixed_seconds) / batch_size * slower


def add_pool(
    problem: Problem, device: Device, *, price: float | None = None, max_units: int = 32, name: str | None = None
) -> Problem:
    """Add a pool with derived times to a profile's problem.

    Args:
        problem: from `load_profile`, or from this function.
        device: device of the pool.
        price: dollars per unit and hour; None: the device's.
        max_units: limit.
        name: name of the pool; None: the device's.

    Raises:
        ValueError: the pool already exists, or the problem has no counts of its layers.
    """
    label = name or device.name
    if any(pool.name == label for pool in problem.pools):
        raise ValueError(f"the problem has a pool {label!r} already; give the new one another name")
    if "counts" not in problem.provenance:
        raise ValueError("the problem's provenance has no counts of its layers; take one from load_profile")
    counts = [LayerCounts.from_json(problem.provenance["counts"][layer.name]) for layer in problem.layers]
    times = derive_times(problem.layers, counts, device, batch_size=problem.batch_size)
    layers = tuple(
        replace(layer, pools={**layer.pools, label: entry}) for layer, entry in zip(problem.layers, times, strict=True)
    )
    # A stage's overhead comes from the protocol, on any device.
    stage = problem.pools[0].stage_fixed_seconds
    pool = Pool(
        label,
        device.device_type,
        device.price_per_hour if price is None else price,
        max_units,
        stage_seconds=stage,
        stage_fixed_seconds=stage,
    )
    return replace(problem, pools=(*problem.pools, pool), layers=layers)


def load_profile(model: str) -> Problem:
    """Return the stored problem of a model, with the pools `cpu` (measured) and `v100` (derived).

    Args:
        model: a file's name in experiments/profiles, such as `ctrdnn`.

    Raises:
        ValueError: there is no such profile; the message names the existing ones.
    """
    path = _PROFILES / f"{model}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _PROFILES.glob("*.json"))) or "none"
        raise ValueError(f"no profile {model!r}; there are: {known}")
    return Problem.from_json(json.loads(path.read_text(encoding="utf-8")))
