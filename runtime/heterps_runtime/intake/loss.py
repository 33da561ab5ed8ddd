"""The user's loss as a sum over samples.

Gradients are sums over samples, divided once by the global batch size, so each part of a batch must give the *sum* of
its samples' losses. A loss with a `reduction` parameter is called with "sum"; any other is assumed to be the mean of
its batch, and multiplied by the number of samples. With class weights, the sum divided by the number of samples differs
from PyTorch's `reduction="mean"`, which is a weighted mean.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heterps_runtime.intake.entrypoint import resolve_entrypoint
from heterps_runtime.intake.errors import LabelError, LossError
from heterps_runtime.intake.location import error_location, function_location

__all__ = ["LossSum", "resolve_loss"]

_FIELD = "training.loss"
_CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss", "multi_margin_loss"})
_VALUE_LOSSES = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
        "poisson_nll_loss",
        "hinge_embedding_loss",
    }
)
_MODULE_NAMES = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll_loss",
    nn.MultiMarginLoss: "multi_margin_loss",
    nn.BCELoss: "binary_cross_entropy",
    nn.BCEWithLogitsLoss: "binary_cross_entropy_with_logits",
    nn.MSELoss: "mse_loss",
    nn.L1Loss: "l1_loss",
    nn.SmoothL1Loss: "smooth_l1_loss",
    nn.HuberLoss: "huber_loss",
    nn.SoftMarginLoss: "soft_margin_loss",
    nn.PoissonNLLLoss: "poisson_nll_loss",
}


@dataclass(frozen=True)
class LossSum:
    """`loss_sum(logits, label)`: the sum over samples, a scalar.

    Labels are converted to class indices (int64) for losses such as cross_entropy, and to the logits' dtype for losses
    such as binary_cross_entropy_with_logits. The user's own loss gets class indices if the logits are (B, C) and the
    labels (B,), and values otherwise. Logits (B, 1) are flattened to (B,) for labels (B,).

    For logits (B, C) and labels (B, C), the loss of a sample is the mean over its C entries, as in PyTorch.
    """

    entrypoint: str
    function: Callable[..., Any]
    sums: bool  # the function returns a sum
    labels: str  # "classes" | "values" | "by shape"

    def __call__(self, logits: Tensor, label: Tensor, largest: int | None = None) -> Tensor:
        """Compute the loss.

        Args:
            logits: (B,), (B, 1) or (B, C).
            label: (B,), or (B, C) for a label per entry.
            largest: label; None: look for it, which waits for an accelerator.

        Raises:
            LossError: shapes do not match, or the loss raises or does not return a number.
            LabelError: a label of a class loss is not the number of one of the logits.
        """
        logits, label = self._fit(logits, label, largest)
        try:
            value = self.function(logits, label)
        except Exception as error:
            raise LossError(
                f"{_FIELD}: {self.entrypoint!r} raised {type(error).__name__} for logits {tuple(logits.shape)} and "
                f"labels {tuple(label.shape)}: {error}.",
                fix="the loss is called as loss(logits, label).",
                where=error_location(error),
            ) from error
        num_samples = logits.shape[0]
        if not isinstance(value, Tensor) or value.shape not in ((), (num_samples,)):
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise LossError(
                f"{_FIELD}: {self.entrypoint!r} returned {shape} for {num_samples} samples.",
                fix="return the mean over the batch (a scalar), or one loss per sample (B,).",
                where=function_location(self.function),
            )
        if value.dim() == 1:
            return value.sum()
        if not self.sums:
            return value * num_samples
        entries_per_sample = label.numel() // max(num_samples, 1)
        return value / entries_per_sample if entries_per_sample > 1 else value

    def _fit(self, logits: Tensor, label: Tensor, largest: int | None) -> tuple[Tensor, Tensor]:
        if logits.dim() == 2 and logits.shape[1] == 1 and label.dim() == 1 and self.labels != "classes":
            logits = logits.squeeze(1)
        classes = self.labels == "classes" or (self.labels == "by shape" and logits.dim() == 2 and label.dim() == 1)
        if classes:
            expected = "logits (B, C) and labels (B,) that hold class numbers"
            fits = logits.dim() == 2 and label.shape == logits.shape[:1]
        else:
            expected = "logits (B,) or (B, 1) and labels (B,), or both (B, C)"
            fits = logits.dim() in (1, 2) and label.shape == logits.shape
        if not fits:
            raise LossError(
                f"{_FIELD}: {self.entrypoint!r} expects {expected}, but the model returned logits "
                f"{tuple(logits.shape)} for labels {tuple(label.shape)}.",
                fix="change the last layer's size, or name another loss.",
            )
        label = label.to(torch.int64 if classes else logits.dtype)
        if self.labels == "classes" and label.numel():
            largest = int(label.max()) if largest is None else largest
        if self.labels == "classes" and largest is not None and largest >= logits.shape[1]:
            index = int(label.argmax())
            raise LabelError(index, int(label[index]), logits.shape[1])
        return logits, label


def resolve_loss(entrypoint: str) -> LossSum:
    """Import a loss: a function of (logits, label), a loss class, or a loss module.

    Args:
        entrypoint: `module:callable`, such as `torch.nn.functional:cross_entropy`, `torch.nn:BCEWithLogitsLoss` or
            the user's own.

    Raises:
        EntrypointError: the entry point cannot be imported.
        LossError: it is not a loss, or a class that needs arguments.
    """
    found = resolve_entrypoint(entrypoint, _FIELD)
    name = str(getattr(found, "__name__", ""))
    if isinstance(found, type) and issubclass(found, nn.Module):
        found = _instance(found, entrypoint)
    if isinstance(found, nn.Module):
        name = next((name for kind, name in _MODULE_NAMES.items() if isinstance(found, kind)), "")
        if not hasattr(found, "reduction"):
            return LossSum(entrypoint, found, False, _labels(name))
        summed: Any = copy.copy(found)
        summed.reduction = "sum"
        return LossSum(entrypoint, summed, True, _labels(name))
    if not callable(found) or isinstance(found, type):
        raise LossError(
            f"{_FIELD}: {entrypoint!r} is {type(found).__name__}, which is not a loss.",
            fix="name a function of (logits, label) or a loss module, such as "
            "torch.nn.functional:binary_cross_entropy_with_logits.",
        )
    sums = _takes_reduction(found)
    of_torch = str(getattr(found, "__module__", "")).startswith("torch.")
    return LossSum(entrypoint, _Summed(found) if sums else found, sums, _labels(name if of_torch else ""))


@dataclass(frozen=True)
class _Summed:
    """A function with a `reduction` parameter, called with "sum"."""

    function: Callable[..., Any]

    def __call__(self, logits: Tensor, label: Tensor) -> Any:
        return self.function(logits, label, reduction="sum")


def _instance(kind: type[nn.Module], entrypoint: str) -> nn.Module:
    try:
        return kind()
    except TypeError as error:
        raise LossError(
            f"{_FIELD}: the class {entrypoint!r} cannot be created without arguments: {error}.",
            fix="name a function of (logits, label) that creates what it needs.",
            where=function_location(kind),
        ) from error


def _takes_reduction(function: Callable[..., Any]) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except ValueError:  # built-ins publish no signature
        return False


def _labels(name: str) -> str:
    if name in _CLASS_LOSSES:
        return "classes"
    return "values" if name in _VALUE_LOSSES else "by shape"
