"""Floating-point operations of a stage: counted in one micro-batch, forward and backward, and known from then on.

Only products of matrices and convolutions count, a multiplication and an addition as two operations, as in
`torch.utils.flop_counter` (which imports triton, for half a second of a worker's start). The rest of a layer is small
beside them, or bound by memory rather than by arithmetic.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_runtime.worker.steps.runs import Work

__all__ = ["Operations"]

Arguments = Sequence[Any]


def _product(arguments: Arguments, result: Any) -> float:
    """(..., m, k) x (..., k, n): 2 m k n for each matrix."""
    left, right = [a for a in arguments if isinstance(a, torch.Tensor)][-2:]
    return float(2 * math.prod(left.shape) * right.shape[-1])


def _linear(arguments: Arguments, result: Any) -> float:
    """(..., k) x (n, k): 2 k n for each row."""
    inputs, weight = arguments[:2]
    return float(2 * math.prod(inputs.shape) * weight.shape[0])


def _convolution(arguments: Arguments, result: Any) -> float:
    images, weight, transposed = arguments[0], arguments[1], arguments[6]
    return _filtered(images if transposed else result, weight)


def _convolution_backward(arguments: Arguments, result: Any) -> float:
    """As many operations as forward for each of the gradients of the images and of the weights that are wanted."""
    gradient, images, weight, transposed, wanted = (arguments[i] for i in (0, 1, 2, 7, 10))
    return sum(map(bool, wanted[:2])) * _filtered(images if transposed else gradient, weight)


def _filtered(places: torch.Tensor, weight: torch.Tensor) -> float:
    """Each weight of a filter is used once for each place (n, channels, ...) of an image that it is put on."""
    return float(2 * places.shape[0] * math.prod(places.shape[2:]) * math.prod(weight.shape))


_aten = torch.ops.aten
_FORMULAS: Mapping[Any, Callable[[Arguments, Any], float]] = {
    _aten.mm: _product,
    _aten.addmm: _product,
    _aten.bmm: _product,
    _aten.baddbmm: _product,
    getattr(torch.ops.mkldnn, "_linear_pointwise", None): _linear,  # torch for other processors lacks it
    _aten.convolution: _convolution,
    _aten._convolution: _convolution,
    _aten.convolution_backward: _convolution_backward,
}


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Adds up the operations of what runs in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would import torch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        result = func(*args, **(kwargs or {}))
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(args, result)
        return result


class Operations:
    """Operations that a stage needs for a sample.

    Attributes:
        per_sample: forward and backward; 0 until they are counted, and for a stage without products.
    """

    def __init__(self) -> None:
        self.per_sample = 0.0
        self._known = False
        self._work: Work | None = None  # the micro-batch that is counted
        self._counting = _Counting()

    def begin(self) -> None:
        """Forget a micro-batch that will not be finished."""
        self._work = None

    def of(self, work: Work) -> contextlib.AbstractContextManager[object]:
        """The context in which a micro-batch is computed, forward or backward."""
        if self._known or not (work.run.training and work.micro_batch.size):
            return contextlib.nullcontext()
        if self._work is None:
            self._work, self._counting = work, _Counting()
        return self._counting if self._work is work else contextlib.nullcontext()

    def finish(self, work: Work) -> None:
        """Note that a micro-batch is computed, backward too."""
        if self._work is work:
            self.per_sample = self._counting.total / work.micro_batch.size
            self._known, self._work = True, None
