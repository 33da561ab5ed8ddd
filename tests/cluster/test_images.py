"""The chart as users install it, with the operator's image and without anything of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from images.building import archive_of, name_of

from tests.cluster.cluster import Cluster
from tests.cluster.helm import CHART, INSTALLED, Helm, Installed, installed_chart
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl

Make = Callable[..., ClusterJob]

pytestmark = pytest.mark.timeout(900)

USER = "1000730000"  # as OpenShift draws them
NODE = "cpu-0"


@pytest.fixture(scope="module")
def image(own_cluster: Cluster) -> str:
    """The operator's image is on a node; returns its name."""
    archive = archive_of("operator")
    if not archive.exists():
        pytest.skip("the operator's image is not built: make images ARGUMENTS=operator")
    own_cluster.nodes[NODE].import_image(own_cluster.sandbox, archive)
    return name_of("operator")


@pytest.fixture
def installed(image: str, custom_resources: None, helm: Helm, admin: Kubectl) -> Iterator[Installed]:
    """The chart is installed with its own values, for any user and on the node that has the image."""
    options = [f"nodeSelector.kubernetes\\.io/hostname={NODE}", f"podSecurityContext.runAsUser={USER}"]
    wait = ("--wait", "--timeout=300s")
    with installed_chart(helm, admin, CHART, *(f"--set={option}" for option in options), *wait) as on_cluster:
        yield on_cluster
        print(admin.try_to("logs", "deployment/heterps", f"--namespace={INSTALLED}").output)  # noqa: T201


def test_the_operators_image_runs_a_job_as_any_user(
    image: str, installed: Installed, make_alone: Make, admin: Kubectl
) -> None:
    [pod] = admin.items("pods", f"--namespace={INSTALLED}")
    [container] = pod["spec"]["containers"]
    assert container["image"] == image
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not [volume for volume in pod["spec"].get("volumes", []) if "hostPath" in volume]
    program = "import os, heterps_operator; print(os.getuid(), heterps_operator.__file__)"
    said = admin("exec", "deployment/heterps", f"--namespace={INSTALLED}", "--", "python", "-c", program)
    user, file = said.split()
    assert user == USER
    assert file.startswith("/opt/heterps/")

    make_alone("small").submit().wait_for_phase("Succeeded")
