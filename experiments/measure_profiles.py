"""Measure the paper's models on this machine's CPU, derive the rest, and write experiments/profiles/MODEL.json.

    python -m experiments.measure_profiles [MODEL...]      # all of them take 12 minutes on a quiet machine

docs/models.md describes what is measured, counted and assumed. Each model is profiled by `heterps profile`, one worker
on one core, several times in turns with the others; a number is the median of the profiles. Compute times of the pool
`cpu` are the measured ones; everything else follows from counts of the layers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, Chunk, ClickLog, ClickLogSpec, write_click_log

from experiments.clusters import FLOOR_OF_CLUSTER
from experiments.counting import count_layers
from experiments.devices import CPU_CORES, CPU_PARALLEL_FRACTION, DEVICES, add_pool, with_transfer
from heterps_planner.model.problem import LayerTimes, Pool, Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.search.limits import fastest
from heterps_runtime.store.initial import EmbeddingInit, TableSpec
from heterps_runtime.store.optimizers import SparseOptimizer
from heterps_runtime.store.rows import RowStore

ROOT = Path(__file__).resolve().parent.parent
PROFILES = ROOT / "experiments" / "profiles"
LOG = ClickLogSpec(seed=1)
ROWS = 100_000
BATCH = 1024  # of the measured step: a worker's share of a large batch
GLOBAL_BATCH = 65_536  # of the planned job, as in the MLPerf benchmark of DLRM
SAMPLES = 4_195_197_692  # the Criteo 1 TB click log, once
MAX_CORES, MAX_CARDS = 480, 32  # the paper's cluster: 10 x 48 cores, 4 x 8 V100
#: Core-seconds per byte of a server's thread for the network (ZeroMQ over loopback: 1 ms for 1.6 MB, both ends).
TRANSPORT_SECONDS_PER_BYTE = 0.5e-3 / 1.6e6
_SERVER_ROUNDS = 30
REPEATS = 3  # profiles of each model: the speed of a virtual machine differs from minute to minute
_PROBE_SECONDS = 3.0  # of products of matrices before each profile, which show how steady the machine is
_SPARSE = {"name": "rowwise-adagrad", "learningRate": "0.05"}
_INIT = {"distribution": "normal", "mean": "0", "std": "0.05"}


class Model(NamedTuple):
    """One of the paper's models."""

    module: str
    arguments: Mapping[str, Any]


#: By the name of the profile. CTRDNN1 and CTRDNN2 are the narrow and the wide one of section 6.3.
MODELS: Mapping[str, Model] = {
    "matchnet": Model("matchnet", {}),
    "ctrdnn": Model("ctrdnn", {"layers": 16}),
    "ctrdnn-8": Model("ctrdnn", {"layers": 8}),
    "ctrdnn-12": Model("ctrdnn", {"layers": 12}),
    "ctrdnn-20": Model("ctrdnn", {"layers": 20}),
    "ctrdnn1": Model("ctrdnn", {"layers": 7, "hidden": 128, "embedding_dim": 8}),
    "ctrdnn2": Model("ctrdnn", {"layers": 7, "hidden": 1024, "embedding_dim": 64}),
    "2emb": Model("twoemb", {}),
    "nce": Model("nce", {}),
}


