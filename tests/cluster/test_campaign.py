"""One job of the fault campaign: its faults are those that no other test in this folder injects.

A worker is evicted; when its successor is created, the operator is stopped for longer than its Lease, and another one
takes over; then the node of a worker is drained. `make chaos ARGUMENTS=--on=cluster` runs other jobs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cluster.campaign import on
from tests.chaos.cluster.schedule import draw
from tests.cluster.cluster import Cluster

SEED, FAULTS = 330, 3
KINDS = ("node-drain", "operator-stop", "watch-drop", "pod-evict")

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]


def test_a_job_survives_its_faults_and_every_sample_counts_once(
    own_cluster: Cluster, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    run = draw(SEED, FAULTS, KINDS, ("hybrid", "async"), longest=5.0)
    assert [fault.kind for fault in run.faults] == ["pod-evict", "operator-stop", "node-drain"]
    said: list[str] = []
    with on(own_cluster, operator_kubeconfig, tmp_path, said.append) as campaign:
        outcome = campaign.carry_out(run)
    assert outcome.problems == (), "\n".join([*said, outcome.logs])
    assert [incident.fault for incident in outcome.incidents] == list(run.faults)
    assert all(incident.done for incident in outcome.incidents), "each fault had a target"
