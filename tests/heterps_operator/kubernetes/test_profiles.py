"""Profiles in ConfigMaps: keyed by their inputs, and by nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest

from heterps_operator.formatting import format_time
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache, outdated_profiles
from tests.heterps_operator.helpers.documents import POOLS, Json, make_job
from tests.heterps_operator.helpers.life import Life
from tests.heterps_operator.helpers.structure import check

PROFILE = {"version": 1, "batchSize": 512, "samples": 1000, "layers": [{"name": "mlp", "computeSeconds": 0.01}]}


class Objects:
    """An API server that stores objects by path."""

    def __init__(self) -> None:
        self.items: dict[str, Json] = {}
        self.refusal: ApiError | None = None

    def get(self, path: str) -> Json | None:
        return self.items.get(path)

    def apply(self, path: str, body: Json) -> Json:
        if self.refusal is not None:
            raise self.refusal
        check(body)
        self.items[path] = body
        return body

    def patch(self, path: str, body: Json) -> Json:
        if path not in self.items:
            raise ApiError(404, "NotFound", f"{path} not found")
        self.items[path]["metadata"]["annotations"] |= body["metadata"]["annotations"]
        return self.items[path]


def configuration(job: Json | None = None) -> Json:
    return {"version": 1, "job": job or make_job(), "pools": copy.deepcopy(list(POOLS.values()))}


def cache(objects: Objects, document: Json, namespace: str = "ml") -> ConfigMapProfileCache:
    return ConfigMapProfileCache(cast("KubernetesApi", objects), namespace, document)


def test_a_profile_is_kept_for_the_next_job() -> None:
    objects = Objects()
    cache(objects, configuration()).save("v100", PROFILE)
    [item] = objects.items.values()
    assert "ownerReferences" not in item["metadata"]
    other = make_job(objective={"minSamplesPerSecond": 5}, runPolicy={"backoffLimit": 1})
    other["metadata"] |= {"name": "again", "uid": "other"}
    assert cache(objects, configuration(other)).load(["cpu", "v100"]) == {"v100": PROFILE}


def change_image(document: Json) -> None:
    document["job"]["spec"]["image"] = "registry.example.com/flights:2"


def change_image_of_the_pool(document: Json) -> None:
    template = {"spec": {"containers": [{"name": "heterps", "image": "cuda:2"}]}}
    document["job"]["spec"]["pools"][1]["podTemplate"] = template


def change_code(document: Json) -> None:
    document["job"]["spec"]["code"] = {"configMap": {"name": "code", "sha256": "1" * 64}}


def change_nodes(document: Json) -> None:
    document["pools"][1]["spec"]["nodeSelector"] = {"node.example.com/gpu": "a100"}


def change_batch(document: Json) -> None:
    document["job"]["spec"]["training"]["globalBatchSize"] = 8192


@pytest.mark.parametrize("change", [change_image, change_image_of_the_pool, change_code, change_nodes, change_batch])
def test_what_a_profile_depends_on_makes_it_another_one(change: Any) -> None:
    objects, document = Objects(), configuration()
    cache(objects, document).save("v100", PROFILE)
    changed = copy.deepcopy(document)
    change(changed)
    assert cache(objects, changed).load(["v100"]) == {}
    assert cache(objects, document, "other").load(["v100"]) == {}
    assert cache(objects, document).load(["v100"]) == {"v100": PROFILE}


def test_the_same_code_elsewhere_is_the_same_code() -> None:
    objects, document = Objects(), configuration()
    change_code(document)
    cache(objects, document).save("v100", PROFILE)
    document["job"]["spec"]["code"] = {"archive": {"uri": "s3://bucket/code.zip", "sha256": "1" * 64}}
    assert cache(objects, document).load(["v100"]) == {"v100": PROFILE}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"layers": []}'])
def test_a_damaged_profile_is_measured_again(text: str) -> None:
    objects = Objects()
    cache(objects, configuration()).save("v100", PROFILE)
    [item] = objects.items.values()
    item["data"] = {"profile.json": text} if text else {}
    assert cache(objects, configuration()).load(["v100"]) == {}


def test_a_refusal_costs_a_measurement_and_not_the_job() -> None:
    objects = Objects()
    objects.refusal = ApiError(403, "Forbidden", "exceeded quota: objects")
    cache(objects, configuration()).save("v100", PROFILE)
    objects.refusal = ApiError(503, "ServiceUnavailable", "etcd is away")
    with pytest.raises(ApiError, match="etcd is away"):
        cache(objects, configuration()).save("v100", PROFILE)


def test_a_profile_of_an_image_that_has_been_replaced_is_for_jobs_that_run_with_it_only() -> None:
    objects, document = Objects(), configuration()
    image = "registry.example.com/flights@sha256:one"

    def measuring() -> ConfigMapProfileCache:
        return ConfigMapProfileCache(cast("KubernetesApi", objects), "ml", document, image_of=lambda pool: image)

    measuring().save("v100", PROFILE)
    found = measuring()
    assert found.load(["cpu", "v100"]) == {"v100": PROFILE}
    assert found.images == {"v100": image}
    found.outdate("v100")
    assert found.images == {}
    assert measuring().load(["v100"]) == {}
    running = measuring()
    assert running.load(["v100"], outdated=True) == {"v100": PROFILE}
    assert running.images == {}, "it need not be told again"
    image = "registry.example.com/flights@sha256:two"
    measuring().save("v100", PROFILE)
    assert measuring().load(["v100"]) == {"v100": PROFILE}
    objects.items.clear()
    found.outdate("v100")  # is gone already


DAY = 86_400.0
NOW = 1_700_000_000.0


def kept(name: str, days: float) -> Json:
    stamp = format_time(NOW - days * DAY)
    return {"metadata": {"name": name, "uid": f"uid-{name}", "annotations": {"heterps.io/last-used": stamp}}}


def names(items: Any) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def test_profiles_go_after_a_month_without_use_and_the_least_recently_used_of_too_many() -> None:
    items = [kept("old", 31), kept("month", 29), kept("new", 0)]
    assert names(outdated_profiles(items, NOW)) == ["old"]
    many = [kept(str(number), number / 20) for number in range(205)]
    assert names(outdated_profiles(reversed(many), NOW)) == ["200", "201", "202", "203", "204"]
    created = {"metadata": {"name": "of an earlier version", "creationTimestamp": format_time(NOW - 40 * DAY)}}
    damaged = {"metadata": {"name": "damaged", "annotations": {"heterps.io/last-used": "yesterday"}}}
    assert names(outdated_profiles([created, damaged], NOW)) == ["of an earlier version", "damaged"]


def test_a_profile_that_a_job_names_is_kept_however_old_and_its_use_noted_once_a_day(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.train()
    own = {path for path in life.server.objects if "/heterps-profile-" in path}
    assert len(own) == 2
    labels = life.server.objects[min(own)]["metadata"]["labels"]
    stale = "/api/v1/namespaces/ml/configmaps/heterps-profile-cpu-1"
    strange = "/api/v1/namespaces/ml/configmaps/heterps-profile-of-a-user"
    life.server.put(stale, metadata={"labels": labels, "creationTimestamp": "2020-01-01T00:00:00Z"}, kind="ConfigMap")
    life.server.put(strange, metadata={"creationTimestamp": "2020-01-01T00:00:00Z"}, kind="ConfigMap")
    life.now += 60 * DAY
    session = life.operator._session
    assert session is not None
    manifest = session.manifest(life.job)
    assert manifest is not None
    cache = session.site.profiles(manifest)
    cache.save("cpu", PROFILE)
    assert stale not in life.server.objects
    assert own | {strange} <= set(life.server.objects), "in use, though for two months; and not the operator's"
    life.server.requests.clear()
    for _ in range(3):
        assert set(cache.load(["cpu", "accelerator"])) == {"cpu", "accelerator"}
    patches = [path for verb, path in life.server.requests if verb == "patch"]
    assert [path.rpartition("/")[2].rpartition("-")[0] for path in patches] == ["heterps-profile-accelerator"]
    life.cluster.jobs.remove(life.job)
    life.now += 31 * DAY
    cache.save("cpu", PROFILE)
    left = {path for path in own if path in life.server.objects}
    assert {path.rpartition("/")[2].rpartition("-")[0] for path in left} == {"heterps-profile-cpu"}
