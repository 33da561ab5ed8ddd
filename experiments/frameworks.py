"""Figure 12: throughput of CTRDNN1 and CTRDNN2 under HeterPS beside TensorFlow on cores, and on cores, a card and both.

All train the same network on the same click log with the same global batch, embedding sizes and optimizers, in float32:

- HeterPS: two workers of one thread and one parameter server, rows `hybrid`, the dense part synchronised.
- TensorFlow, parameter servers: two workers of one thread, one server and a chief, asynchronous.
- TensorFlow, one process: with a thread for each core.

On a machine with a card, HeterPS trains on cores alone, on the card alone, and with lookups on cores and the other
layers on the card, beside plain PyTorch in one process with all tables in the card's memory.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks._clicks import read_log
from benchmarks._environments import TENSORFLOW
from benchmarks._jobs import Job, Run
from benchmarks._tensorflow import tensorflow_command, tensorflow_variables
from examples.paper.clicks.ctrdnn import build
from examples.paper.prepare import FIELDS, NUMBERS, ClickLogSpec, write_click_log
from numpy.typing import NDArray

from experiments.control_groups import ControlGroups, unavailable
from experiments.executions import lacks_card
from experiments.framework import ROOT, Cell, Experiment, Row, Settings
from heterps_operator.api.manifest import load_manifest
from heterps_planner import Plan, PlanStage, Servers

__all__ = ["EXPERIMENT", "ON_CARD", "ON_CARD_SYSTEMS", "SYSTEMS"]

SYSTEMS = ("HeterPS", "TensorFlow, parameter servers", "TensorFlow, one process")
_SOURCES = (
    "experiments/frameworks.py",
    "experiments/control_groups.py",
    "benchmarks/_environments.py",
    "benchmarks/_jobs.py",
    "benchmarks/_tensorflow.py",
    "benchmarks/_tensorflow_clicks.py",
    "benchmarks/_tensorflow_model.py",
    "examples/paper/clicks",
    "runtime/heterps_runtime",
)
_NETWORKS: Mapping[str, dict[str, int]] = {
    "ctrdnn1": {"layers": 7, "hidden": 128, "embedding_dim": 8},
    "ctrdnn2": {"layers": 7, "hidden": 1024, "embedding_dim": 64},
}
_REPEATS = 3
_WORKERS = 2
_BATCH = 4096  # of all workers
_ROWS, _IDS = 200_000, 1_000_000
_WARM_UP = 12
_SECONDS = 5.0
_DENSE_RATE, _SPARSE_RATE, _EMBEDDING_STD, _SEED = 0.001, 0.05, 0.05, 17
_PATIENCE_SECONDS = 240

#: Systems on a machine with a card, and their global batches: that of the cores, and one that a card has use for.
ON_CARD_SYSTEMS: Mapping[str, tuple[int, ...]] = {
    "HeterPS, cores": (4096,),
    "HeterPS, card": (4096, 32_768),
    "HeterPS, both": (32_768,),
    "PyTorch, card": (4096, 32_768),
}
_CARD_WORKERS = 8  # on cores, with a server for two
_LOOKUP_LAYERS = 4  # three lookups and the concatenation


@functools.cache
def _unavailable() -> str:
    """Return why TensorFlow cannot be installed here; empty if it is."""
    try:
        TENSORFLOW.install()
    except (subprocess.CalledProcessError, OSError):
        return "TensorFlow could not be installed"
    return ""


def _cells(settings: Settings) -> list[Cell]:
    if settings.quick:  # with what is installed already
        return [{"model": "ctrdnn1", "repeat": 0, "system": SYSTEMS[0], "warm_up": 2, "seconds": 0.5}]
    systems = SYSTEMS[:1] if _unavailable() else SYSTEMS
    return [
        {"model": model, "repeat": repeat, "system": system, "warm_up": _WARM_UP, "seconds": _SECONDS}
        for repeat in range(min(_REPEATS, settings.seeds))
        for model in _NETWORKS
        for system in systems
    ]


def _run(cell: Cell) -> list[Row]:
    data = _log()
    with tempfile.TemporaryDirectory(prefix="heterps-figure-12-") as folder, ExitStack() as stack:
        if not unavailable():
            stack.enter_context(ControlGroups())  # without limits, but before other programs
        if cell["system"] == SYSTEMS[0]:
            last = _NETWORKS[cell["model"]]["layers"] - 1
            stage = PlanStage("stage-0", "cpu", 0, last, (), _WORKERS, _WORKERS, 0.0)
            rate, seconds = _heterps({**cell, "batch": _BATCH}, Path(folder), data, (stage,), 1)
        else:
            rate, seconds = _tensorflow(cell, Path(folder), data)
    facts: Row = {name: cell[name] for name in ("model", "repeat", "system")}
    return [facts | {"samples_per_second": rate, "seconds": seconds}]


def _card_cells(settings: Settings) -> list[Cell]:
    shared = {"warm_up": _WARM_UP, "seconds": _SECONDS}
    if settings.quick:  # of which `card` is the cores
        small = {"batch": 512, "workers": 1, "warm_up": 2, "seconds": 0.5, "repeat": 0, "model": "ctrdnn1"}
        return [{**small, "system": system} for system in ("HeterPS, both", "PyTorch, card")]
    return [
        {"model": model, "repeat": repeat, "system": system, "batch": batch, "workers": _CARD_WORKERS, **shared}
        for repeat in range(min(_REPEATS, settings.seeds))
        for model in _NETWORKS
        for system, batches in ON_CARD_SYSTEMS.items()
        for batch in batches
    ]


def _run_on_card(cell: Cell) -> list[Row]:
    data = _log()
    with tempfile.TemporaryDirectory(prefix="heterps-figure-12-") as folder:
        if cell["system"] == "PyTorch, card":
            rate, seconds = _pytorch(cell, data)
        else:
            last, workers = _NETWORKS[cell["model"]]["layers"] - 1, cell["workers"]
            plans = {
                "HeterPS, cores": (PlanStage("stage-0", "cpu", 0, last, (), workers, workers, 0.0),),
                "HeterPS, card": (PlanStage("stage-0", "accelerator", 0, last, (), 1, 1, 0.0),),
                "HeterPS, both": (
                    PlanStage("stage-0", "cpu", 0, _LOOKUP_LAYERS - 1, (), workers, workers, 0.0),
                    PlanStage("stage-1", "accelerator", _LOOKUP_LAYERS, last, (), 1, 1, 0.0),
                ),
            }
            rate, seconds = _heterps(cell, Path(folder), data, plans[cell["system"]], -(-workers // 2))
    facts: Row = {name: cell[name] for name in ("model", "repeat", "system", "batch")}
    return [facts | {"samples_per_second": rate, "seconds": seconds}]


def _log() -> Path:
    return write_click_log(ROOT / ".cache" / "experiments" / "executions-log", ClickLogSpec(seed=3), _ROWS) / "train"


def _heterps(cell: Cell, folder: Path, data: Path, stages: tuple[PlanStage, ...], servers: int) -> tuple[float, float]:
    """Return samples per second of HeterPS, and the seconds they were measured in."""
    manifest = load_manifest(ROOT / "examples" / "paper" / "ctrdnn.yaml")
    job = copy.deepcopy(manifest.job)
    job["spec"]["model"]["arguments"] = _NETWORKS[cell["model"]]
    job["spec"]["model"]["embeddingInit"] = {"distribution": "normal", "mean": "0", "std": str(_EMBEDDING_STD)}
    training: dict[str, Any] = {
        "globalBatchSize": cell["batch"],
        "optimizer": {
            "dense": {"name": "adam", "learningRate": str(_DENSE_RATE)},
            "sparse": {"name": "adagrad", "learningRate": str(_SPARSE_RATE)},
        },
    }
    plan = Plan("fixed", stages, Servers("cpu", servers, servers), 0.0, 0.0, 0.0, 0.0, 0.0, optimal=False)
    started = Job(replace(manifest, job=job), folder, ROOT / "examples" / "paper", training, data)
    rate = started.run(plan, Run(cell["warm_up"], 10**6, cell["seconds"]))
    return rate.samples_per_second, rate.seconds


def _pytorch(cell: Cell, data: Path) -> tuple[float, float]:
    """Return the same of plain PyTorch: all tables and parameters on the card, batches in pinned memory."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ids, numbers, labels = read_log(data)
    columns = [_pinned(array) for array in (ids % _IDS, numbers, labels)]
    batch = cell["batch"]
    torch.manual_seed(_SEED)
    model = build(**_NETWORKS[cell["model"]], sparse=True).to(device)
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)]
    held = {id(table) for table in tables}
    for table in tables:
        torch.nn.init.normal_(table, std=_EMBEDDING_STD)
    optimizers = (
        torch.optim.Adam([p for p in model.parameters() if id(p) not in held], lr=_DENSE_RATE, fused=True),
        torch.optim.Adagrad(tables, lr=_SPARSE_RATE),
    )

    def step(number: int) -> None:
        begin = number * batch % (len(labels) - batch + 1)
        part = slice(begin, begin + batch)
        here = [column[part].to(device, non_blocking=True) for column in columns]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model.score(list(here[0].T), here[1]), here[2])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        for number in range(cell["warm_up"]):
            step(number)
        began, steps = wait(), 0
        while (now := time.monotonic()) - began < cell["seconds"]:
            for _ in range(10):  # the host may be ahead of the card by so many
                step(cell["warm_up"] + steps)
                steps += 1
            now = wait()
    return steps * batch / (now - began), now - began


