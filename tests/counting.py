"""A model that counts how often each sample was applied, in any precision, plan and consistency.

`small_model.Counting` has an embedding row for each sample of the data, which starts at 0. Its loss makes the gradient
of a sample -1 for its own row, whatever the parameters are. HeterPS divides the sum of a step's gradients by the size B
of its batch, and plain SGD multiplies it by the learning rate, which is B here: each time that a sample is applied, its
row grows by 1. B is a power of two, and the batches divide the data, so both factors are exact. All rows are whole
numbers below 2^24, which float32 holds exactly and adds exactly in any order. So there is no tolerance, and the order
of reads does not matter: the count is the same in `sync`, `hybrid` and `async`, for any division of the work.

    rows = model["tables.weight"]      # how often each sample was applied to the rows

Dense parameters count as well, on servers or replicas. A bias grows by 1 with each step. A weight grows by the mean of
a number over the step's batch; the numbers are small and whole, so its value is a multiple of 1/B and also exact.

Use it like this: `counting_spec` gives the fields of a job's spec, `counting_columns` the data, and
`assert_every_sample_counted` compares the exported model with the expected counts. `counting_configuration`
(`tests/heterps_runtime/helpers/jobs.py`) makes a whole run configuration, `counting_job` (`tests/cluster/faults.py`)
makes a job.
While the file named by `held` exists, training is slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from heterps_runtime.data import BatchOrder

__all__ = ["applied", "assert_every_sample_counted", "counting_columns", "counting_spec"]

Array = np.ndarray[Any, Any]

NUMBERS = ("n0", "n1", "n2", "n3")


def counting_columns(samples: int) -> dict[str, Array]:
    """Return the data: each sample's index, its digits in base 8 as numbers, and an unused label."""
    sample = np.arange(samples)
    digits = {name: (sample >> 3 * place & 7).astype(np.float32) for place, name in enumerate(NUMBERS)}
    return {"sample": sample, **digits, "late": np.zeros(samples, np.int64)}


def counting_spec(
    module: str, samples: int, batch: int, consistency: str, held: str = "", least_seconds: float = 0.02
) -> dict[str, Any]:
    """Return fields of a job's spec, by dotted path.

    Args:
        module: `small_model` as the job's processes import it.
        samples: rows of the data, a multiple of the batch.
        batch: samples per step, a power of two.
        consistency: consistency of reads.
        held: file that makes training slow; by default `held` beside the module.
        least_seconds: minimum duration of a micro-batch without that file.
    """
    assert batch.bit_count() == 1, "only powers of two are divided and multiplied by exactly"
    assert samples % batch == 0, "a shorter batch would be divided by another number"
    arguments = {"samples": samples, "numbers": len(NUMBERS), "held": held, "least_seconds": least_seconds}
    return {
        "model.entrypoint": f"{module}:build_counting",
        "model.arguments": arguments,
        "model.loss": f"{module}:count",
        "model.embeddingInit": {"distribution": "zeros"},
        "data.label": "late",
        "data.dense": list(NUMBERS),
        "data.sparse": ["sample"],
        "training.globalBatchSize": batch,
        "training.consistency": consistency,
        "training.optimizer": {
            "dense": {"name": "sgd", "learningRate": "1"},
            "sparse": {"name": "sgd", "learningRate": str(batch)},
        },
    }


def applied(samples: int, batch: int, seed: int, steps: int) -> Array:
    """Return how often each sample must be applied in a number of steps, int64 (samples,).

    This is once per epoch; the sample order matters only in an incomplete epoch.
    """
    order = BatchOrder(samples, batch, seed)
    epochs, more = divmod(steps, samples // batch)
    times = np.full(samples, epochs, np.int64)
    for step in range(steps - more, steps):
        times[order.rows(step, 0, batch)] += 1
    return times


def assert_every_sample_counted(model: Mapping[str, Array], batch: int, seed: int, steps: int) -> None:
    """Assert that each sample was applied to rows and dense parameters as often as the sample order requires.

    Args:
        model: the exported parameters by name.
        batch: samples per step.
        seed: seed of the job (`training.seed`).
        steps: steps of the job.
    """
    rows = model["tables.weight"][:, 0]
    times = applied(len(rows), batch, seed, steps)
    wrong = np.flatnonzero(rows != times)
    told = ", ".join(f"sample {i} {rows[i]:g} times instead of {times[i]}" for i in wrong[:5])
    assert not len(wrong), f"{len(wrong)} of {len(rows)} samples were applied more or less often: {told}"
    columns = counting_columns(len(rows))
    means = np.array([times @ columns[name] / batch for name in NUMBERS])
    for layer in ("linear", "output"):
        bias, weight = model[f"{layer}.bias"].tolist(), model[f"{layer}.weight"].tolist()
        assert bias == [steps], f"{layer}.bias is {bias} instead of {[steps]}"
        assert weight == [means.tolist()], f"{layer}.weight is {weight} instead of {[means.tolist()]}"
