"""Dense parameters on parameter servers: named arrays, updated like torch.optim.

The arithmetic follows torch.optim.SGD, Adagrad and Adam operation by operation. It treats each element by itself, so
that an array may be a piece of a parameter, too (`partition.pieces`). A plan with dense parameters on servers
therefore trains the same model as a plan with replicas on workers. State is named as in an optimizer's state_dict,
`<parameter>::exp_avg` and so on; `LAST_STEP` is the number of the last step. No
parameter has a name with `::` (intake refuses it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_runtime.store.kernel import AnyFloats, kernel, view
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.store.rows import count_all_unusable, largest_usable
from heterps_runtime.store.team import ALONE, Team

Array = np.ndarray[Any, Any]

__all__ = ["LAST_STEP", "DenseStore", "read_step", "state_names", "update_dense"]

LAST_STEP = "::step"  # in snapshots


class DenseStore:
    """Named tensors of any shape, float32 or float64, with their optimizer state.

    Not thread-safe, except for `nbytes`.

    Args:
        optimizer: applied once per parameter and step.
        team: threads that compute. The parameters do not depend on their number.

    Attributes:
        nbytes: bytes of values and state.
    """

    def __init__(self, optimizer: DenseOptimizer, team: Team = ALONE) -> None:
        self.optimizer = optimizer
        self._team = team
        self.step = 0  # of the last `apply`
        self.nbytes = 0
        self._values: dict[str, AnyFloats] = {}
        self._state: dict[str, dict[str, AnyFloats]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters, in the order of their addition."""
        return tuple(self._values)

    def add(self, name: str, value: AnyFloats) -> None:
        """Add a parameter with a copy of its initial value.

        Raises:
            ValueError: the name exists, or the dtype is neither float32 nor float64.
        """
        if name in self._values:
            raise ValueError(f"parameter {name!r}: exists already")
        _check_type(name, value)
        self._values[name] = np.array(value, order="C")
        self._state[name] = {
            state: np.full(value.shape, self.optimizer.options.get("initialAccumulator", 0.0), value.dtype)
            for state in state_names(self.optimizer)
        }
        self.nbytes += sum(array.nbytes for array in (self._values[name], *self._state[name].values()))

    def pull(self, names: Iterable[str]) -> list[AnyFloats]:
        """Copies of the named parameters.

        Raises:
            ValueError: a name is unknown.
        """
        return [self._value(name).copy() for name in names]

    def check_push(self, push: Mapping[str, NDArray[Any]]) -> None:
        """Check that gradients fit their parameters.

        Raises:
            ValueError: a name is unknown, or a gradient has another shape or dtype.
        """
        for name, grad in push.items():
            value = self._value(name)
            if grad.shape != value.shape:
                raise ValueError(f"gradient of {name!r}: must have the shape {value.shape}, has {grad.shape}")
            if grad.dtype != value.dtype:
                raise ValueError(f"gradient of {name!r}: must be {value.dtype}, is {grad.dtype}")

    def apply(self, pushes: Sequence[Mapping[str, AnyFloats]], scale: float, step: int) -> int:
        """Apply one step: add the pushes of each parameter in order, multiply by `scale`, update once.

        A parameter without a push is unchanged, like a parameter without a gradient in torch.

        Returns:
            The number of gradient elements that are NaN, infinite or too large to be added. Unless it is 0, nothing
            has changed.

        Raises:
            ValueError: as of `check_push`; nothing has changed.
        """
        for push in pushes:
            self.check_push(push)
        given = [{name: view(grad, grad.dtype) for name, grad in push.items()} for push in pushes]
        unusable = sum(
            count_all_unusable(grad, largest_usable(grad.dtype, len(given)), self._team)
            for push in given
            for grad in push.values()
        )
        if unusable:
            return unusable
        self.step = step
        for name, value in self._values.items():
            grads = [push[name].reshape(-1) for push in given if name in push]
            if grads:
                state = [array.reshape(-1) for array in self._state[name].values()]
                self._update(value.reshape(-1), state, grads, scale, step)
        return 0

    def _update(
        self, values: AnyFloats, state: Sequence[AnyFloats], grads: Sequence[AnyFloats], scale: float, step: int
    ) -> None:
        """Add gradients (n,) in order, and update the parameter (n,) and its state with their sum."""

        def update(start: int, stop: int) -> None:
            part = slice(start, stop)
            total = grads[0][part]
            if len(grads) > 1:
                total = total + grads[1][part]
                for grad in grads[2:]:
                    total += grad[part]
            update_dense(self.optimizer, values[part], [array[part] for array in state], total, scale=scale, step=step)

        self._team.share_elements(len(values), update)

    def snapshot(self) -> dict[str, AnyFloats]:
        """Copies of all parameters, their state as `<parameter>::<state>`, and `LAST_STEP` as an int64 scalar."""
        result: dict[str, AnyFloats] = {LAST_STEP: np.array(self.step, np.int64)}
        for name, value in self._values.items():
            result[name] = value.copy()
            result |= {f"{name}::{state}": array.copy() for state, array in self._state[name].items()}
        return result

    def load(self, snapshot: Mapping[str, AnyFloats]) -> None:
        """Replace all contents by a snapshot of a store with the same optimizer.

        Raises:
            ValueError: an entry is missing, unknown, or of the wrong shape or dtype; nothing has changed.
        """
        self.check_snapshot(snapshot)
        loaded = DenseStore(self.optimizer)
        for name in _parameters(snapshot):
            loaded.add(name, snapshot[name])
            for state, array in loaded._state[name].items():
                array[...] = snapshot[f"{name}::{state}"]
        self._values, self._state, self.step = loaded._values, loaded._state, read_step(snapshot[LAST_STEP])
        self.nbytes = loaded.nbytes

    def check_snapshot(self, snapshot: Mapping[str, Array]) -> None:
        """Check that `load` can take a snapshot.

        Raises:
            ValueError: see `load`.
        """
        states, parameters = state_names(self.optimizer), _parameters(snapshot)
        expected = {LAST_STEP, *parameters} | {f"{name}::{state}" for name in parameters for state in states}
        if expected != set(snapshot):
            missing, unknown = sorted(expected - set(snapshot)), sorted(set(snapshot) - expected)
            raise ValueError(f"snapshot: does not fit {self.optimizer.name!r}: missing {missing}, unknown {unknown}")
        read_step(snapshot[LAST_STEP])
        for name in parameters:
            value = snapshot[name]
            _check_type(name, value)
            for state in states:
                saved = snapshot[f"{name}::{state}"]
                if saved.shape != value.shape or saved.dtype != value.dtype:
                    raise ValueError(
                        f"snapshot: {name}::{state} must be {value.dtype} {value.shape}, is {saved.dtype} {saved.shape}"
                    )

    def _value(self, name: str) -> AnyFloats:
        if name not in self._values:
            raise ValueError(f"parameter {name!r}: is unknown, there are {', '.join(self._values)}")
        return self._values[name]


