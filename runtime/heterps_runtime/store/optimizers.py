"""Optimizers of embedding rows: their options, and one compiled update per optimizer.

An update is applied once per touched row and step, to the sum of the row's gradients, as in a single process. g is that
sum, w the row, t the step (1 for the first).

- `sgd`: w -= lr g.
- `adagrad`: s += g²; w -= lr g / (√s + ε), as torch.optim.Adagrad.
- `rowwise-adagrad`: the same with one s per row, s += mean of g's squared elements: FBGEMM's EXACT_ROWWISE_ADAGRAD.
- `adam`: as torch.optim.SparseAdam: the state of untouched rows is unchanged, the bias correction uses the global t.
- `ftrl`: FTRL-proximal [McMahan2013]_ in TensorFlow's form (l2 enters twice, power p = -learningRatePower):
  σ = ((n + g²)^p - n^p) / lr; z += g - σ w; n += g²; w = 0 if |z| <= l1, else (sign(z) l1 - z) / (n^p / lr + 2 l2).
  Elements that never had a gradient keep their initial value, since n = 0 makes the formula 0 / 0.

.. [McMahan2013] H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from heterps_runtime.store.kernel import AnyFloats, Int32s, kernel, prefetch

__all__ = ["DENSE_OPTIMIZERS", "SPARSE_OPTIMIZERS", "DenseOptimizer", "SparseOptimizer"]

_LINE = 64  # bytes of a cache line
_AHEAD = 8  # rows whose memory is requested in advance


@dataclass(frozen=True)
class _Option:
    default: float | None  # None: must be given
    low: float = 0.0
    high: float = math.inf
    low_open: bool = False  # `low` itself is not allowed

    def check(self, value: float) -> str | None:
        """The problem with `value`, or None."""
        low_fits = value > self.low or (value == self.low and not self.low_open)
        if low_fits and (value < self.high or value == self.high == 0.0):
            return None
        bound = ">" if self.low_open else ">="
        limit = f" and < {self.high:g}" if 0 < self.high < math.inf else " and <= 0" if self.high == 0.0 else ""
        return f"must be finite, {bound} {self.low:g}{limit}, is {value:g}"


_RATE = _Option(None, low_open=True)
_DECAY, _ACCUMULATOR, _PENALTY = _Option(0.0), _Option(0.0), _Option(0.0)
_ADAGRAD = {"learningRate": _RATE, "epsilon": _Option(1e-10), "initialAccumulator": _ACCUMULATOR}
_ADAM = {
    "learningRate": _RATE,
    "beta1": _Option(0.9, high=1.0),
    "beta2": _Option(0.999, high=1.0),
    "epsilon": _Option(1e-8, low_open=True),
}

SPARSE_OPTIMIZERS: Mapping[str, Mapping[str, _Option]] = {
    "sgd": {"learningRate": _RATE},
    "adagrad": _ADAGRAD,
    "rowwise-adagrad": _ADAGRAD,
    "adam": _ADAM,
    "ftrl": {
        "learningRate": _RATE,
        "l1": _PENALTY,
        "l2": _PENALTY,
        "initialAccumulator": _ACCUMULATOR,
        "learningRatePower": _Option(-0.5, low=-1e3, high=0.0),
    },
}
DENSE_OPTIMIZERS: Mapping[str, Mapping[str, _Option]] = {
    "sgd": {"learningRate": _RATE, "momentum": _Option(0.0), "weightDecay": _DECAY},
    "adagrad": {**_ADAGRAD, "weightDecay": _DECAY},
    "adam": {**_ADAM, "weightDecay": _DECAY},
}


@dataclass(frozen=True)
class _Optimizer:
    """An optimizer and its options; the defaults are torch's."""

    name: str
    options: Mapping[str, float]

    kind: ClassVar[str]  # the field of training.optimizer
    catalogue: ClassVar[Mapping[str, Mapping[str, _Option]]]  # options by optimizer

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> Self:
        """Read e.g. {"name": "adam", "learningRate": "0.001"}; numbers may be decimal strings.

        Raises:
            ValueError: the optimizer or an option is unknown, learningRate is missing, or a value is out of range.
        """
        name, field = value.get("name", ""), f"training.optimizer.{cls.kind}"
        if name not in cls.catalogue:
            raise ValueError(f"{field}.name: {name!r} is unknown, use one of {', '.join(cls.catalogue)}")
        known = cls.catalogue[name]
        for option in value:
            if option != "name" and option not in known:
                raise ValueError(f"{field}.{option}: {name!r} has no such option, it has {', '.join(known)}")
        options: dict[str, float] = {}
        for option, rule in known.items():
            given = value.get(option, rule.default)
            if given is None:
                raise ValueError(f"{field}.{option}: must be given")
            try:
                options[option] = float(given)
            except (TypeError, ValueError):
                raise ValueError(f"{field}.{option}: {given!r} is not a number") from None
            if problem := rule.check(options[option]):
                raise ValueError(f"{field}.{option}: {problem}")
        return cls(name, options)

    def adam_step_size(self, step: int) -> tuple[float, float]:
        """Adam's (1 - β1^t, √(1 - β2^t)) at step t >= 1."""
        assert step >= 1
        return 1.0 - self.options["beta1"] ** step, math.sqrt(1.0 - self.options["beta2"] ** step)


