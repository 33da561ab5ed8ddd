"""The user's loss as a sum over samples."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from heterps_runtime.intake import resolve_loss
from heterps_runtime.intake.errors import EntrypointError, LossError

LOGITS = torch.randn(6, generator=torch.Generator().manual_seed(0))
LABEL = torch.tensor([0, 1, 1, 0, 1, 0])
BCE = "torch.nn.functional:binary_cross_entropy_with_logits"


@pytest.fixture
def users() -> Iterator[Any]:
    """An importable module of the user's."""
    module = types.ModuleType("users_losses")
    sys.modules["users_losses"] = module
    yield module
    del sys.modules["users_losses"]


@pytest.mark.parametrize("entrypoint", [BCE, "torch.nn:BCEWithLogitsLoss"])
@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_binary_losses_take_integer_labels_and_a_closing_dimension(entrypoint: str, shape: tuple[int, ...]) -> None:
    expected = F.binary_cross_entropy_with_logits(LOGITS, LABEL.float()) * 6
    torch.testing.assert_close(resolve_loss(entrypoint)(LOGITS.view(shape), LABEL), expected)


def test_labels_take_the_logits_precision() -> None:
    loss = resolve_loss(BCE)(LOGITS.double(), LABEL.float())
    assert loss.dtype == torch.float64
    assert loss.shape == ()


@pytest.mark.parametrize("entrypoint", ["torch.nn.functional:cross_entropy", "torch.nn:CrossEntropyLoss"])
def test_class_losses_take_labels_of_any_number_type(entrypoint: str) -> None:
    logits = LOGITS.view(3, 2)
    for label in (LABEL[:3].float(), LABEL[:3].to(torch.int32)):
        torch.testing.assert_close(resolve_loss(entrypoint)(logits, label), F.cross_entropy(logits, LABEL[:3]) * 3)


def test_the_parts_of_a_batch_add_up_to_the_whole(users: Any) -> None:
    users.mean = lambda logits, label: ((logits - label) ** 2).mean()
    users.each = lambda logits, label: (logits - label) ** 2
    for name in (BCE, "torch.nn:MSELoss", "users_losses:mean", "users_losses:each"):
        loss = resolve_loss(name)
        torch.testing.assert_close(loss(LOGITS[:2], LABEL[:2]) + loss(LOGITS[2:], LABEL[2:]), loss(LOGITS, LABEL))


def test_a_loss_of_the_users_own_is_a_mean_unless_it_can_sum(users: Any) -> None:
    def summing(logits: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
        errors = (logits - label).abs()
        return errors.sum() if reduction == "sum" else errors.mean()

    users.summing, users.mean = summing, lambda logits, label: (logits - label).abs().mean()
    expected = (LOGITS - LABEL).abs().sum()
    torch.testing.assert_close(resolve_loss("users_losses:summing")(LOGITS, LABEL), expected)
    torch.testing.assert_close(resolve_loss("users_losses:mean")(LOGITS, LABEL), expected)


def test_a_loss_module_of_the_users_keeps_its_own_settings(users: Any) -> None:
    users.weighted = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    expected = F.binary_cross_entropy_with_logits(LOGITS, LABEL.float(), pos_weight=torch.tensor(3.0)) * 6
    torch.testing.assert_close(resolve_loss("users_losses:weighted")(LOGITS, LABEL), expected)
    assert users.weighted.reduction == "mean"


def test_several_labels_per_sample_weigh_as_in_pytorchs_mean() -> None:
    logits, label = LOGITS.view(3, 2), LABEL.view(3, 2)
    expected = F.binary_cross_entropy_with_logits(logits, label.float()) * 3
    torch.testing.assert_close(resolve_loss(BCE)(logits, label), expected)


@pytest.mark.parametrize(
    ("entrypoint", "logits", "words"),
    [
        (BCE, LOGITS.view(3, 2), r"expects logits \(B,\) or \(B, 1\) and labels \(B,\)"),
        (BCE, LOGITS[:5], r"returned logits \(5,\) for labels \(6,\)"),
        ("torch.nn:CrossEntropyLoss", LOGITS, r"expects logits \(B, C\) and labels \(B,\) that hold class numbers"),
    ],
)
def test_shapes_that_do_not_fit_say_what_is_expected(entrypoint: str, logits: Tensor, words: str) -> None:
    with pytest.raises(LossError, match=words):
        resolve_loss(entrypoint)(logits, LABEL)


def test_a_loss_that_fails_or_is_no_loss_is_explained(users: Any) -> None:
    class Needs(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()

    users.Needs, users.number, users.one = Needs, 3, lambda logits: logits
    users.shape = lambda logits, label: logits.view(2, 3)
    with pytest.raises(LossError, match=r"cannot be created without arguments: .*'size'"):
        resolve_loss("users_losses:Needs")
    with pytest.raises(LossError, match="is int, which is not a loss"):
        resolve_loss("users_losses:number")
    with pytest.raises(LossError, match=r"raised TypeError.*called as loss\(logits, label\)"):
        resolve_loss("users_losses:one")(LOGITS, LABEL)
    with pytest.raises(LossError, match=r"returned \(2, 3\) for 6 samples"):
        resolve_loss("users_losses:shape")(LOGITS, LABEL)
    with pytest.raises(EntrypointError, match=r"training\.loss: .* did you mean 'cross_entropy'"):
        resolve_loss("torch.nn.functional:cross_entrop")
