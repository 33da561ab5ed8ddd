"""The policy network: gradients against torch, any number of pools in any order, forced and free runs agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.policy.adam import Adam
from heterps_planner.policy.cells import cell_of
from heterps_planner.policy.features import NAMES, features_of
from heterps_planner.policy.network import Inputs, Network, Parameters, initial_parameters, stack
from tests.heterps_planner.helpers.problems import random_problem, with_floor

CELLS = ["lstm", "elman"]


def problem_of(seed: int, num_layers: int = 5, num_pools: int = 3, *, holes: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    return with_floor(random_problem(rng, num_layers, num_pools, most_pods=20, holes=holes), 0.5)


def inputs_of(*problems: Problem) -> Inputs:
    return stack([features_of(build_segments(problem)) for problem in problems], np.float64)


def torch_loss(
    cell: str, w: dict[str, torch.Tensor], inputs: Inputs, owner: list[int], action: np.ndarray, weight: np.ndarray,
    entropy_weight: float,
) -> torch.Tensor:  # fmt: skip
    """The same network written sample by sample and layer by layer."""
    hidden = len(w["cell.recurrent"])
    loss = torch.zeros((), dtype=torch.float64)
    for sample, problem in enumerate(owner):
        pair, layer = torch.tensor(inputs.pair[problem]), torch.tensor(inputs.layer[problem])
        first = torch.tanh(pair @ w["embed.first"] + w["embed.first.bias"])
        context = first.mean(dim=1, keepdim=True) @ w["embed.mean"] + w["embed.second.bias"]
        embedding = torch.tanh(first @ w["embed.second"] + context)
        output, memory = torch.zeros(hidden, dtype=torch.float64), torch.zeros(hidden, dtype=torch.float64)
        closed = np.zeros(pair.shape[1])
        begin, before = 0, -1
        for i, chosen in enumerate(action[sample].tolist()):
            total = layer[i] @ w["cell.layer"] + embedding[i].mean(dim=0) @ w["cell.mean"] + w["cell.bias"]
            if i:
                total = total + embedding[i - 1, before] @ w["cell.previous"]
            total = total + output @ w["cell.recurrent"]
            if cell == "lstm":
                enter, forget, candidate, leave = total.reshape(4, hidden)
                memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(candidate)
                output = torch.sigmoid(leave) * torch.tanh(memory)
            else:
                output = torch.tanh(total)
            query = output @ w["query"] + w["query.bias"]
            dynamic = np.zeros((pair.shape[1], 5))
            filled = closed + inputs.share[problem, i, i]
            if i:
                stage = (problem, begin, i, before)
                filled[before] = closed[before] + inputs.share[stage]
                dynamic[before, :3] = 1, inputs.sequential[stage], inputs.extension[stage]
            dynamic[:, 3], dynamic[:, 4] = np.minimum(filled, 1), np.clip(filled - 1, 0, 2)
            score = torch.cat([embedding[i], torch.tensor(dynamic)], dim=1) @ query
            log_probability = torch.log_softmax(score + torch.tensor(inputs.mask[problem, i]), dim=0)
            loss = loss - float(weight[sample]) * log_probability[chosen]
            entropy = -(log_probability.exp() * log_probability.clamp(min=-50)).sum()
            loss = loss - entropy_weight * entropy / len(owner)
            if i and chosen != before:
                closed[before] += inputs.share[problem, begin, i - 1, before]
                begin = i
            before = chosen
    return loss


def check_gradient(cell: str, inputs: Inputs, owner: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = initial_parameters(rng, cell, embedding=4, hidden=5, dtype=np.float64)
    encoded = Network(weights, cell).encode(inputs)
    rows = np.array(owner)
    action = encoded.choose(rows, rng, temperature=3.0)
    weight = rng.standard_normal(len(owner))
    forced = encoded.forced(rows, action)
    gradient = forced.gradient(weight, 0.3)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    loss = torch_loss(cell, tensors, inputs, owner, action, weight, 0.3)
    loss.backward()  # type: ignore[no-untyped-call]
    mine = -float(weight @ forced.log_likelihood) - 0.3 * float(forced.entropy.sum()) * action.shape[1] / len(owner)
    assert mine == pytest.approx(loss.item(), rel=1e-10)
    assert set(gradient) == set(weights)
    for name, tensor in tensors.items():
        expected = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()  # None: not used
        np.testing.assert_allclose(gradient[name], expected, rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_of_samples_of_one_problem_is_that_of_torch(cell: str) -> None:
    check_gradient(cell, inputs_of(problem_of(1)), [0, 0, 0, 0], 2)


@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_of_samples_of_several_problems_is_that_of_torch(cell: str) -> None:
    problems = [problem_of(seed, holes=True) for seed in (3, 4, 5)]
    check_gradient(cell, inputs_of(*problems), [0, 1, 2, 1], 6)


@pytest.mark.parametrize("cell", CELLS)
def test_a_single_layer_has_a_gradient_too(cell: str) -> None:
    check_gradient(cell, inputs_of(problem_of(7, num_layers=1)), [0, 0], 8)


@pytest.mark.parametrize("cell", CELLS)
def test_one_set_of_parameters_serves_any_number_of_pools(cell: str) -> None:
    weights = initial_parameters(np.random.default_rng(0), cell)
    for num_pools in (1, 2, 7, 64):
        problem = problem_of(9, num_layers=6, num_pools=num_pools)
        encoded = Network(weights, cell).encode(inputs_of(problem))
        chosen = encoded.choose(np.zeros(50, dtype=np.intp), np.random.default_rng(1))
        assert chosen.shape == (50, 6)
        assert chosen.min() >= 0
        assert chosen.max() == min(num_pools - 1, chosen.max())
        assert num_pools == 1 or len(np.unique(chosen)) > 1


@pytest.mark.parametrize("cell", CELLS)
def test_the_order_of_the_pools_does_not_matter(cell: str) -> None:
    problem = problem_of(10, num_layers=6, num_pools=5)
    order = [3, 0, 4, 1, 2]  # position -> pool
    turned = replace(problem, pools=tuple(problem.pools[t] for t in order))
    network = Network(initial_parameters(np.random.default_rng(0), cell, dtype=np.float64), cell)
    action = np.random.default_rng(1).integers(5, size=(20, 6))
    position = np.argsort(order)  # pool -> position
    owner = np.zeros(20, dtype=np.intp)
    here = network.encode(inputs_of(problem)).forced(owner, action)
    there = network.encode(inputs_of(turned)).forced(owner, position[action])
    np.testing.assert_allclose(here.log_likelihood, there.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(here.probability, there.probability[:, :, position], rtol=1e-8)


def test_an_invalid_value_that_blas_reports_for_finite_products_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(problem_of(3))
    network = Network(initial_parameters(np.random.default_rng(4), dtype=np.float64))
    owner, matmul = np.zeros(2, dtype=np.intp), np.matmul
    expected = network.encode(inputs).forced(owner, network.encode(inputs).choose(owner, None))

    def reporting(*arguments: np.ndarray) -> np.ndarray:
        _ = np.array(np.inf) - np.inf
        product: np.ndarray = matmul(*arguments)
        return product

    with pytest.raises(RuntimeWarning, match="invalid value"):
        reporting(np.eye(2), np.eye(2))
    monkeypatch.setattr(np, "matmul", reporting)
    found = network.encode(inputs).forced(owner, network.encode(inputs).choose(owner, None))
    np.testing.assert_array_equal(found.probability, expected.probability)
    gradient, same = found.gradient(np.ones(2)), expected.gradient(np.ones(2))
    assert all(np.array_equal(gradient[name], same[name]) for name in same)


@pytest.mark.parametrize("name", ["query", "cell.recurrent", "embed.second"])
def test_parameters_that_are_not_numbers_are_an_error(name: str) -> None:
    inputs = inputs_of(problem_of(3))
    parameters = initial_parameters(np.random.default_rng(4), dtype=np.float64)
    parameters[name][0, 0] = np.nan
    encoded, owner = Network(parameters).encode(inputs), np.zeros(1, dtype=np.intp)
    with pytest.raises(FloatingPointError, match="not finite"):
        encoded.choose(owner, None)
    with pytest.raises(FloatingPointError, match="not finite"):
        encoded.forced(owner, np.zeros((1, 5), dtype=np.intp))


def test_units_of_time_and_money_do_not_matter() -> None:
    problem = problem_of(11)
    slower = replace(
        problem,
        min_samples_per_second=problem.min_samples_per_second / 60,
        pools=tuple(replace(pool, price_per_unit_hour=pool.price_per_unit_hour * 7) for pool in problem.pools),
        layers=tuple(
            replace(
                layer,
                pools={
                    name: replace(
                        times, compute_seconds=times.compute_seconds * 60, transfer_seconds=times.transfer_seconds * 60
                    )
                    for name, times in layer.pools.items()
                },
            )
            for layer in problem.layers
        ),
    )
    here, there = features_of(build_segments(problem)), features_of(build_segments(slower))
    np.testing.assert_allclose(here.pair, there.pair, atol=1e-6)
    np.testing.assert_allclose(here.layer, there.layer, atol=1e-6)


def test_features_lie_in_their_range_and_differ_between_pools() -> None:
    for seed in range(6):
        features = features_of(build_segments(problem_of(seed, num_layers=7, num_pools=4, holes=True)))
        assert features.pair.shape == (7, 4, len(NAMES))
        assert np.abs(features.pair).max() <= 1
        assert np.isfinite(features.raw).all()
        assert (features.pair.std(axis=1) > 0.01).any()


@pytest.mark.parametrize("cell", CELLS)
def test_a_pool_that_cannot_run_a_layer_is_never_chosen(cell: str) -> None:
    problem = problem_of(12, num_layers=6, num_pools=3, holes=True)
    possible = features_of(build_segments(problem)).possible
    assert not possible.all()
    encoded = Network(initial_parameters(np.random.default_rng(0), cell), cell).encode(inputs_of(problem))
    chosen = encoded.choose(np.zeros(200, dtype=np.intp), np.random.default_rng(1), temperature=100.0)
    assert possible[np.arange(6), chosen].all()


@pytest.mark.parametrize("cell", CELLS)
def test_draws_follow_the_probabilities_along_the_drawn_choices(cell: str) -> None:
    """Frequencies of whole schedules against the likelihood from the forced run."""
    problem = problem_of(13, num_layers=3, num_pools=2)
    weights = initial_parameters(np.random.default_rng(3), cell, dtype=np.float64)
    encoded = Network(weights, cell).encode(inputs_of(problem))
    every = np.array([[a, b, c] for a in range(2) for b in range(2) for c in range(2)], dtype=np.intp)
    expected = np.exp(encoded.forced(np.zeros(8, dtype=np.intp), every).log_likelihood)
    assert expected.sum() == pytest.approx(1, rel=1e-9)
    drawn = encoded.choose(np.zeros(4_000, dtype=np.intp), np.random.default_rng(4))
    counts = np.bincount(drawn @ np.array([4, 2, 1]), minlength=8) / 4_000
    np.testing.assert_allclose(counts, expected, atol=0.03)
    greedy = encoded.choose(np.zeros(1, dtype=np.intp), None)
    probability = encoded.forced(np.zeros(1, dtype=np.intp), greedy).probability
    np.testing.assert_array_equal(greedy[0], probability[0].argmax(axis=1))


@pytest.mark.parametrize("cell", CELLS)
def test_batches_of_problems_choose_what_each_problem_alone_chooses(cell: str) -> None:
    problems = [problem_of(seed, num_layers=6, num_pools=4) for seed in (14, 15, 16)]
    network = Network(initial_parameters(np.random.default_rng(5), cell, dtype=np.float64), cell)
    together = network.encode(inputs_of(*problems)).choose(np.arange(3), None)
    for problem, row in zip(problems, together, strict=True):
        alone = network.encode(inputs_of(problem)).choose(np.zeros(1, dtype=np.intp), None)
        np.testing.assert_array_equal(alone[0], row)


def test_adam_goes_one_rate_per_step_against_a_constant_gradient() -> None:
    weights: Parameters = {"a": np.zeros(3), "b": np.zeros(2)}
    adam = Adam(weights, 0.01, most_norm=0.5)
    gradient: Parameters = {"a": np.array([3.0, -4.0, 0.0]), "b": np.array([12.0, 0.0])}
    for _ in range(5):
        adam.step(gradient)
    np.testing.assert_allclose(weights["a"], [-0.05, 0.05, 0.0], rtol=1e-5)
    np.testing.assert_allclose(weights["b"], [-0.05, 0.0], rtol=1e-5)


def test_adam_finds_the_least_of_a_bowl() -> None:
    weights: Parameters = {"a": np.array([3.0, -2.0])}
    adam = Adam(weights, 0.05)
    for _ in range(600):
        adam.step({"a": 2 * (weights["a"] - np.array([1.0, 0.5]))})
    np.testing.assert_allclose(weights["a"], [1.0, 0.5], atol=1e-3)


def test_cells_are_found_by_name() -> None:
    assert [cell_of(name).name for name in CELLS] == CELLS