def measure(model: Model, data: Path, folder: Path) -> Problem:
    """Profile a model as users do: `heterps profile JOB --to FILE`.

    Raises:
        SystemExit: the profiler failed; its output is shown.
    """
    job, result = folder / "job.yaml", folder / "problem.json"
    job.write_text(yaml.safe_dump_all(_manifest(model, data)), encoding="utf-8")
    command = [sys.executable, "-m", "heterps_operator", "profile", str(job), "--to", str(result), "--quiet"]
    command += ["--work-directory", str(folder / "work")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # for the model's entrypoint
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode:
        sys.exit(f"heterps profile failed with code {ran.returncode}:\n{ran.stderr[-3000:]}")
    return Problem.from_json(json.loads(result.read_text(encoding="utf-8")))


def _manifest(model: Model, data: Path) -> list[dict[str, Any]]:
    api = {"apiVersion": "heterps.io/v1alpha1"}
    core = {"deviceType": "CPU", "resourceName": "cpu", "torchDevice": "cpu", "maxUnits": 1, "pricePerUnitHour": "0.04"}
    spec = {
        "image": "ghcr.io/heterps/runtime:0.1.0",
        "model": {
            "entrypoint": f"examples.paper.clicks.{model.module}:build",
            "arguments": dict(model.arguments),
            "loss": "torch.nn.functional:binary_cross_entropy_with_logits",
            "embeddingInit": _INIT,
        },
        "data": {
            "format": "parquet",
            "train": str(data / "train"),
            "label": LABEL,
            "dense": list(NUMBERS),
            "sparse": list(FIELDS),
            "cache": {"directory": str(data.parent / "cache")},
        },
        "training": {
            "globalBatchSize": BATCH,
            "epochs": 1,
            "consistency": "hybrid",
            "maxStaleness": 4,
            "optimizer": {"dense": {"name": "adam", "learningRate": "0.001"}, "sparse": _SPARSE},
            "seed": 1,
        },
        "pools": [{"name": "cpu"}],
    }
    return [
        {**api, "kind": "DevicePool", "metadata": {"name": "cpu"}, "spec": core},
        {**api, "kind": "HeterPSJob", "metadata": {"name": "profile"}, "spec": spec},
    ]


def server_seconds_per_byte(rows: Chunk, dim: int = 16) -> float:
    """Core-seconds of a parameter server per byte of rows: pulled once, gradients applied once, so two bytes' way.

    Measured on the store itself, with the distinct ids of real batches. Wider rows cost a little less per byte.
    """
    table = TableSpec("table", LOG.ids, EmbeddingInit.from_manifest(_INIT), None)
    store = RowStore(dim, np.dtype(np.float32), SparseOptimizer.from_manifest(_SPARSE), 0, {0: table})
    random = np.random.default_rng(0)
    rates = []
    batches = [np.unique(rows.ids[i * BATCH : (i + 1) * BATCH]) for i in range(_SERVER_ROUNDS)]
    for step, keys in enumerate([*batches, *batches], start=1):
        gradients = random.standard_normal((len(keys), dim), dtype=np.float32)
        began = time.thread_time()
        pulled = store.pull(keys)
        store.apply([(keys, gradients)], 1 / BATCH, step)
        if step > _SERVER_ROUNDS:  # rows exist after that
            rates.append((time.thread_time() - began) / (pulled.nbytes + gradients.nbytes))
    return statistics.median(rates) + TRANSPORT_SECONDS_PER_BYTE


def median_times(measured: Sequence[LayerTimes]) -> LayerTimes:
    """Return the medians over several profiles of a layer, in the terms of the paper's cost model.

    That has no wait for servers and no shared cores: all of a layer's time follows Amdahl's law.
    """
    return LayerTimes(
        compute_seconds=statistics.median(times.compute_seconds for times in measured),
        compute_fixed_seconds=statistics.median(times.compute_fixed_seconds for times in measured),
        parallel_fraction=CPU_PARALLEL_FRACTION,
        spread=statistics.median(times.spread for times in measured),
        derived="compute measured on one core; parallelFraction and transfer derived",
        source=f"heterps profile, {BATCH} samples",
    )


class Probe:
    """A product of matrices, repeated: its spread is that of the machine, whatever the profiler does."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._factors = [torch.randn(512, 512) for _ in range(2)]
        self._seconds: list[float] = []

    def run(self, seconds: float = _PROBE_SECONDS) -> None:
        """Measure for a while, on one thread."""
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            torch.matmul(*self._factors)
            self._seconds.append(time.perf_counter() - began)

    @property
    def spread(self) -> float:
        """Interquartile range over median of all products so far."""
        low, middle, high = np.percentile(self._seconds, (25, 50, 75))
        return float((high - low) / middle)


def complete(profiles: Sequence[Problem], name: str, rows: Chunk, machine: Mapping[str, Any]) -> Problem:
    """Build the paper's cluster from measured layers: cores as measured, cards derived, servers charged, a floor."""
    model = MODELS[name]
    counts = count_layers(f"examples.paper.clicks.{model.module}:build", model.arguments, rows)
    layers = []
    for i, layer in enumerate(profiles[0].layers):
        times = median_times([profile.layers[i].pools["cpu"] for profile in profiles])
        times = with_transfer(times, counts[layer.name], "CPU", BATCH)
        layers.append(replace(layer, kind=_kind(layer.kind), pools={"cpu": times}))
    price = CPU_CORES["xeon-6271c"].price_per_hour
    overheads = [profile.pools[0].stage_seconds for profile in profiles]
    overhead = statistics.median(overheads)  # one worker: all of it is fixed
    cpu = Pool("cpu", "CPU", price, MAX_CORES, stage_seconds=overhead, stage_fixed_seconds=overhead)
    row_bytes = sum(count.row_bytes for count in counts.values())
    seconds_per_byte = server_seconds_per_byte(ClickLog(LOG).chunk(0))
    problem = Problem(
        batch_size=BATCH,
        samples=SAMPLES,
        pools=(cpu,),
        layers=tuple(layers),
        global_batch_size=GLOBAL_BATCH,
        parameter_server=ParameterServer("cpu", cores_per_sample_per_second=2 * row_bytes * seconds_per_byte),
        provenance={
            "model": {"entrypoint": f"examples.paper.clicks.{model.module}:build", "arguments": dict(model.arguments)},
            "command": f"python -m experiments.measure_profiles {name}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "measured": {
                **dict(profiles[0].provenance).get("cpu", {}),
                **machine,
                "stageSecondsOfProfiles": overheads,
            },
            "data": {"clickLog": vars(LOG), "rows": ROWS},
            "servers": {"secondsPerByte": seconds_per_byte, "rowBytesPerSample": row_bytes},
            "counts": {layer: vars(count) for layer, count in counts.items()},
        },
    )
    cpu_only = _fastest(problem)
    problem = add_pool(problem, DEVICES["v100"], max_units=MAX_CARDS)
    cluster = _fastest(problem)
    floor = _two_digits(FLOOR_OF_CLUSTER * cluster)
    reached = {"samplesPerSecondAllCores": round(cpu_only), "samplesPerSecondCluster": round(cluster)}
    return replace(problem, min_samples_per_second=floor, provenance={**problem.provenance, "floor": reached})