def read_step(value: Array) -> int:
    """The number of the last step, as snapshots have it.

    Raises:
        ValueError: it is no whole number >= 0.
    """
    if value.shape or value.dtype != np.int64 or value < 0:
        raise ValueError(f"snapshot: step must be an int64 >= 0, is {value.dtype} {value.tolist()}")
    return int(value)


def _parameters(snapshot: Mapping[str, Array]) -> list[str]:
    return [name for name in snapshot if "::" not in name]


def _check_type(name: str, value: Array) -> None:
    if value.dtype not in (np.float32, np.float64):
        raise ValueError(f"parameter {name!r}: must be float32 or float64, is {value.dtype}")


def update_dense(
    optimizer: DenseOptimizer,
    values: AnyFloats,
    state: Sequence[AnyFloats],
    gradient: AnyFloats,
    *,
    scale: float,
    step: int,
) -> None:
    """Update parameters and the optimizer's state in place, in one pass.

    Args:
        optimizer: treats each element by itself.
        values: shape (n,).
        state: arrays (n,), in the order of `state_names`.
        gradient: shape (n,).
        scale: factor of the gradient.
        step: number of this step, from 1.
    """
    update, _ = _update_of(optimizer)
    update(values, *state, gradient, _numbers(optimizer, scale, step, values.dtype))


def state_names(optimizer: DenseOptimizer) -> tuple[str, ...]:
    """Names of the arrays of state that an optimizer has, each as large as the parameters."""
    return _update_of(optimizer)[1]


def _numbers(optimizer: DenseOptimizer, scale: float, step: int, dtype: Any) -> AnyFloats:
    options = optimizer.options
    values = [scale, *options.values()]
    if optimizer.name == "adam":
        correction_1, correction_2 = optimizer.adam_step_size(step)
        values = [
            scale,
            options["learningRate"] / correction_1,
            1.0 - options["beta1"],
            options["beta2"],
            1.0 - options["beta2"],
            options["epsilon"],
            correction_2,
            options["weightDecay"],
        ]
    return np.array(values, dtype)


@kernel
def _sgd(values: AnyFloats, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, rate, decay = numbers[0], numbers[1], numbers[3]
    for i in range(values.size):
        values[i] -= rate * (grads[i] * scale + decay * values[i])


@kernel
def _momentum(values: AnyFloats, buffers: AnyFloats, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, rate, momentum, decay = numbers[0], numbers[1], numbers[2], numbers[3]
    for i in range(values.size):
        # torch starts the buffer with the first gradient, which equals momentum times zero plus that gradient.
        buffers[i] = momentum * buffers[i] + (grads[i] * scale + decay * values[i])
        values[i] -= rate * buffers[i]


@kernel
def _adagrad(values: AnyFloats, sums: AnyFloats, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, rate, epsilon, decay = numbers[0], numbers[1], numbers[2], numbers[4]
    for i in range(values.size):
        g = grads[i] * scale + decay * values[i]
        sums[i] += g * g
        root = np.sqrt(sums[i]) + epsilon
        if root > 0:  # with epsilon = 0, an element that never had a gradient is 0 / 0
            values[i] -= rate * g / root


@kernel
def _adam(values: AnyFloats, means: AnyFloats, squares: AnyFloats, grads: AnyFloats, numbers: AnyFloats) -> None:
    scale, step_size, one_minus_1, beta_2, one_minus_2 = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    epsilon, correction_2, decay = numbers[5], numbers[6], numbers[7]
    for i in range(values.size):
        g = grads[i] * scale + decay * values[i]
        means[i] += (g - means[i]) * one_minus_1
        squares[i] = squares[i] * beta_2 + one_minus_2 * g * g
        values[i] -= step_size * (means[i] / (np.sqrt(squares[i]) / correction_2 + epsilon))


_Update = tuple[Callable[..., None], tuple[str, ...]]
_UPDATES: Mapping[str, _Update] = {
    "adagrad": (_adagrad, ("sum",)),
    "adam": (_adam, ("exp_avg", "exp_avg_sq")),
}


def _update_of(optimizer: DenseOptimizer) -> _Update:
    """The compiled update of an optimizer, and the names of its state arrays."""
    if optimizer.name == "sgd":
        return (_momentum, ("momentum_buffer",)) if optimizer.options["momentum"] else (_sgd, ())
    return _UPDATES[optimizer.name]
