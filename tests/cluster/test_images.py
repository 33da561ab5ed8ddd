"""The chart as users install it, with the operator's image and without anything of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from images.building import archive_of, is_current, name_of

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import unbuilt
from tests.cluster.helm import CHART, INSTALLED, Helm, Installed, installed_chart
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl

Make = Callable[..., ClusterJob]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

USER = "1000730000"  # as OpenShift draws them
NODE = "cpu-0"
PROGRAM = """
import os, pathlib, sys, heterps_operator.page
page = pathlib.Path(heterps_operator.page.__file__)
files = page.with_name("style.css"), pathlib.Path(sys.prefix, "share/heterps/sbom.json")
print(os.getuid(), *(file for file in files if file.read_text()))
"""


@pytest.fixture(scope="module")
def image(own_cluster: Cluster) -> str:
    """The operator's image is on a node; returns its name."""
    if not is_current("operator"):
        unbuilt("the operator's image of this code is")
    own_cluster.nodes[NODE].import_image(own_cluster.sandbox, archive_of("operator"))
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
    said = admin("exec", "deployment/heterps", f"--namespace={INSTALLED}", "--", "python", "-c", PROGRAM)
    user, *files = said.split()
    assert user == USER
    assert [file for file in files if not file.startswith("/opt/heterps/")] == []
    assert {Path(file).name for file in files} == {"sbom.json", "style.css"}, "the wheel has them"

    make_alone("small").submit().wait_for_phase("Succeeded")
