"""The clusters match the document."""

from __future__ import annotations

import pytest
from experiments.clusters import FLOOR_OF_PROFILE, MODELS, PAPER_MODELS, cluster, fits, paper_case, unlimited
from experiments.devices import load_profile

from heterps_planner import Plan, Problem, plan


@pytest.mark.parametrize("model", MODELS)
def test_two_pools_are_the_papers_cluster(model: str) -> None:
    problem = cluster(model, 2)
    pools = [(pool.name, pool.price_per_unit_hour, pool.max_units) for pool in problem.pools]
    assert pools == [("cpu", 0.04, 480), ("v100", 2.42, 32)]
    assert problem.min_samples_per_second > 0
    assert problem == cluster(model, 2, seed=3)


@pytest.mark.parametrize("num_pools", [2, 4, 16, 64])
def test_all_pools_count_and_differ(num_pools: int) -> None:
    problem = cluster("nce", num_pools)
    assert len(problem.pools) == num_pools
    assert len({pool.name for pool in problem.pools}) == num_pools
    kinds = {(pool.name.split("-region")[0], pool.price_per_unit_hour) for pool in problem.pools}
    assert len(kinds) == num_pools  # other speed or other price
    assert all(set(layer.pools) == {pool.name for pool in problem.pools} for layer in problem.layers)
    assert Problem.from_json(problem.to_json()) == problem


def test_a_small_cluster_is_the_beginning_of_a_large_one() -> None:
    assert cluster("nce", 64, seed=2).pools[:16] == cluster("nce", 16, seed=2).pools


def test_the_seed_decides() -> None:
    assert cluster("nce", 16, seed=1) == cluster("nce", 16, seed=1)
    assert cluster("nce", 16, seed=1) != cluster("nce", 16, seed=2)


@pytest.mark.parametrize("model", PAPER_MODELS)
@pytest.mark.parametrize("num_pools", [2, 4])
def test_tight_limits_rule_out_the_unlimited_optimum(model: str, num_pools: int) -> None:
    problem = cluster(model, num_pools, limits="tight")
    free, found = plan(unlimited(problem)), plan(problem)
    assert isinstance(free, Plan)
    assert isinstance(found, Plan)
    assert not fits(problem, free)
    assert fits(problem, found)
    assert found.cost > free.cost * (1 + 1e-6)


def test_several_tight_limits_bind() -> None:
    binding = []
    for model in PAPER_MODELS:
        found = plan(cluster(model, 16, limits="tight"))
        assert isinstance(found, Plan)
        binding.append(len(found.binding_limits))
    assert sum(number >= 2 for number in binding) >= 3
    assert min(binding) >= 1


def test_loose_limits_are_wide_enough_for_every_floor() -> None:
    for model in PAPER_MODELS:
        assert isinstance(plan(cluster(model, 4)), Plan)


def test_the_papers_types_differ_in_price_and_number_only() -> None:
    problem = paper_case("matchnet", 8)
    cards = sorted(problem.pools[1:], key=lambda pool: pool.price_per_unit_hour)
    assert len({pool.price_per_unit_hour for pool in cards}) == 7
    assert [cards[0].price_per_unit_hour, cards[-1].price_per_unit_hour] == pytest.approx([2.42 / 2, 2.42 * 2])
    assert [cards[0].max_units, cards[-1].max_units] == [1, 8]
    for layer in problem.layers:
        times = [layer.pools[pool.name] for pool in cards]
        assert len({(t.compute_seconds, t.transfer_seconds, t.parallel_fraction) for t in times}) == 1


def test_all_models_have_their_floor_by_the_same_rule() -> None:
    for model in PAPER_MODELS:
        floor = paper_case(model, 2).min_samples_per_second
        assert floor == pytest.approx(FLOOR_OF_PROFILE * load_profile(model).min_samples_per_second)
        assert paper_case(model, 8).min_samples_per_second == floor


def test_cores_alone_miss_the_floor_for_two_models() -> None:
    reached = {model: isinstance(plan(paper_case(model, 2), "cpu"), Plan) for model in PAPER_MODELS}
    assert reached == {"matchnet": False, "ctrdnn": False, "2emb": True, "nce": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("nosuch", 2), "no model 'nosuch'"), (("nce", 1), "must be 2..64"), (("nce", 65), "must be 2..64")],
)
def test_wrong_arguments_are_named(arguments: tuple[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster(*arguments)