def _pinned(array: NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def _tensorflow(cell: Cell, folder: Path, data: Path) -> tuple[float, float]:
    """Return the same of TensorFlow."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 + _WORKERS)]
        chief, server, *workers = (f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)
    settings = {
        "records": str(_records(folder, data)),
        "arguments": _NETWORKS[cell["model"]],
        "rows": _IDS,
        "batch": _BATCH,
        "warmUp": cell["warm_up"],
        "seconds": cell["seconds"],
        "denseRate": _DENSE_RATE,
        "sparseRate": _SPARSE_RATE,
        "embeddingStd": _EMBEDDING_STD,
        "seed": _SEED,
        "cluster": {"chief": [chief], "ps": [server], "worker": workers},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    alone = cell["system"] == SYSTEMS[2]
    others = [] if alone else [("ps", 0), *(("worker", index) for index in range(_WORKERS))]
    with (folder / "log").open("wb") as log:

        def start(role: str, index: int) -> subprocess.Popen[bytes]:
            arguments = (str(folder / "settings.json"), role, str(index))
            command = tensorflow_command("benchmarks._tensorflow_clicks", *arguments)
            variables = tensorflow_variables(_WORKERS if role == "single" else 1)
            return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=log)

        serving = [start(role, index) for role, index in others]
        try:
            leader = start("single" if alone else "chief", 0)
            serving.append(leader)
            printed, _ = leader.communicate(timeout=_PATIENCE_SECONDS)
        finally:
            for process in serving:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
    if leader.returncode:
        raise SystemExit(f"TensorFlow failed:\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
    result = json.loads(printed)
    return result["samples"] / result["seconds"], result["seconds"]


def _records(folder: Path, data: Path) -> Path:
    """Write the log as records of 26 ids, 13 numbers and the label, of 4 bytes each."""
    ids, numbers, labels = read_log(data)
    record = np.dtype([("ids", "<i4", len(FIELDS)), ("numbers", "<f4", len(NUMBERS)), ("label", "<f4")])
    records = np.empty(len(labels), record)
    records["ids"], records["numbers"], records["label"] = ids % _IDS, numbers, labels
    records.tofile(folder / "records")
    return folder / "records"


EXPERIMENT = Experiment(
    name="figure-12",
    subject="throughput of CTRDNN1 and CTRDNN2 under HeterPS beside TensorFlow, on cores",
    cells=_cells,
    run=_run,
    seconds=lambda cell: 13.0,
    sources=_SOURCES,
    alone=True,
)

ON_CARD = Experiment(
    name="figure-12-card",
    subject="throughput of CTRDNN1 and CTRDNN2 on cores, a CUDA card and both, beside PyTorch on the card",
    cells=_card_cells,
    run=_run_on_card,
    seconds=lambda cell: 13.0,
    sources=_SOURCES,
    alone=True,
    lacking=lacks_card,
)
