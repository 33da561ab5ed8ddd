"""Comparison of a trained model with plain PyTorch's, in float64.

A job sums the samples of a step in another order than one process does, and processors differ in how they add, multiply
and vectorise. So two models that should be equal differ by rounding errors, which later steps amplify:

* A ReLU whose input is closer to 0 than its rounding error is on in one run and off in the other. Then a whole sample
  is missing from, or in, a gradient: a jump of 1/B of it, however small the difference was.
* Adam and Adagrad divide a gradient by its own size. Where a gradient is nearly 0, they turn a difference d of it into
  one of d * learningRate / epsilon in the parameter, 1e5 * d and more.

Float32 has a unit roundoff of 6e-8. A small job has 16 units, 256 samples and 400 steps, so 1.6 million inputs of a
ReLU of about size 1, each of which is off by 1e-7 or more: in one run of a few, one of them is on the other side of 0,
and in which, depends on the processor. Differences of 1.8e-3 were seen between correct jobs. In float64 the roundoff is
1.1e-16, and the chance of such an input is about 1e-9 in a run, on any processor. Differences of up to 1.5e-14 are
seen, and Adam's factor on 1e-15 makes 1e-10 at worst.

A sample that is lost in one step of a small job makes a difference of 1e-3, of 8e-3 and more in jobs with smaller
batches; `TOLERANCE` lies between the two. In `tests/heterps_runtime/jobs`, `test_same_model.py` shows that the
comparison notices a lost sample, and `test_same_model_fp32.py` derives the tolerance of float32, for a model without
kinks and such an optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["TOLERANCE", "assert_same_model", "difference"]

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-9


def difference(trained: Array, expected: Array) -> float:
    """Return the largest difference of two parameters' values, relative to the largest expected value."""
    return float(np.abs(trained - expected).max() / (np.abs(expected).max() or 1.0))


def assert_same_model(trained: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Assert that two models, by parameter name, are equal up to the rounding of float64."""
    assert set(trained) == set(expected)
    for name, values in expected.items():
        assert trained[name].dtype == values.dtype, name
        assert trained[name].shape == values.shape, name
        if not np.issubdtype(values.dtype, np.floating):  # a buffer, such as offsets of ids
            assert np.array_equal(trained[name], values), name
            continue
        assert values.dtype == np.float64, f"{name}: train it with training.precision: fp64"
        found = difference(trained[name], values)
        assert found <= TOLERANCE, f"{name} differs by {found:.2g} of its largest value"
