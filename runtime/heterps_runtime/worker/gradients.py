"""Backward from given gradients, without importing sympy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["backward"]


class _Seed(torch.autograd.Function):
    """A scalar function of tensors whose backward returns given gradients."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        return None, *ctx.gradients


def backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Accumulate gradients in the leaves of `outputs`, like `torch.autograd.backward(outputs, gradients)`.

    That function compares shapes symbolically, unless the only output is a scalar. It imports sympy for that, which
    takes seven seconds in a worker's first step.
    """
    if outputs:
        torch.autograd.backward(_Seed.apply(gradients, *outputs))  # type: ignore[no-untyped-call]
