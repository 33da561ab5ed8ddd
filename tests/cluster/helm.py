"""Helm with a single home folder, the chart on a cluster, and the operator's rights from it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.building import HELM, ROOT, path_of
from tests.cluster.kubectl import Answer, Kubectl, wait_until
from tests.cluster.pods import project_template

CHART = ROOT / "helm" / "heterps"
INSTALLED = "heterps-chart"  # namespace of the installed chart; operators of other files run beside it
RIGHTS = ("serviceaccount", "clusterrole", "roles")  # templates
GONE = ("--cascade=foreground", "--wait", "--timeout=60s")  # of helm uninstall: its pods have ended, too
CUSTOM_RESOURCES = ("heterpsjobs.heterps.io", "heterpsjobstates.heterps.io", "devicepools.heterps.io")

Json = dict[str, Any]
Installed = Callable[..., Answer]  # Helm, with the namespace and the cluster of a release


class Helm:
    """Runs Helm.

    Args:
        home: folder of its files.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    @staticmethod
    def program() -> Path:
        """Path of the built program."""
        return path_of(HELM)

    def __call__(self, *arguments: str, kubeconfig: Path | None = None) -> Answer:
        """Run a command that may fail."""
        folders = {f"HELM_{kind}_HOME": str(self._home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **folders, "KUBECONFIG": str(kubeconfig or self._home / "none")}
        command = [str(self.program()), *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return Answer(ran.returncode, ran.stdout, ran.stderr)


@contextlib.contextmanager
def installed_chart(helm: Helm, admin: Kubectl, chart: Path, *options: str) -> Iterator[Installed]:
    """Install a chart with its custom resources as `heterps`; gives Helm for that release, whose errors fail the test.

    Args:
        helm: installs it.
        admin: kubectl with all rights.
        chart: its folder.
        options: of `helm install`.
    """

    def on_cluster(*arguments: str) -> Answer:
        answer = helm(*arguments, f"--namespace={INSTALLED}", kubeconfig=admin.kubeconfig)
        assert answer.code == 0, answer.errors
        return answer

    # Nothing can be created in a namespace that an earlier test has deleted until it is gone.
    admin("delete", "namespace", "--ignore-not-found", INSTALLED)
    admin("delete", "customresourcedefinitions", "--ignore-not-found", *CUSTOM_RESOURCES)
    try:
        on_cluster("install", "heterps", str(chart), "--create-namespace", *options)
        yield on_cluster
    finally:
        helm("uninstall", "heterps", f"--namespace={INSTALLED}", *GONE, kubeconfig=admin.kubeconfig)
        admin("delete", "namespace", "--ignore-not-found", "--wait=false", INSTALLED)
        # Later tests need them even if this chart could not be installed, without labels of a deleted release.
        admin("delete", "customresourcedefinitions", "--ignore-not-found", *CUSTOM_RESOURCES)
        install_custom_resources(admin)


def install_custom_resources(admin: Kubectl) -> None:
    """Install the custom resources of this checkout, and wait until they can be used."""
    crds = f"--filename={ROOT / 'crds'}"
    admin("apply", "--server-side", crds)
    established = ("wait", "--for=condition=Established", crds, "--timeout=30s")
    # It fails at once for one that has no status yet.
    wait_until("the custom resources are established", lambda: not admin.try_to(*established).code, 300)


def operator_values(release: Path | None = None) -> Json:
    """Return values with which the operator's pod runs programs of this machine; everything else is the chart's.

    Args:
        release: folder of another release (`tests/cluster/releases.py`); None: this checkout.
    """
    template = project_template("operator")["spec"]
    [container] = template["containers"]
    repository, tag = container["image"].rsplit(":", 1)
    mine = {"HOME", "/tmp", "temporary"}  # the chart's own
    environment = [item for item in container["env"] if item["name"] not in mine]
    volumes = [item for item in template["volumes"] if item["name"] not in mine]
    mounts = [item for item in container["volumeMounts"] if item["mountPath"] not in mine]
    if release is not None:
        path = os.pathsep.join(str(release / name) for name in ("operator", "runtime"))
        environment.append({"name": "PYTHONPATH", "value": path})
        volumes.append({"name": "release", "hostPath": {"path": str(release), "type": "Directory"}})
        mounts.append({"name": "release", "mountPath": str(release), "readOnly": True})
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "operator": {"extraEnvironment": environment},
        "volumes": volumes,
        "volumeMounts": mounts,
    }


def grant(helm: Helm, admin: Kubectl, release: str, namespace: str, watched: Sequence[str] = (), *settings: str) -> str:
    """Apply the chart's RBAC objects, without its programs; return the name of the ServiceAccount.

    Args:
        helm: renders the chart.
        admin: kubectl that may create roles.
        release: release that prefixes their names.
        namespace: namespace of the operator.
        watched: namespaces whose jobs it manages; none: all.
        settings: further values of the chart.
    """
    options = [f"--show-only=templates/{name}.yaml" for name in RIGHTS]
    options += [f"--set=watchNamespaces={{{','.join(watched)}}}"] if watched else []
    options += [f"--set={setting}" for setting in settings]
    rendered = helm("template", release, str(CHART), f"--namespace={namespace}", *options)
    assert rendered.code == 0, rendered.errors
    admin("apply", "--server-side", "--filename=-", text=rendered.output)
    [account] = [item for item in yaml.safe_load_all(rendered.output) if item and item["kind"] == "ServiceAccount"]
    return str(account["metadata"]["name"])


def kubeconfig_of(admin: Kubectl, folder: Path, account: str, namespace: str) -> Path:
    """Return a kubeconfig for a ServiceAccount, with exactly that account's rights."""
    token = admin("create", "token", account, f"--namespace={namespace}", "--duration=6h").strip()
    config: Json = yaml.safe_load(admin.kubeconfig.read_text())
    config["users"] = [{"name": account, "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"] |= {"user": account, "namespace": namespace}
    path = folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
