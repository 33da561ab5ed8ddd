"""Pods for tests: a shell from the image, or this checkout with its virtual environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.building import ROOT
from tests.cluster.images import IMAGE

Json = dict[str, Any]

# Usual locations of programs and libraries.
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64")
# Compiled kernels: filled by tests outside the cluster, or by the first pods (half a minute each).
KERNEL_CACHE = ROOT / ".cache" / "numba"


def python_folders() -> list[Path]:
    """Return the folders that this Python with its packages and the project needs, none nested in another."""
    needed = [Path(path) for path in SYSTEM_FOLDERS if Path(path).exists()]
    needed += [Path(sys.base_prefix).resolve(), Path(sys.prefix), ROOT]
    return [path for path in needed if not any(other in path.parents for other in needed)]


def project_template(container: str = "heterps") -> Json:
    """The pod template that lets an ordinary job run in the test cluster (`spec.podTemplates.all`).

    The image contains only a shell. The machine's programs, the interpreter, the virtual environment and the checkout
    are mounted at their own paths, read-only, so that a changed line needs no new image.

    Args:
        container: Name of the container that gets the mounts.
    """
    folders = [*python_folders(), KERNEL_CACHE]
    KERNEL_CACHE.mkdir(parents=True, exist_ok=True)
    volumes: list[Json] = [
        {"name": f"machine-{number}", "hostPath": {"path": str(folder), "type": "Directory"}}
        for number, folder in enumerate(folders)
    ]
    mounts: list[Json] = [
        {"name": volume["name"], "mountPath": str(folder), "readOnly": folder != KERNEL_CACHE}
        for volume, folder in zip(volumes, folders, strict=True)
    ]
    environment = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin",
        "NUMBA_CACHE_DIR": str(KERNEL_CACHE),
        # The checkout is read-only there.
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }
    return {"spec": {
        "containers": [{
            "name": container, "image": IMAGE, "imagePullPolicy": "Never",
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "volumeMounts": [*mounts, {"name": "temporary", "mountPath": "/tmp"}],
        }],
        "volumes": [*volumes, {"name": "temporary", "emptyDir": {}}],
    }}  # fmt: skip


def shell_pod(name: str, command: str, **spec: Any) -> Json:
    """Return a pod that runs a shell command; `spec` adds fields to its spec."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-euc", command]}
    return pod(name, {"containers": [container], **spec})


def python_pod(name: str, program: str, resources: Mapping[str, Any] | None = None, **spec: Any) -> Json:
    """Return a pod that runs a Python program with the project's packages."""
    template = project_template("main")["spec"]
    [container] = template["containers"]
    command: Sequence[str] = [sys.executable, "-c", program]
    return pod(name, {
        **template, **spec,
        "containers": [{**container, "command": command, "resources": dict(resources or {})}],
    })  # fmt: skip


def pod(name: str, spec: Json) -> Json:
    # A pod that ignores SIGTERM would delay deletion by 30 seconds.
    defaults: Json = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name}}, "spec": defaults | spec,
    }  # fmt: skip
