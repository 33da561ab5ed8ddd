"""The API server fails: the job still ends with exactly the model that plain PyTorch trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import (
    LASTING,
    assert_each_pod_was_made_once,
    held,
    only_pod,
    small_job,
    wait_for_successor,
)
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import wait_until
from tests.cluster.operators import Operator
from tests.cluster.proxy import KINDS, Proxy
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
MakeOperator = Callable[..., Operator]
Model = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]


def test_training_goes_on_while_the_api_server_is_away(
    make_alone: Make, make_operator: MakeOperator, own_cluster: Cluster, expected_model: Model
) -> None:
    operator = make_operator("operator", *LASTING)
    operator.start()
    job = small_job(make_alone, "away", units=2).submit()
    job.wait_for_step(30)
    coordinator = job.coordinator()
    with held(job):
        server = own_cluster.daemons.named("apiserver")
        server.end()
        step = int(coordinator.status()["committedSteps"])
        wait_until("training goes on", lambda: int(coordinator.status()["committedSteps"]) >= step + 6)
        own_cluster.daemons.start_again(server)
        wait_until("the API server is back", lambda: not job.kubectl.try_to("get", "--raw=/readyz").code)
    assert job.wait_for_phase("Succeeded")["restarts"] == 0
    assert operator.running
    assert_each_pod_was_made_once(job)
    assert_same_model(job.model(), expected_model)


def test_an_api_server_that_fails_now_and_then_only_takes_time(
    make_alone: Make, make_operator: MakeOperator, admin: Any, operator_kubeconfig: Path, tmp_path: Path,
    expected_model: Model,
) -> None:  # fmt: skip
    with Proxy(operator_kubeconfig, seed=5) as proxy:
        operator = make_operator("operator", *LASTING, kubeconfig=proxy.write_kubeconfig(tmp_path / "proxy.kubeconfig"))
        operator.start()
        job = small_job(make_alone, "proxied", units=2).submit()
        job.wait_for_step(30)
        with held(job):
            wait_until(
                "everything has gone wrong", lambda: all(proxy.injected[kind] for kind in KINDS), 600, more=job.story
            )
        assert job.wait_for_phase("Succeeded")["restarts"] == 0
        assert operator.running
        assert "the watches failed" in operator.story()
        operator.stop()
    print(dict(proxy.injected))  # noqa: T201  # pytest shows it if asked to
    assert_each_pod_was_made_once(job)
    twice = {path: count for path, count in proxy.created.items() if count > 1}
    assert twice == {}
    assert_same_model(job.model(), expected_model)


def test_watches_that_fall_silent_restart(
    make_alone: Make, make_operator: MakeOperator, operator_kubeconfig: Path, tmp_path: Path, expected_model: Model
) -> None:
    with Proxy(operator_kubeconfig, seed=6, gap=10**9, watch_seconds=(600, 600)) as proxy:
        program = (sys.executable, "-m", "tests.cluster.impatient_operator")
        kubeconfig = proxy.write_kubeconfig(tmp_path / "proxy.kubeconfig")
        operator = make_operator("operator", *LASTING, program=program, kubeconfig=kubeconfig)
        operator.start()
        job = small_job(make_alone, "silent", units=2).submit()
        job.wait_for_step(30)
        with held(job):
            assert "do not report" not in operator.story()
            assert proxy.silence_watches() >= 4
            for _ in range(2):  # what happens before the watches restart, and after it, is noticed
                worker = only_pod(job, "worker")
                job.kubectl("delete", "pod", worker["metadata"]["name"], "--wait=false")
                operator.wait_until_it_says("do not report changes that lists show; all watches restart")
                wait_for_successor(job, "worker", worker)
        job.wait_for_phase("Succeeded")
        assert operator.story().count("all watches restart") == 1
        operator.stop()
    assert_same_model(job.model(), expected_model)
