from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.store.lookup import Bags, Mode, bag_backward, bag_forward, gather, scatter_add

NUM_IDS, DIM = 9, 4
PADDING = 3


def draw_ids(rng: np.random.Generator, size: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A full table, ids, and what a worker has in their place: the unique rows and positions among them."""
    table, ids = rng.normal(size=(NUM_IDS, DIM)), rng.integers(0, NUM_IDS, size)
    unique, inverse = UniqueKeys()(ids)
    return table, ids, unique, inverse


def backward(output: torch.Tensor, grad: NDArray[Any]) -> None:
    torch.autograd.backward([output], [torch.from_numpy(grad)])


def gradient(tensor: torch.Tensor) -> NDArray[Any]:
    assert tensor.grad is not None
    return tensor.grad.numpy()


@pytest.mark.parametrize("padding_idx", [None, PADDING])
def test_gather_and_scatter_add_are_embedding_and_its_gradient(padding_idx: int | None) -> None:
    rng = np.random.default_rng(0)
    table, ids, unique, inverse = draw_ids(rng, 40)
    grad = rng.normal(size=(40, DIM))
    weight = torch.from_numpy(table).requires_grad_()
    expected = functional.embedding(torch.from_numpy(ids), weight, padding_idx=padding_idx)
    backward(expected, grad)
    np.testing.assert_array_equal(gather(table[unique], inverse), expected.detach().numpy())
    skip = None if padding_idx is None else ids == padding_idx
    accumulator = np.zeros((len(unique), DIM))
    scatter_add(grad, inverse, accumulator, skip)
    np.testing.assert_allclose(accumulator, gradient(weight)[unique], rtol=1e-14, atol=1e-14)
    if padding_idx is not None:
        assert not accumulator[unique == padding_idx].any()


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5), (6, 2, 3), (1, 5), (0, 5)])
def test_gradients_may_be_a_part_of_wider_ones(shape: tuple[int, ...]) -> None:
    """As the gradient of a concatenation is; and in any other layout, which is copied."""
    rng = np.random.default_rng(2)
    inverse = rng.integers(0, 9, int(np.prod(shape))).astype(np.int32)
    wide = rng.normal(size=(shape[0], 3 + int(np.prod(shape[1:])) * DIM + 2))
    part = wide[:, 3:-2].reshape(*shape, DIM)
    part = np.lib.stride_tricks.as_strided(wide[:, 3:], part.shape, (wide.strides[0], *part.strides[1:]))
    expected, found, other = (np.zeros((9, DIM)) for _ in range(3))
    np.add.at(expected, inverse, part.reshape(-1, DIM))
    scatter_add(part, inverse, found)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
    scatter_add(np.asfortranarray(part), inverse, other)
    np.testing.assert_array_equal(other, found)
    bags = Bags(inverse, np.arange(0, inverse.size + 1, max(1, inverse.size // max(1, shape[0])))[: shape[0]])
    rows = wide[:, 3 : 3 + DIM]
    one, two = np.zeros((9, DIM)), np.zeros((9, DIM))
    bag_backward(rows, bags, np.empty((0, DIM), np.int32), one)
    bag_backward(rows.copy(), bags, np.empty((0, DIM), np.int32), two)
    np.testing.assert_array_equal(one, two)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["sum", "mean", "max"]),
    weighted=st.booleans(),
    padded=st.booleans(),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_bags_are_embedding_bag_and_its_gradients(
    mode: Mode, weighted: bool, padded: bool, lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    table, ids, unique, inverse = draw_ids(rng, sum(lengths))
    if padded and lengths[0]:
        ids[: lengths[0]] = PADDING  # one bag with nothing but padding
        unique, inverse = UniqueKeys()(ids)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    weights = rng.normal(size=len(ids)) if weighted and mode == "sum" else None
    grad = rng.normal(size=(len(lengths), DIM))

    weight = torch.from_numpy(table).requires_grad_()
    expected = functional.embedding_bag(
        torch.from_numpy(ids),
        weight,
        torch.from_numpy(offsets),
        mode=mode,
        per_sample_weights=None if weights is None else torch.from_numpy(weights),
        padding_idx=PADDING if padded else None,
    )
    backward(expected, grad)

    bags = Bags(inverse, offsets, mode, weights, ids == PADDING if padded else None)
    rows, accumulator = table[unique], np.zeros((len(unique), DIM))
    pooled, winners = bag_forward(rows, bags)
    bag_backward(grad, bags, winners, accumulator)
    np.testing.assert_allclose(pooled, expected.detach().numpy(), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(accumulator, gradient(weight)[unique], rtol=1e-13, atol=1e-14)


def test_the_first_of_equal_maxima_gets_the_gradient_as_in_torch() -> None:
    table = np.array([[1.0], [1.0], [0.0]])
    weight = torch.from_numpy(table).requires_grad_()
    backward(functional.embedding_bag(torch.tensor([2, 1, 0]), weight, torch.tensor([0]), mode="max"), np.ones((1, 1)))
    bags = Bags(np.array([2, 1, 0], np.int32), np.array([0]), "max")
    pooled, winners = bag_forward(table, bags)
    accumulator = np.zeros_like(table)
    bag_backward(np.ones_like(pooled), bags, winners, accumulator)
    np.testing.assert_array_equal(accumulator, gradient(weight))
    assert accumulator.tolist() == [[0], [1], [0]]


def test_weights_need_mode_sum_as_in_torch() -> None:
    bags = Bags(np.zeros(1, np.int32), np.zeros(1, np.int64), "mean", np.ones(1))
    with pytest.raises(ValueError, match="per_sample_weights: only for mode 'sum'"):
        bag_forward(np.ones((1, 1)), bags)
