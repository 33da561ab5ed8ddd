"""Profiles in ConfigMaps: keyed by their inputs, and by nothing else."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from tests.heterps_operator.helpers.documents import POOLS, Json, make_job
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
