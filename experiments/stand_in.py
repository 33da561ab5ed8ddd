"""Invented profiles, used until measured ones exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from heterps_planner.problem import Layer, LayerTimes, ParameterServer, Pool, Problem

_BATCH = 512


@dataclass(frozen=True)
class Device:
    """How fast a card is relative to a V100, and its price."""

    name: str
    device_type: str
    dense_speed: float
    memory_speed: float
    price_per_hour: float


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("v100", "GPU", 1.0, 1.0, 2.42),
        Device("p100", "GPU", 0.62, 0.8, 1.46),
        Device("p4", "GPU", 0.32, 0.21, 0.60),
        Device("t4", "GPU", 0.5, 0.35, 0.53),
        Device("k80", "GPU", 0.2, 0.27, 0.45),
        Device("a10g", "GPU", 1.5, 0.66, 1.21),
        Device("l4", "GPU", 1.3, 0.33, 0.80),
        Device("a100-40", "GPU", 2.6, 1.7, 3.67),
        Device("a100-80", "GPU", 2.7, 2.2, 5.0),
        Device("h100", "GPU", 4.5, 3.7, 9.8),
        Device("rtx2080ti", "GPU", 0.85, 0.68, 0.9),
        Device("kunlun", "XPU", 1.1, 0.57, 1.6),
    )
}

# name -> (embedding layers at these indices, number of layers, width factor)
_MODELS: Mapping[str, tuple[tuple[int, ...], int, float]] = {
    "matchnet": ((0, 5, 9), 16, 1.3),
    "ctrdnn": ((0,), 16, 1.0),
    "ctrdnn-8": ((0,), 8, 1.0),
    "ctrdnn-12": ((0,), 12, 1.0),
    "ctrdnn-20": ((0,), 20, 1.0),
    "ctrdnn1": ((0,), 7, 0.5),
    "ctrdnn2": ((0,), 7, 1.5),
    "2emb": ((0, 3), 10, 0.8),
    "nce": ((0,), 5, 0.25),
}


def load_profile(model: str) -> Problem:
    """An invented profile with pools cpu and v100."""
    embeddings, count, width = _MODELS[model]
    layers = []
    for i in range(count):
        if i in embeddings:
            cpu = LayerTimes(0.030 * (1 + 0.2 * i), 0.97, 0.012, 0.95)
            card = LayerTimes(0.020 * (1 + 0.2 * i), 0.93, 0.006, 0.95)
        elif i % 2:
            seconds = width * 0.9 / (1 + 0.25 * i)
            cpu = LayerTimes(seconds, 0.985, 0.010 / (1 + 0.1 * i), 0.95)
            card = LayerTimes(seconds / 150, 0.97, 0.005 / (1 + 0.1 * i), 0.95)
        else:
            cpu = LayerTimes(0.008, 0.98, 0.010 / (1 + 0.1 * i), 0.95)
            card = LayerTimes(0.0006, 0.95, 0.005 / (1 + 0.1 * i), 0.95)
        kind = "Embedding" if i in embeddings else "Linear" if i % 2 else "ReLU"
        layers.append(Layer(f"layer{i}", {"cpu": cpu, "v100": card}, kind, 4096.0, 1e6))
    pools = (Pool("cpu", "CPU", 0.04, 480), Pool("v100", "GPU", 2.42, 32))
    return Problem(
        batch_size=_BATCH,
        samples=1e10,
        pools=pools,
        layers=tuple(layers),
        min_samples_per_second=150_000.0,
        parameter_server=ParameterServer("cpu", cores_per_sample_per_second=0.0001),
    )


def add_pool(
    problem: Problem, device: Device, *, price: float | None = None, max_units: int = 32, name: str | None = None
) -> Problem:
    """Add a pool of a device, its times derived from those on the V100."""
    label = name or device.name
    layers = []
    for layer in problem.layers:
        times = layer.pools["v100"]
        speed = device.memory_speed if layer.kind == "Embedding" else device.dense_speed
        scaled = replace(times, compute_seconds=times.compute_seconds / speed)
        layers.append(replace(layer, pools={**layer.pools, label: scaled}))
    pool = Pool(label, device.device_type, device.price_per_hour if price is None else price, max_units)
    return replace(problem, pools=(*problem.pools, pool), layers=tuple(layers))
