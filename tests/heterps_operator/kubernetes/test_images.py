"""Images that move: a profile is not used for another image than that with which it was measured."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.reading.images import RunningImage, image_id, moved_images
from tests.heterps_operator.helpers.job_world import events
from tests.heterps_operator.helpers.life import Life

ONE, TWO = "example.com/flights@sha256:1111", "example.com/flights@sha256:2222"


def test_the_image_is_that_of_the_runtime_s_container() -> None:
    sidecar, runtime = {"name": "proxy", "imageID": TWO}, {"name": "heterps", "imageID": ONE}
    assert image_id({"status": {"containerStatuses": [sidecar, runtime]}}) == ONE
    for status in ({}, {"containerStatuses": [sidecar]}, {"containerStatuses": [{"name": "heterps", "imageID": 5}]}):
        assert image_id({"status": status}) == ""
    assert image_id({}) == ""


@pytest.mark.parametrize(
    ("measured", "runs", "moved"),
    [
        (ONE, TWO, True),
        (ONE, ONE, False),
        (ONE, "mirror.example.com/flights@sha256:1111", False),
        ("sha256:1111", "sha256:2222", True),
        (ONE, "sha256:1111", False),  # of the configuration: another kind of digest
        (ONE, "", False),
        ("", TWO, False),
    ],
)
def test_other_digests_of_the_same_kind_are_other_images(measured: str, runs: str, moved: bool) -> None:
    process = RunningImage("worker-0-0", "cpu", runs)
    assert moved_images({"cpu": measured}, [process]) == ({"cpu": process} if moved else {})
    assert moved_images({}, [process]) == {}


class Tagged(Life):
    """A cluster whose kubelets report the image that the tag of the job's image stands for."""

    image = ONE

    def _set(self, path: str, status: Mapping[str, Any]) -> None:
        kept = status.get("containerStatuses") or [{"name": "heterps"}]
        known = (self.server.objects[path].get("status") or {}).get("containerStatuses") or [{"imageID": self.image}]
        named = [{**container, "imageID": known[0]["imageID"]} for container in kept]
        super()._set(path, {**status, "containerStatuses": named})


def new_job(life: Life) -> None:
    """End the job; another one with the same spec takes its name."""
    life.operator.close()
    for path, item in list(life.server.objects.items()):
        if "/pods/" in path:
            life.cluster.pods.remove(item)
        if "/heterps-profile-" not in path:
            del life.server.objects[path]
    life.job = copy.deepcopy(life.job)
    life.job["metadata"]["uid"] += "-again"
    life.cluster.jobs.put(life.job)


def moved(life: Life) -> list[str]:
    return [message for reason, message in events(life) if reason == "ImageMoved"]


def measured(life: Life) -> bool:
    """Run until the job trains; return whether it was measured first."""
    life.train()
    life.settle()
    return any(reason == "ProfilingStarted" for reason, _ in events(life))


def test_a_job_of_a_tag_that_has_moved_measures_again_once(tmp_path: Path) -> None:
    life = Tagged(tmp_path)
    assert measured(life)
    new_job(life)
    assert not measured(life)
    assert moved(life) == []
    new_job(life)
    life.image = TWO
    assert not measured(life), "what the tag stands for is known once a pod runs"
    [first, second] = sorted(moved(life))
    assert first.startswith(f"pool accelerator was measured with the image {ONE}, worker-1-0 runs {TWO} under the")
    assert second.startswith("pool cpu ")
    life.replace_operator()
    life.settle()
    assert len(moved(life)) == 2
    assert set(life.operator._session._loop.profiles) == {"accelerator", "cpu"}, "for the plan that it runs with"  # type: ignore[union-attr]
    new_job(life)
    assert measured(life)
    assert moved(life) == []
    new_job(life)
    assert not measured(life)
    assert moved(life) == []


def test_an_api_server_that_does_not_answer_delays_the_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Tagged(tmp_path)
    life.train()
    new_job(life)
    life.image = TWO
    patch = life.server.patch

    def refuse(path: str, body: Any) -> Any:
        raise ApiError(503, "ServiceUnavailable", "etcd is away")

    monkeypatch.setattr(life.server, "patch", refuse)
    life.train()
    life.settle()
    assert moved(life) == []
    monkeypatch.setattr(life.server, "patch", patch)
    life.settle()
    assert len(moved(life)) == 2
