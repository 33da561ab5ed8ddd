"""Recurrent cells with hand-written gradients: LSTM (the paper's) and Elman (its RL-RNN baseline).

A cell receives projected inputs: `drive` = input weights * input + bias, because the projections of all layers and
pools are computed at once. `step` goes one layer forward, `step_back` one layer back. Gate order of the LSTM: input,
forget, candidate, output. Shapes: n samples, H hidden units.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Cell", "Elman", "Lstm", "cell_of"]

Array = NDArray[np.floating]  # float32 in use, float64 in the tests of the gradients


class Cell(Protocol):
    """A recurrent cell."""

    name: str
    gates: int  # width of `drive` in multiples of H

    def start(self, n: int, hidden: int, dtype: np.dtype[np.floating]) -> Array:
        """Return the first state; its first H columns are the output."""

    def step(self, drive: Array, recurrent: Array, state: Array) -> tuple[Array, Array]:
        """Go one layer forward.

        Args:
            drive: (n, gates * H).
            recurrent: (H, gates * H).
            state: (n, ...), the state before.

        Returns:
            The state after the step, and the values that `step_back` needs.
        """

    def step_back(self, state: Array, kept: Array, grad_state: Array) -> tuple[Array, Array]:
        """Go one layer back.

        Args:
            state: the state before the step.
            kept: values that the step returned.
            grad_state: gradient of the loss with respect to the state after the step.

        Returns:
            Gradients with respect to the sum `drive + h @ recurrent`, and to the non-output part of the state before.
        """


def _sigmoid(values: Array) -> Array:
    result: Array = 0.5 * np.tanh(0.5 * values) + 0.5
    return result


class Lstm:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); state = output and memory, (n, 2 H)."""

    name = "lstm"
    gates = 4

    def start(self, n: int, hidden: int, dtype: np.dtype[np.floating]) -> Array:
        """Return zeros."""
        return np.zeros((n, 2 * hidden), dtype)

    def step(self, drive: Array, recurrent: Array, state: Array) -> tuple[Array, Array]:
        """Go one layer forward; see `Cell`."""
        hidden = len(recurrent)
        total = drive + state[:, :hidden] @ recurrent
        gates = _sigmoid(total)
        candidate = np.tanh(total[:, 2 * hidden : 3 * hidden])
        gates[:, 2 * hidden : 3 * hidden] = candidate
        after = np.empty_like(state)
        memory = after[:, hidden:]
        np.multiply(gates[:, hidden : 2 * hidden], state[:, hidden:], out=memory)
        memory += gates[:, :hidden] * candidate
        squashed = np.tanh(memory)
        np.multiply(gates[:, 3 * hidden :], squashed, out=after[:, :hidden])
        return after, np.concatenate([gates, squashed], axis=1)

    def step_back(self, state: Array, kept: Array, grad_state: Array) -> tuple[Array, Array]:
        """Go one layer back; see `Cell`."""
        hidden = state.shape[1] // 2
        i, f, g, o, squashed = (kept[:, k * hidden : (k + 1) * hidden] for k in range(5))
        grad_output, grad_memory = grad_state[:, :hidden], grad_state[:, hidden:]
        grad_memory = grad_memory + grad_output * o * (1 - squashed * squashed)
        grad = np.concatenate(
            [
                grad_memory * g * i * (1 - i),
                grad_memory * state[:, hidden:] * f * (1 - f),
                grad_memory * i * (1 - g * g),
                grad_output * squashed * o * (1 - o),
            ],
            axis=1,
        )
        return grad, grad_memory * f


class Elman:
    """Elman's simple recurrent network (1990): h = tanh(drive + h recurrent); state = output, (n, H)."""

    name = "elman"
    gates = 1

    def start(self, n: int, hidden: int, dtype: np.dtype[np.floating]) -> Array:
        """Return zeros."""
        return np.zeros((n, hidden), dtype)

    def step(self, drive: Array, recurrent: Array, state: Array) -> tuple[Array, Array]:
        """Go one layer forward; see `Cell`."""
        after = np.tanh(drive + state @ recurrent)
        return after, after

    def step_back(self, state: Array, kept: Array, grad_state: Array) -> tuple[Array, Array]:
        """Go one layer back; see `Cell`."""
        return grad_state * (1 - kept * kept), np.zeros((len(state), 0), state.dtype)


_CELLS: dict[str, Cell] = {"lstm": Lstm(), "elman": Elman()}


def cell_of(name: str) -> Cell:
    """Return the cell of this name, `lstm` or `elman`."""
    return _CELLS[name]
