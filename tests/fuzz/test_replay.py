"""Every parser takes its corpus and some mutated inputs; `make fuzz` gives it millions."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.bounds import find_excess, measure
from tests.fuzz.corpus import load
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target, execute, find, find_all

_INPUTS = 150  # mutated ones per target
_MEASURED = 10  # of them: counting lines takes ten times as long
TARGETS = find_all()


def inputs(target: Target, number: int) -> list[bytes]:
    """Return the corpus of a target, then mutations of it, always the same ones."""
    draw = random.Random(target.name)
    pool = [*target.seeds(), *load(target)]
    made = []
    for _ in range(number):
        data = draw.choice(pool)
        for _ in range(draw.choice((1, 1, 2, 4))):
            data = mutate(data, target.form, draw, target.longest)
        made.append(data)
    return [*pool, *made]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_parser_raises_only_what_it_declares(target: Target) -> None:
    accepted = [execute(target, data) for data in target.seeds()]
    assert all(accepted), "a seed is not valid"
    for data in inputs(target, _INPUTS):
        try:
            execute(target, data)
        except Exception as error:
            raise AssertionError(f"{target.name} with {data!r}") from error


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_an_input_costs_a_bounded_multiple_of_its_size(target: Target) -> None:
    for data in inputs(target, _MEASURED):
        execute(target, data)  # fills caches: compiled rules, schemas
        assert find_excess(target, len(data), measure(target, data)) is None, data


def test_names_are_unique() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)


# --- the fuzzer finds what was planted --------------------------------------------------------------------------------


def test_mutations_find_a_planted_crash() -> None:
    target = find("control.crash")

    def execute_all() -> None:
        for data in inputs(target, 1000):
            execute(target, data)

    with pytest.raises(RuntimeError, match="planted"):
        execute_all()


@pytest.mark.parametrize(("name", "words"), [("control.memory", "bytes allocated"), ("control.quadratic", "lines")])
def test_the_bounds_find_planted_costs(name: str, words: str) -> None:
    target = find(name)
    excesses = (find_excess(target, len(data), measure(target, data)) for data in inputs(target, 200))
    assert any(words in excess for excess in excesses if excess is not None)
