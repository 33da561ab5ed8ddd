"""The bounds of a bill, from lists of pods."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos.cluster.bill import Existence, wrong_bill

BEGAN = 1_700_000_000


def pod(uid: str, units: int = 1, *, finished: int | None = None, deleted: bool = False, heard: bool = True) -> Any:
    state = {"running": {}} if finished is None else {"terminated": {"finishedAt": moment(finished)}}
    metadata: dict[str, Any] = {
        "uid": uid,
        "creationTimestamp": moment(0),
        "annotations": {"heterps.io/process": json.dumps({"units": units})},
    }
    if deleted:
        metadata["deletionTimestamp"] = moment(0)
    conditions = [{"type": "Ready", "status": "True" if heard else "Unknown"}]
    return {"metadata": metadata, "status": {"containerStatuses": [{"state": state}], "conditions": conditions}}


def moment(seconds: int) -> str:
    return datetime.fromtimestamp(BEGAN + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def bounds(*lists: tuple[float, list[Any]], longest_gap: float = 1000.0) -> tuple[float, float]:
    existence = Existence(longest_gap)
    for seconds, pods in lists:
        existence.listed(pods, BEGAN + seconds)
    return existence.bounds(BEGAN + 1000.0)


def test_a_finished_pod_is_charged_to_its_end_or_to_the_news_of_it() -> None:
    assert list(bounds((5, [pod("a", 2)]), (110, [pod("a", 2, finished=101)]))) == pytest.approx(
        [2 * 100 * 0.98, 2 * 111 * 1.02]
    )


def test_a_pod_that_disappears_is_charged_to_a_moment_between_two_lists() -> None:
    assert list(bounds((101, [pod("a")]), (111, []))) == pytest.approx([100 * 0.98, 112 * 1.02])


@pytest.mark.parametrize("sign", [{"deleted": True}, {"heard": False}])
def test_a_pod_that_is_to_end_may_be_charged_to_its_end_or_not(sign: Any) -> None:
    assert list(
        bounds((51, [pod("a")]), (70, [pod("a", **sign)]), (99, [pod("a", finished=99, **sign)]))
    ) == pytest.approx([50 * 0.98, 100 * 1.02])


def test_pods_may_come_and_go_while_the_campaign_stands_still() -> None:
    lists: list[tuple[float, list[Any]]] = [(10, [pod("a", 2)]), (30, [pod("a", 2)]), (32, [])]
    least, most = bounds(*lists)
    assert list(bounds(*lists, longest_gap=5.0)) == pytest.approx([least, most + 20 * 2 * 1.02])


def test_a_pod_without_units_costs_nothing() -> None:
    assert bounds((10, [pod("a", 0)]), (20, [])) == (0.0, 0.0)


def test_a_bill_outside_its_bounds_is_noticed() -> None:
    assert wrong_bill(100.0, (90.0, 110.0)) == []
    assert wrong_bill(80.0, (90.0, 110.0)) == ["the bill has 80.0 unit-seconds, its pods existed for 90.0 to 110.0"]
    assert wrong_bill(120.0, (90.0, 110.0))
