"""Fully connected layers in float32 on AMD's processors: oneDNN computes their products.

torch has two libraries for them. It takes oneDNN for bfloat16 and float16, and Intel's MKL for float32. On AMD's
processors MKL's kernels are slower. The gradient of inputs takes twice as long if their number is no multiple of a
cache line's, as in a model that concatenates embeddings and numbers (decision 82).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

__all__ = ["linear", "onednn_is_faster", "use_onednn"]

_LEAST_PRODUCTS = 20_000_000  # multiplications of a pass, below which the calls cost more than the kernels save
_CPU_INFO = Path("/proc/cpuinfo")
_VENDORS = frozenset({"AuthenticAMD", "HygonGenuine"})


@cache
def onednn_is_faster() -> bool:
    """Whether this machine's processor multiplies float32 matrices faster with oneDNN than with MKL."""
    libraries = (torch.backends.mkl, torch.backends.mkldnn)
    return all(library.is_available() for library in libraries) and _vendor() in _VENDORS


def _vendor() -> str:
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def use_onednn(module: fx.GraphModule) -> None:
    """Let a stage's fully connected layers compute with oneDNN where that pays: those that are modules, and calls."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = _Linear
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is nn.functional.linear:
            node.target = linear
    module.recompile()


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002  # torch's name
    """`torch.nn.functional.linear`, by oneDNN if it computes in float32 on the CPU and is large enough.

    Args:
        input: (..., in_features).
        weight: (out_features, in_features); a vector is left to torch.
        bias: (out_features,).
    """
    if (
        input.dtype == weight.dtype == torch.float32
        and input.device.type == "cpu"
        and weight.dim() == 2
        and input.numel() * weight.shape[0] >= _LEAST_PRODUCTS
        and not torch.is_autocast_enabled("cpu")
    ):
        result: Tensor = _OneDnn.apply(input, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return nn.functional.linear(input, weight, bias)


class _Linear(nn.Linear):
    """The class that a stage's `nn.Linear` modules get."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name, by which it may be called
        """See `linear`."""
        return linear(input, self.weight, self.bias)


class _OneDnn(torch.autograd.Function):
    """The product and its gradients: three products of matrices."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        inputs = inputs.contiguous()  # oneDNN takes no stride of 0, which broadcasting makes
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        gradient = gradient.contiguous()
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            _product(gradient, weight.t()) if of_inputs else None,
            _product(rows.t(), inputs.reshape(-1, inputs.shape[-1]).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(..., k) x (n, k) -> (..., n), plus a bias (n,)."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return result
