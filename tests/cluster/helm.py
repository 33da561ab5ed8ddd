"""Helm with a single home folder, and the operator's rights from its chart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.building import HELM, ROOT, path_of
from tests.cluster.kubectl import Answer, Kubectl

CHART = ROOT / "helm" / "heterps"
RIGHTS = ("serviceaccount", "clusterrole", "roles")  # templates

Json = dict[str, Any]


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


def grant(helm: Helm, admin: Kubectl, release: str, namespace: str, watched: Sequence[str] = ()) -> str:
    """Apply the chart's RBAC objects, without its programs; return the name of the ServiceAccount.

    Args:
        helm: renders the chart.
        admin: kubectl that may create roles.
        release: release that prefixes their names.
        namespace: namespace of the operator.
        watched: namespaces whose jobs it manages; none: all.
    """
    options = [f"--show-only=templates/{name}.yaml" for name in RIGHTS]
    options += [f"--set=watchNamespaces={{{','.join(watched)}}}"] if watched else []
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
