"""Small tasks and fake entrants."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._peers.entrants import Entrant, Role

__all__ = ["fake", "write_small_task"]

_ROWS, _DIM, _HIDDEN, _NUMBERS = 40, 4, (8, 6), 3
_SLOTS = ((0, 2), (2, 3))
_STEPS, _BATCH, _PARTS, _HELD_OUT = 12, 32, 2, 200


def fake(behaviour: str, *roles: Role, **facts: Any) -> Entrant:
    """Return an entrant of the fake program."""
    return Entrant("fake", "fake", roles, {"behaviour": behaviour}, **facts)


def write_small_task(folder: Path) -> dict[str, Any]:
    """Write a task of two tables and three fully connected layers; return its settings."""
    random = np.random.default_rng(5)
    (folder / "steps").mkdir(parents=True)

    def write(file: Path, size: int) -> None:
        ids = random.integers(0, _ROWS, (size, _SLOTS[-1][1])).astype(np.int32)
        numbers = random.standard_normal((size, _NUMBERS)).astype(np.float32)
        labels = ((ids.sum(axis=1) % 3 == 0) ^ (numbers[:, 0] > 1)).astype(np.float32)
        file.write_bytes(ids.tobytes() + numbers.tobytes() + labels.tobytes())

    for step, part in itertools.product(range(_STEPS), range(_PARTS)):
        write(folder / "steps" / f"{step:05}-{part}", _BATCH // _PARTS)
    write(folder / "held-out", _HELD_OUT)
    for table in range(len(_SLOTS)):
        np.save(folder / f"table-{table}.npy", random.normal(0, 0.5, (_ROWS, _DIM)).astype(np.float32))
    widths = [_SLOTS[-1][1] * _DIM + _NUMBERS, *_HIDDEN, 1]
    for layer, (into, out) in enumerate(itertools.pairwise(widths)):
        np.save(folder / f"dense-{2 * layer}.npy", random.normal(0, into**-0.5, (out, into)).astype(np.float32))
        np.save(folder / f"dense-{2 * layer + 1}.npy", random.normal(0, 0.1, out).astype(np.float32))
    return {
        "data": str(folder),
        "slots": _SLOTS,
        "dim": _DIM,
        "hidden": _HIDDEN,
        "numbers": _NUMBERS,
        "steps": _STEPS,
        "skip": 2,
        "batchSize": _BATCH,
        "parts": _PARTS,
        "workers": _PARTS,
        "threads": 1,
        "precision": "fp32",
        "seed": 3,
        "denseRate": 0.05,
        "sparseRate": 0.1,
    }
