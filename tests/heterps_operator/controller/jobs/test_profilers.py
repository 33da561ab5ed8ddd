"""Profilers of a job on a cluster: at the same time on nodes that differ, with units for each."""

from __future__ import annotations

from pathlib import Path

from tests.heterps_operator.helpers.life import Life

HOLDER = "ml/flights"


def measured(life: Life) -> list[set[str]]:
    """Let a job go on until it has a plan; return the profilers that ran together, and check what the job holds."""
    found = list[set[str]]()
    for _ in range(20):
        life.settle()
        profilers = {name for name in life.pods() if name.startswith("profile-")}
        if profilers and profilers not in found:
            found.append(profilers)
            held = life.cluster.ledger.held_by(HOLDER)
            assert {f"profile-{pool}" for pool, units in held.items() if units} == profilers
        if life.status.get("plan"):
            return found
        life.go_on()
    raise AssertionError(f"is still {life.status['phase']}")


def test_pools_that_select_other_nodes_are_measured_together(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for pool in life.pools:
        pool["spec"]["nodeSelector"] = {"kind": pool["metadata"]["name"]}
        life.cluster.pools.put(pool)
    assert measured(life) == [{"profile-cpu", "profile-accelerator"}]


def test_pools_that_may_have_one_node_are_measured_one_after_the_other(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for pool in life.pools:
        pool["spec"]["nodeSelector"] = {f"kind-{pool['metadata']['name']}": "yes"}
        life.cluster.pools.put(pool)
    assert measured(life) == [{"profile-cpu"}, {"profile-accelerator"}]
