"""Backward from given gradients, without loading torch's symbolic algebra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["backward"]


class _Seed(torch.autograd.Function):
    """A scalar of any tensors whose backward hands each of them the gradient that it was made with."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        return None, *ctx.gradients


def backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Accumulate gradients in the leaves of `outputs`, as `torch.autograd.backward(outputs, gradients)` does.

    That function compares the shapes symbolically and imports sympy for it: seven seconds at a worker's first step. It
    does not when the only output is a scalar.
    """
    if outputs:
        torch.autograd.backward(_Seed.apply(gradients, *outputs))  # type: ignore[no-untyped-call]
