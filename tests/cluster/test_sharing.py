"""Jobs on one pool: they never exceed its units or the limit of their namespace, and are told why they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import COMPARED, HELD, MODEL
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.pods import shell_pod
from tests.cluster.watching import Watching
from tests.same_model import assert_same_model

Make = Callable[..., ClusterJob]
Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

MOST = 4
EACH = 2  # a worker and a parameter server


class Units:
    """The units of a namespace's pods, after each event."""

    def __init__(self) -> None:
        self.seen = [0]
        self._held: dict[str, int] = {}

    def take(self, kind: str, pod: Json) -> None:
        """Process an event."""
        uid, labels = str(pod["metadata"]["uid"]), pod["metadata"]["labels"]
        ended = kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed")
        if ended or "heterps.io/pool" not in labels:
            self._held.pop(uid, None)
        else:
            [container] = pod["spec"]["containers"]
            self._held[uid] = int(container["resources"]["requests"]["cpu"])
        self.seen.append(sum(self._held.values()))


@pytest.fixture
def hold(folder: Path) -> Iterator[Path]:
    """The file that keeps jobs in their steps, without using the processor; the next test's jobs train again."""
    file = folder / HELD
    file.touch()
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def units(kubectl: Kubectl) -> Iterator[Units]:
    units = Units()
    with Watching(kubectl, "pods", units.take):
        yield units


@pytest.mark.usefixtures("hold")
def test_jobs_take_turns_on_a_pool_that_is_too_small_for_all(make: Make, units: Units) -> None:
    spec = {"training.steps": 1_000_000, "model.entrypoint": MODEL}
    jobs = [
        make(name, spec=spec, pool={"maxUnits": MOST, "nodeSelector": {}}).submit() for name in ("one", "two", "three")
    ]

    def waiting() -> list[ClusterJob]:
        return [job for job in jobs if job.condition("Planned")["reason"] == "WaitingForCapacity"]

    def holders(*others: ClusterJob) -> set[str]:
        return {f"{job.kubectl.namespace}/{job.name} has {EACH} of {job.pool_name}" for job in others}

    def begun() -> list[ClusterJob]:
        return [job for job in jobs if job.step() > 0]

    wait_until("two train and one waits", lambda: len(begun()) == 2 and len(waiting()) == 1, PATIENCE_SECONDS)
    [last], [first, second] = waiting(), begun()

    def told(job: ClusterJob, *others: ClusterJob) -> bool:
        return all(words in job.condition("Planned")["message"] for words in holders(*others))

    wait_until("it says for whom", lambda: told(last, first, second), PATIENCE_SECONDS, more=last.story)
    assert f"0 of {MOST} of {last.pool_name} are free" in last.condition("Planned")["message"]

    # Released units go to the waiting job, and are gone when the first one wants to continue.
    first.patch({"runPolicy": {"suspend": True}})
    wait_until("the next one trains", lambda: last.step() > 0, PATIENCE_SECONDS, more=last.story)
    first.patch({"runPolicy": {"suspend": False}})
    first.wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)
    wait_until("it says for whom", lambda: told(first, second, last), PATIENCE_SECONDS, more=first.story)
    second.delete()
    first.wait_for_condition("Planned", "True", "Replanned", PATIENCE_SECONDS)
    wait_until("it goes on", lambda: first.told("Resumed"), PATIENCE_SECONDS, more=first.story)
    assert first.told("Resumed")[0].startswith("resuming from step ")
    assert max(units.seen) == MOST


def test_jobs_of_a_namespace_never_exceed_its_limit(make: Make, units: Units, hold: Path) -> None:
    spec = {"training.steps": 1_000_000, "model.entrypoint": MODEL}
    # Names of their own: a job that finds another's checkpoint has its steps before it has its pods.
    one, two = (
        make(name, spec=spec, pool={"maxUnits": MOST, "nodeSelector": {}, "namespaces": [{"name": "elsewhere"}]})
        for name in ("tenant-one", "tenant-two")
    )
    one.submit()
    told = one.wait_for_condition("Planned", "False", "PoolNotAllowed", PATIENCE_SECONDS)["message"]
    assert f"namespace {one.kubectl.namespace} may not use the DevicePool {one.pool_name}" in told
    assert units.seen == [0]

    def limit(most: int) -> None:
        namespaces = [{"name": "elsewhere"}, {"name": one.kubectl.namespace, "maxUnits": most}]
        for job in (one, two):
            job.pool["spec"]["namespaces"] = namespaces
        one.kubectl.apply(one.pool)

    limit(EACH)
    one.wait_for_step(1)
    two.submit()
    told = two.wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)["message"]
    assert f"jobs of this namespace may hold {EACH} of {one.pool_name} together" in told
    assert max(units.seen) == EACH
    limit(2 * EACH)
    two.wait_for_step(1)
    # A limit that is lowered ends no pod.
    limit(1)
    steps = one.step(), two.step()
    hold.unlink()
    wait_until("both go on", lambda: one.step() > steps[0] and two.step() > steps[1], PATIENCE_SECONDS)
    assert (one.status()["restarts"], two.status()["restarts"]) == (0, 0)
    assert max(units.seen) == 2 * EACH


def test_a_plan_that_finds_no_room_beside_other_software_is_replaced_by_one_that_does(
    make: Make, expected_model: Json
) -> None:
    """The count of the pool's units does not know the neighbours' pods, which leave each node room for one unit."""
    job = make("crowded", spec={**COMPARED, "scheduling": {}}, pool={"maxUnits": MOST})
    for layer in job.profile["layers"]:
        layer["parallelFraction"] = 1.0  # more workers share the price of the server
    for node in ("cpu-0", "cpu-1"):
        # By the scheduler, which waits for the end of the pods of earlier tests; the kubelet would refuse the pod.
        neighbour = shell_pod(f"neighbour-{node}", "sleep 1000", nodeSelector={"kubernetes.io/hostname": node})
        neighbour["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "600m"}}
        job.kubectl.apply(neighbour)
    job.kubectl("wait", "--for=condition=Ready", "pod", "neighbour-cpu-0", "neighbour-cpu-1", "--timeout=300s")
    job.submit()
    wait_until("the plan is given up", lambda: job.told("PoolCrowded"), PATIENCE_SECONDS, more=job.story)
    [told] = job.told("PoolCrowded")
    assert told.startswith("worker-0-")
    assert told.endswith(" units have: the job is planned again with these")
    status = job.wait_for_phase("Succeeded")
    assert (status["restarts"], status["plan"]["revision"]) == (0, 2)
    assert status["plan"]["summary"].endswith(f"{job.pool_name} x1 [tables..output]")
    assert_same_model(job.model(), expected_model)
