"""Healthy jobs get their turns beside hostile neighbours. `python -m tests.hostile` measures how soon."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.kubernetes.reading.readable import JOB, NODE, POD, POOL, check
from tests.hostile import run, strangers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [7, 8])
def test_healthy_jobs_get_every_turn_beside_hostile_neighbours(seed: int) -> None:
    outcome = run(300, seed, drippers=6, per_second=300.0)
    assert len(outcome.before) > 0
    assert len(outcome.beside) >= 8, "each of the healthy jobs"
    assert outcome.events > 0, "the strangers were told"


def test_the_generator_is_seeded_and_makes_what_is_refused_and_what_is_let_in() -> None:
    drawn = [
        [(kind, json.dumps(item), gone) for kind, item, gone in islice(strangers(random.Random(3)), 300)]
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    let_in = {POD: 0, JOB: 0, NODE: 0, POOL: 0}
    refused = dict(let_in)
    for kind, text, _ in drawn[0]:
        try:
            check(kind, json.loads(text))
            let_in[kind] += 1
        except UnreadableError:
            refused[kind] += 1
    assert min(let_in.values()) > 0
    assert min(refused.values()) > 0
