"""Profiles of this release, of one with additions, and of a newer one (docs/compatibility.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.control.problem import build_problem
from heterps_operator.control.profiles import is_profile
from heterps_planner import Problem
from tests.heterps_operator.helpers.world import PROFILE, make_job

V1: dict[str, Any] = json.loads((Path(__file__).parents[2] / "fixtures" / "v1" / "profile.json").read_text())


def test_a_profile_of_version_1_is_read() -> None:
    assert is_profile(V1)
    problem = build_problem(make_job(), {"cpu": V1, "gpu": V1})
    assert [layer["name"] for layer in problem["layers"]] == [layer["name"] for layer in V1["layers"]]
    Problem.from_json(problem)


def test_additions_to_a_profile_are_ignored() -> None:
    later = {**V1, "addedLater": 1, "layers": [{**layer, "addedLater": 1} for layer in V1["layers"]]}
    assert is_profile(later)
    assert build_problem(make_job(), {"cpu": later, "gpu": later}) == build_problem(make_job(), {"cpu": V1, "gpu": V1})


def test_a_profile_of_a_newer_runtime_is_refused_with_both_versions_and_the_remedy() -> None:
    text = "profile of pool gpu: has version 2, but this operator reads versions up to 1; upgrade the operator"
    with pytest.raises(ValueError, match=text):
        build_problem(make_job(), {"cpu": PROFILE, "gpu": {**PROFILE, "version": 2}})


@pytest.mark.parametrize("version", [2, None])
def test_a_kept_profile_of_another_version_is_measured_again(version: int | None) -> None:
    assert not is_profile({**V1, "version": version})
