"""Fixtures of the tests that need a cluster.

They are collected only if requested by path (`make test-cluster`).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import KubernetesApi, connect
from tests.availability import unavailable
from tests.cluster.addresses import DUAL_STACK
from tests.cluster.api_server import ApiServer
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.faults import MODEL
from tests.cluster.golang import go_problem
from tests.cluster.helm import Helm, grant, install_custom_resources, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, check_test_context, current_context, wait_until
from tests.cluster.operators import NAMESPACE, Operator
from tests.cluster.requirements import reasons_against
from tests.heterps_operator.helpers.small_reference import plain_model

HERE = Path(__file__).parent
Make = Callable[..., ClusterJob]
FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="run the tests in a test cluster of your own instead of in one made here",
    )
    parser.addoption(
        "--kueue-jobs", type=int, default=8, metavar="N", help="test_kueue.py: jobs that pass through the queue"
    )
    parser.addoption(
        "--all-pauses", action="store_true", help="test_faults_pauses.py: every role, consistency and length of a pause"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (kubeconfig := given_kubeconfig(config)) is not None:
        try:
            check_test_context(current_context(kubeconfig))
        except ClusterError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    asked = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return None if any(HERE in (path, *path.parents) for path in asked) else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]  # pytest's wrappers are sent the result
    if report.failed:
        item.stash[FAILED] = True
    return report  # type: ignore[return-value]


def given_kubeconfig(config: pytest.Config) -> Path | None:
    value: Path | None = config.getoption("--kubeconfig", default=None)
    return value


def unbuilt(what: str) -> None:
    """A product of the build is missing."""
    unavailable(f"no test cluster: {go_problem() or f'{what} not built: make cluster-build'}")


def need_cluster_made_here(config: pytest.Config) -> None:
    """Skip a test, or fail it with CI=true, unless this run can start a cluster."""
    if given_kubeconfig(config) is not None:
        pytest.skip("needs the nodes of a cluster made here, and --kubeconfig names another one")
    if reasons := reasons_against():
        unavailable(f"no test cluster: {'; '.join(reasons)}")


@pytest.fixture(scope="session")
def own_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster started by this run, for tests that inspect its nodes or stop its programs."""
    need_cluster_made_here(pytestconfig)
    with Cluster(addresses=DUAL_STACK) as cluster, cluster.entered():
        yield cluster


@pytest.fixture(scope="session")
def admin(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    """kubectl with all rights, on the cluster under test."""
    if (kubeconfig := given_kubeconfig(pytestconfig)) is not None:
        return Kubectl(kubeconfig, tmp_path_factory.mktemp("kubectl"))
    cluster: Cluster = request.getfixturevalue("own_cluster")
    return cluster.kubectl


@pytest.fixture(scope="session")
def custom_resources(admin: Kubectl) -> None:
    """HeterPS's custom resources are installed."""
    install_custom_resources(admin)


NUMBERS = itertools.count()


@pytest.fixture
def kubectl(admin: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl in a separate namespace, whose state is printed if the test fails."""
    word = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    # The process id makes names unique among runs that share a cluster.
    name = f"{word}-{os.getpid()}-{next(NUMBERS)}"
    admin("create", "namespace", name)
    scoped = Kubectl(admin.kubeconfig, admin.cache, name)
    wait_until("pods can be created", lambda: not scoped.try_to("get", "serviceaccount", "default").code, 30)
    yield scoped
    if request.node.stash.get(FAILED, False):
        for what in (("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            print(scoped.try_to(*what).output)  # noqa: T201  # pytest shows it with the failure
    admin("delete", "namespace", name, "--wait=false")


@pytest.fixture
def resources(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl; pools are deleted after the test, as they are cluster-scoped."""
    yield kubectl
    kubectl("delete", "devicepools", "--all")


@pytest.fixture
def server(admin: Kubectl) -> ApiServer:
    """The API server without kubectl."""
    return ApiServer(admin.kubeconfig)


@pytest.fixture(scope="module")
def api(admin: Kubectl) -> KubernetesApi:
    """The operator's own client, with all rights."""
    return connect(str(admin.kubeconfig))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, with its own folders."""
    if not Helm.program().exists():
        unbuilt("Helm is")
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def operator_kubeconfig(
    admin: Kubectl, helm: Helm, custom_resources: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The operators' credentials: the chart's own account, with exactly its rights."""
    if admin.try_to("get", "namespace", NAMESPACE).code:
        admin("create", "namespace", NAMESPACE)
    account = grant(helm, admin, "tests", NAMESPACE)
    return kubeconfig_of(admin, tmp_path_factory.mktemp("rights"), account, NAMESPACE)


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator that runs for all tests of a file."""
    with Operator(operator_kubeconfig, tmp_path_factory.mktemp("operator")) as running:
        yield running


@pytest.fixture
def make_operator(admin: Kubectl, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Operators of one test, by name, not started yet; running ones end with the test."""
    made: list[Operator] = []

    def operator(name: str, *options: str, kubeconfig: Path = operator_kubeconfig, **settings: Any) -> Operator:
        made.append(Operator(kubeconfig, tmp_path, *options, name=name, **settings))
        return made[-1]

    yield operator
    for item in made:
        item.stop()
    # Leases of killed operators; the next test's operators must not wait for them to expire.
    admin("delete", "leases", "--all", f"--namespace={NAMESPACE}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared folder of jobs' pods: data, checkpoints, models."""
    made = tmp_path_factory.mktemp("shared")
    made.chmod(0o777)
    return made


@pytest.fixture(scope="session")
def expected_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model of `faults.small_job`, as plain PyTorch trains it in one process."""
    return plain_model(
        tmp_path_factory.mktemp("plain") / "job", model__entrypoint=MODEL, model__arguments={"least_seconds": 0}
    )


def leaving(kubectl: Kubectl) -> list[str]:
    """Pods that still hold room on their nodes, though their namespaces are being deleted."""
    ended = {
        space["metadata"]["name"] for space in kubectl.items("namespaces") if space["status"]["phase"] == "Terminating"
    }
    pods = kubectl.items("pods", "--all-namespaces") if ended else []
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["namespace"] in ended]


@pytest.fixture
def make_alone(kubectl: Kubectl, api: KubernetesApi, folder: Path, custom_resources: None) -> Iterator[Make]:
    """Factory of jobs in the test's namespace, without an operator; they and their pools are deleted after the test."""
    wait_until("pods of earlier tests leave their nodes", lambda: not leaving(kubectl), 120)
    made: list[ClusterJob] = []

    def job(name: str, **changes: Any) -> ClusterJob:
        made.append(ClusterJob(kubectl, api, folder, name, **changes))
        return made[-1]

    yield job
    for item in made:
        kubectl.try_to("delete", "heterpsjob", item.name, "--ignore-not-found", "--wait=false")
        names = [pool["metadata"]["name"] for pool in (item.pool, *item.more_pools)]
        kubectl.try_to("delete", "devicepools", *names, "--ignore-not-found", "--wait=false")


@pytest.fixture
def make(make_alone: Make, operator: Operator) -> Make:
    """Factory of jobs in the test's namespace, with an operator."""
    return make_alone