@dataclass(frozen=True)
class DenseOptimizer(_Optimizer):
    """Optimizer of dense parameters; `store.dense` applies it."""

    kind = "dense"
    catalogue = DENSE_OPTIMIZERS


@dataclass(frozen=True)
class SparseOptimizer(_Optimizer):
    """Optimizer of embedding rows."""

    kind = "sparse"
    catalogue = SPARSE_OPTIMIZERS

    def state_columns(self, dim: int) -> dict[str, int]:
        """State arrays of rows of `dim` elements: name -> elements per row."""
        return {state: dim if columns < 0 else columns for state, columns in _UPDATES[self.name][1].items()}

    def initial_state(self) -> dict[str, float]:
        """Initial value of each state array."""
        return {
            state: self.options.get("initialAccumulator", 0.0) if state in ("sum", "accumulator") else 0.0
            for state in _UPDATES[self.name][1]
        }

    def update(
        self,
        rows: AnyFloats,
        state: Mapping[str, AnyFloats],
        touched: Int32s,
        grads: AnyFloats,
        scale: float,
        step: int,
    ) -> None:
        """Update rows[touched[i]] with the gradient grads[i] * scale.

        Args:
            rows: (capacity, dim).
            state: arrays by name, in the order of `state_columns`.
            touched: (m,), distinct row numbers.
            grads: (m, dim), sums of gradients.
            scale: 1 / global batch size.
            step: t, 1 for the first step.
        """
        function = _UPDATES[self.name][0]
        function(rows, *state.values(), touched, grads, self._numbers(scale, step, rows.dtype))

    def _numbers(self, scale: float, step: int, dtype: DTypeLike) -> AnyFloats:
        # Of the rows' dtype: a Python float would turn a kernel's float32 arithmetic into float64.
        options = self.options
        values = [scale, *options.values()]
        if self.name == "adam":
            correction_1, correction_2 = self.adam_step_size(step)
            step_size = options["learningRate"] * correction_2 / correction_1
            values = [scale, step_size, 1.0 - options["beta1"], 1.0 - options["beta2"], options["epsilon"]]
        elif self.name == "ftrl":
            power = -options["learningRatePower"]
            values = [scale, 1.0 / options["learningRate"], options["l1"], 2.0 * options["l2"], power]
        return np.array(values, dtype)