def _kind(kind: str) -> str:
    """Return the kind of a layer in the terms of the paper's features."""
    return {"Slot": "Embedding", "PooledSlot": "EmbeddingBag"}.get(kind, kind)


def _fastest(problem: Problem) -> float:
    throughput, _ = fastest(build_segments(problem))
    return throughput


def _two_digits(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.floor(value / unit) * unit


def main() -> None:
    """Measure the models of the command line."""
    parser = argparse.ArgumentParser(description="Measure the paper's models and write their problem files.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "experiments", help="default: %(default)s")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    data = write_click_log(options.cache / "click-log", LOG, ROWS)
    rows = ClickLog(LOG).chunk(0).rows(0, BATCH)
    PROFILES.mkdir(exist_ok=True)
    names, probe = list(dict.fromkeys(options.models or MODELS)), Probe()
    profiles: dict[str, list[Problem]] = {name: [] for name in names}
    for repeat in range(REPEATS):
        for name in names:
            began = time.monotonic()
            probe.run()
            with tempfile.TemporaryDirectory(prefix="heterps-profile-") as folder:
                profiles[name].append(measure(MODELS[name], data, Path(folder)))
            _tell(f"profile {repeat + 1} of {REPEATS}, {name}: {time.monotonic() - began:.0f} s")
    machine = {"profiles": REPEATS, "machineSpread": probe.spread}
    _tell(f"a product of matrices varies by {probe.spread:.0%} (interquartile range / median)")
    for name in names:
        problem = complete(profiles[name], name, rows, machine)
        text = json.dumps(problem.to_json(), indent=1) + "\n"
        Problem.from_json(json.loads(text))
        (PROFILES / f"{name}.json").write_text(text, encoding="utf-8")
        core = sum(layer.pools["cpu"].compute_seconds for layer in problem.layers) / BATCH
        spread = max(layer.pools["cpu"].spread for layer in problem.layers)
        _tell(
            f"{name}: {len(problem.layers)} layers, {core * 1e6:.0f} us per sample and core (spread of layers up to "
            f"{spread:.0%}), floor {problem.min_samples_per_second:,.0f} samples/s"
        )


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
