"""An operator whose pools are in a file: it reads neither DevicePools nor nodes, and follows the file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from heterps_operator.controller.capacity.pool_file import PoolFile
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.api import KubernetesApi
from tests.heterps_operator.helpers.documents import CPU_WORKER
from tests.heterps_operator.helpers.job_world import PODS, World
from tests.heterps_operator.helpers.lists import JOBS, Lists
from tests.heterps_operator.helpers.lists import PODS as ALL_PODS
from tests.heterps_operator.helpers.nodes import pod_on

Json = dict[str, Any]


def write(path: Path, **pools: Json | None) -> None:
    """Write the pools by name as the kubelet does, by replacing the file."""
    base = {"deviceType": "CPU", "maxUnits": 4, "pricePerUnitHour": "0.04"}
    head = {"apiVersion": "heterps.io/v1alpha1", "kind": "DevicePool"}
    documents = [
        {**head, "metadata": {"name": name}, "spec": base | spec} for name, spec in pools.items() if spec is not None
    ]
    replace(path, yaml.safe_dump_all(documents))


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "pools.yaml", cpu={})
    return tmp_path / "pools.yaml"


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture
def supervisor(lists: Lists, path: Path, tmp_path: Path) -> Supervisor:
    return Supervisor(OperatorContext(cast("KubernetesApi", lists), tmp_path, pool_file=PoolFile(path)))


def job(name: str, *pools: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name},
        "spec": {"pools": [{"name": pool} for pool in pools or ("cpu",)]},
    }


def woken(supervisor: Supervisor) -> set[str]:
    names = set()
    while supervisor.queue.known():
        key = supervisor.queue.take() or ("", "")
        supervisor.queue.done(key, None)
        names.add(key[1])
    return names


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_used_ends_the_operator_at_its_start(tmp_path: Path) -> None:
    for text, words in ((None, "cannot be read"), ("a: [", "not valid YAML"), ("x" * (3 * 2**20 + 1), "is larger")):
        path = tmp_path / "pools.yaml"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ManifestError, match=words):
            PoolFile(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="not UTF-8"):
        PoolFile(path)


def test_a_file_that_becomes_unusable_is_told_once_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = PoolFile(path)
    before = file.pools
    for text in ("a: [", None):
        caplog.clear()
        if text is None:
            path.unlink()
        else:
            replace(path, text)
        assert file.refresh() == file.refresh() == frozenset()
        assert file.pools == before
        [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "the operator keeps the pools that it has read before" in record.message
    write(path, cpu={"maxUnits": 9})
    assert file.refresh() == {"cpu"}
    assert file.pools["cpu"]["spec"]["maxUnits"] == 9


def test_a_changed_pool_is_another_version_and_an_unchanged_one_is_not(path: Path) -> None:
    file = PoolFile(path)
    before = file.pools["cpu"]["metadata"]["uid"]
    write(path, cpu={}, other={})
    assert file.refresh() == {"other"}
    assert file.pools["cpu"]["metadata"]["uid"] == before
    write(path, cpu={"pricePerUnitHour": "0.05"}, other={"maxUnits": 0})
    assert file.refresh() == {"cpu", "other"}
    assert file.pools["cpu"]["metadata"]["uid"] != before
    assert set(file.refused) == {"other"}


# --- the operator -----------------------------------------------------------------------------------------------------


def test_neither_pools_nor_nodes_are_listed_and_the_limit_is_max_units(
    supervisor: Supervisor, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    each = lists.each

    def noted(place: str, label_selector: str = "") -> Iterator[Json]:
        asked.append(place)
        return each(place)

    monkeypatch.setattr(lists, "each", noted)
    supervisor.reflector.synchronize()
    assert asked == [JOBS, ALL_PODS]
    assert supervisor._cluster.ledger.free("cpu") == 4


def test_pods_of_a_job_that_is_gone_keep_their_units(supervisor: Supervisor, lists: Lists) -> None:
    worker = pod_on("a", "a-worker-0-1-1-1", "2", CPU_WORKER)
    lists.items = {ALL_PODS: [worker]}
    supervisor.reflector.synchronize()
    ledger = supervisor._cluster.ledger
    assert ledger.free("cpu") == 2
    supervisor.reflector.pod_seen({**worker, "status": {"phase": "Succeeded"}})
    supervisor.pools.refresh()
    assert ledger.free("cpu") == 4


def test_a_changed_file_wakes_the_jobs_that_name_a_changed_pool(
    supervisor: Supervisor, path: Path, lists: Lists
) -> None:
    lists.items = {JOBS: [job("a"), job("b", "gpu"), job("c", "gpu", "cpu")]}
    supervisor.reflector.synchronize()
    assert woken(supervisor) == {"a", "b", "c"}
    for pools, expected in (
        ({"cpu": {}, "gpu": {}}, {"b", "c"}),
        ({"cpu": {}, "gpu": {}}, set()),
        ({"cpu": {"maxUnits": 6}, "gpu": {}}, {"a", "c"}),
        ({"cpu": {"maxUnits": 6}, "gpu": {"maxUnits": 0}}, {"b", "c"}),  # refused: they are told
        ({"gpu": {}}, {"a", "b", "c"}),
    ):
        write(path, **cast("dict[str, Json]", pools))
        supervisor.reflector.read_pools()
        assert woken(supervisor) == expected, pools
    supervisor.pools.refresh()
    assert supervisor._cluster.ledger.free("cpu") == 0
    assert supervisor._cluster.ledger.free("gpu") == 4


def test_the_file_is_followed_while_the_operator_runs(
    supervisor: Supervisor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps_operator.controller.reflector._FILE_SECONDS", 0.01)
    supervisor.reflector.job_seen(job("a", "gpu"))
    woken(supervisor)
    supervisor.start()
    try:
        assert supervisor.trouble() is None
        seen = supervisor._cluster.pools
        write(path, gpu={"maxUnits": 7})
        for _ in range(3000):
            if seen.get("", "gpu") is not None and seen.get("", "cpu") is None:
                break
            supervisor._stop.wait(0.01)
        assert [pool["spec"]["maxUnits"] for pool in seen.all()] == [7]
    finally:
        supervisor.stop()


def test_metrics_tell_what_is_known_of_a_pool(supervisor: Supervisor) -> None:
    supervisor.reflector.synchronize()
    supervisor.pools.read_prices()
    [pool] = supervisor._cluster.pools.all()
    supervisor.pools._publish(pool)  # there is no object to write a status to: `Lists` refuses it
    families = {family.name: family for family in supervisor._cluster.metrics.registry.collect()}
    values = {name: family.samples[0].value for name, family in families.items() if name.startswith("heterps_pool_")
              and family.samples}  # fmt: skip
    assert (values["heterps_pool_capacity_units"], values["heterps_pool_max_units"]) == (4, 4)
    assert values["heterps_pool_price_per_unit_hour"] > 0
    assert not {"heterps_pool_nodes", "heterps_pool_ready"} & set(values)


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_job_is_told_which_pools_the_chart_has(tmp_path: Path) -> None:
    world, path = World(tmp_path), tmp_path / "pools.yaml"
    write(path, cpus={})
    world.cluster.pool_file = PoolFile(path)
    for pool in world.pools:
        world.cluster.pools.remove(pool)
    world.cluster.pools.put(world.cluster.pool_file.pools["cpus"])
    controller = world.controller()
    controller.turn()
    condition = world.condition("Planned")
    assert (condition["reason"], world.names(PODS)) == ("PoolNotFound", set())
    text = "spec.pools: there is no DevicePool cpu in `pools` of the operator's chart; add it there, or correct "
    assert condition["message"] == f"{text}the name (there is cpus); did you mean cpus?"
    write(path, cpus={}, cpu={"maxUnits": 0})
    world.cluster.pool_file.refresh()
    controller.turn()
    text = "spec.pools: DevicePool cpu in `pools` of the operator's chart is invalid: pools.yaml:16: DevicePool cpu: "
    assert world.condition("Planned")["message"].startswith(f"{text}spec.maxUnits: must be at least 1, is 0")


def test_a_job_whose_pool_changes_keeps_its_pods(tmp_path: Path) -> None:
    world, path = World(tmp_path), tmp_path / "pools.yaml"
    written = [{**pool, "metadata": {"name": pool["metadata"]["name"]}} for pool in world.pools]
    replace(path, yaml.safe_dump_all(written))
    file = world.cluster.pool_file = PoolFile(path)
    for pool in file.pools.values():
        world.cluster.pools.put(pool)
    controller = world.controller()
    controller.turn()
    pods = world.names(PODS)
    assert pods
    documents = list(yaml.safe_load_all(path.read_text()))
    documents[0]["spec"]["pricePerUnitHour"] = "7"
    replace(path, yaml.safe_dump_all(documents))
    assert file.refresh() == {documents[0]["metadata"]["name"]}
    for pool in file.pools.values():
        world.cluster.pools.put(pool)
    controller.turn()
    assert world.names(PODS) == pods
    session = controller._session
    assert session is not None
    assert session._stored.pools[0]["spec"]["pricePerUnitHour"] == "7"