@kernel
def _ask_for(array: AnyFloats, row: int) -> None:
    """Prefetch array[row]."""
    columns = array.shape[1]
    for j in range(0, columns, _LINE // array.itemsize):
        prefetch(array, row * columns + j)


@kernel
def _sgd(rows: AnyFloats, touched: Int32s, grads: AnyFloats, numbers: AnyFloats) -> None:
    factor = numbers[0] * numbers[1]
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            _ask_for(rows, touched[i + _AHEAD])
        r = touched[i]
        for j in range(rows.shape[1]):
            rows[r, j] -= factor * grads[i, j]


@kernel
def _adagrad(rows: AnyFloats, sums: AnyFloats, touched: Int32s, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, rate, epsilon = numbers[0], numbers[1], numbers[2]
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            _ask_for(rows, touched[i + _AHEAD])
            _ask_for(sums, touched[i + _AHEAD])
        r = touched[i]
        for j in range(rows.shape[1]):
            g = grads[i, j] * scale
            total = sums[r, j] + g * g
            sums[r, j] = total
            root = np.sqrt(total) + epsilon
            if root > 0:  # with epsilon = 0, an element that never had a gradient is 0 / 0
                rows[r, j] -= rate * g / root


def _rowwise_adagrad(rows: AnyFloats, sums: AnyFloats, touched: Int32s, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, rate, epsilon = numbers[0], numbers[1], numbers[2]
    dim = rows.shape[1]
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            _ask_for(rows, touched[i + _AHEAD])
            _ask_for(sums, touched[i + _AHEAD])
        r = touched[i]
        squares = rows.dtype.type(0)
        for j in range(dim):
            g = grads[i, j] * scale
            squares += g * g
        total = sums[r, 0] + squares / rows.dtype.type(dim)
        sums[r, 0] = total
        root = np.sqrt(total) + epsilon
        if root > 0:
            factor = rate / root * scale
            for j in range(dim):
                rows[r, j] -= factor * grads[i, j]


_rowwise_adagrad = kernel(_rowwise_adagrad, reassociate=True)


@kernel
def _adam(
    rows: AnyFloats, means: AnyFloats, squares: AnyFloats, touched: Int32s, grads: AnyFloats, numbers: AnyFloats
) -> None:
    scale, step_size, one_minus_1, one_minus_2, epsilon = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            _ask_for(rows, touched[i + _AHEAD])
            _ask_for(means, touched[i + _AHEAD])
            _ask_for(squares, touched[i + _AHEAD])
        r = touched[i]
        for j in range(rows.shape[1]):
            g = grads[i, j] * scale
            mean = means[r, j] + (g - means[r, j]) * one_minus_1
            square = squares[r, j] + (g * g - squares[r, j]) * one_minus_2
            means[r, j] = mean
            squares[r, j] = square
            rows[r, j] -= step_size * (mean / (np.sqrt(square) + epsilon))


@kernel
def _ftrl(
    rows: AnyFloats, linear: AnyFloats, sums: AnyFloats, touched: Int32s, grads: AnyFloats, numbers: AnyFloats
) -> None:
    scale, inverse_rate, l1, twice_l2, power = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in range(touched.size):
        if i + _AHEAD < touched.size:
            _ask_for(rows, touched[i + _AHEAD])
            _ask_for(linear, touched[i + _AHEAD])
            _ask_for(sums, touched[i + _AHEAD])
        r = touched[i]
        for j in range(rows.shape[1]):
            g = grads[i, j] * scale
            old = sums[r, j]
            new = old + g * g
            if new == 0:
                continue
            if power == 0.5:
                old_power, new_power = np.sqrt(old), np.sqrt(new)
            else:
                old_power, new_power = old**power, new**power
            z = linear[r, j] + g - (new_power - old_power) * inverse_rate * rows[r, j]
            sums[r, j] = new
            linear[r, j] = z
            if abs(z) <= l1:
                rows[r, j] = 0
            else:
                rows[r, j] = ((l1 if z > 0 else -l1) - z) / (new_power * inverse_rate + twice_l2)


# The update of each optimizer, and its state arrays in the update's order (elements per row; -1: as many as the row).
_UPDATES: Mapping[str, tuple[Callable[..., None], Mapping[str, int]]] = {
    "sgd": (_sgd, {}),
    "adagrad": (_adagrad, {"sum": -1}),
    "rowwise-adagrad": (_rowwise_adagrad, {"sum": 1}),
    "adam": (_adam, {"exp_avg": -1, "exp_avg_sq": -1}),
    "ftrl": (_ftrl, {"linear": -1, "accumulator": -1}),
}
