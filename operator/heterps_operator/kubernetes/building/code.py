"""The code that a job brings along (`spec.code`), in the pods that import it. Pure.

An init container of the job's image, `heterps-code`, unpacks it into a volume before the runtime starts; for the
runtime's container the volume is read-only. It runs as that container does: image, user, variables and mounts of the
template are the same, as proxies, certificates and mounted repositories matter to both. It gets no accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterps_operator.api.admission import CODE_DIRECTORY
from heterps_operator.documents import Json
from heterps_operator.kubernetes.building.templates import merge, named
from heterps_operator.kubernetes.names import CODE_CONTAINER, CONTAINER
from heterps_runtime.contract import (
    CODE_FILE,
    CODE_MOST_ARCHIVE_BYTES,
    CODE_MOST_BYTES,
    ENV_COORDINATOR,
    ENV_TOKEN,
)

__all__ = ["add_code", "brings_code", "code_digest"]

_VOLUME = "heterps-code"
_ARCHIVE_VOLUME, _ARCHIVE_DIRECTORY = "heterps-code-archive", "/etc/heterps-code"
_SECRET_VOLUME, _SECRET_DIRECTORY = "heterps-code-secret", "/etc/heterps-git"  # of a volume, no secret
# What the init container has in common with the runtime's.
_SHARED = ("image", "imagePullPolicy", "securityContext", "envFrom")
_WITHHELD = frozenset({ENV_TOKEN, ENV_COORDINATOR})  # it takes no part in training
# The archive (from git: beside its repository), the files, and their blocks and folders.
_SIZE_LIMIT = 2 * CODE_MOST_ARCHIVE_BYTES + 2 * CODE_MOST_BYTES
_IMPORTING_ROLES = frozenset({"worker", "profile"})  # coordinator and servers import no code of the user


def brings_code(job: Json, role: str) -> bool:
    """Whether a role's pods get the code of `spec.code`."""
    return role in _IMPORTING_ROLES and bool(job["spec"].get("code"))


def add_code(pod: dict[str, Any], job: Json, runtime: Mapping[str, Any], command: str) -> None:
    """Add the init container, its volumes and the read-only mount to a pod that is otherwise complete.

    Args:
        pod: the pod; changed in place.
        job: the HeterPSJob, with `spec.code`.
        runtime: the runtime's container in the pod.
        command: the runtime's program.
    """
    code, spec = job["spec"]["code"], pod["spec"]
    found = spec.get("initContainers") or []
    others = list(found) if isinstance(found, list) else [found]  # which the API server refuses with its own words
    template = named(others, CODE_CONTAINER)
    others = [item for item in others if not (isinstance(item, Mapping) and item.get("name") == CODE_CONTAINER)]
    spec["initContainers"] = [merge(merge(_proposed(code, runtime), template), _required(code, command)), *others]
    volumes = _volumes(code)
    names = {volume["name"] for volume in volumes}
    spec["volumes"] = [*(volume for volume in spec["volumes"] if _name(volume) not in names), *volumes]
    mount = {"name": _VOLUME, "mountPath": CODE_DIRECTORY, "readOnly": True}
    for container in spec["containers"]:
        if _name(container) == CONTAINER:
            container["volumeMounts"] = [*_without_code(container), mount]


def code_digest(job: Json) -> str | None:
    """What tells this code from other code, wherever it is kept; None: the image has all code."""
    code = job["spec"].get("code")
    if not code:
        return None
    if (git := code.get("git")) is not None:
        return f"{git['revision']}:{git.get('path', '')}"
    return str((code.get("configMap") or code.get("archive"))["sha256"])


def _proposed(code: Json, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Build what a template may replace: the container is like the runtime's."""
    container = {key: runtime[key] for key in _SHARED if key in runtime}
    if "archive" not in code:
        container.pop("envFrom", None)  # credentials are for storages
    environment = runtime.get("env")
    return {
        **container,
        "name": CODE_CONTAINER,
        "resources": _resources(runtime.get("resources")),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [v for v in environment if _name(v) not in _WITHHELD] if isinstance(environment, list) else [],
        "volumeMounts": _without_code(runtime),
    }


def _required(code: Json, command: str) -> dict[str, Any]:
    """Build what holds whatever a template says."""
    words = [command, "code", "--to", CODE_DIRECTORY]
    mounts: list[dict[str, Any]] = [{"name": _VOLUME, "mountPath": CODE_DIRECTORY}]
    if "configMap" in code:
        words += ["--archive", f"{_ARCHIVE_DIRECTORY}/{CODE_FILE}"]
        mounts.append({"name": _ARCHIVE_VOLUME, "mountPath": _ARCHIVE_DIRECTORY, "readOnly": True})
    elif (code.get("git") or {}).get("secretName"):
        words += ["--secret", _SECRET_DIRECTORY]
        mounts.append({"name": _SECRET_VOLUME, "mountPath": _SECRET_DIRECTORY, "readOnly": True})
    return {"name": CODE_CONTAINER, "command": words, "args": None, "restartPolicy": None, "volumeMounts": mounts}


def _volumes(code: Json) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": _VOLUME, "emptyDir": {"sizeLimit": f"{_SIZE_LIMIT // 2**20}Mi"}}]
    if (kept := code.get("configMap")) is not None:
        items = [{"key": CODE_FILE, "path": CODE_FILE}]
        volumes.append({"name": _ARCHIVE_VOLUME, "configMap": {"name": str(kept["name"]), "items": items}})
    elif secret := (code.get("git") or {}).get("secretName"):
        volumes.append({"name": _SECRET_VOLUME, "secret": {"secretName": str(secret)}})
    return volumes


def _resources(resources: Any) -> dict[str, Any]:
    """Return the runtime's requests and limits without cards: a pod requests the larger of the two containers."""
    parts = resources if isinstance(resources, Mapping) else {}
    return {
        kind: {name: amount for name, amount in part.items() if "/" not in str(name)}
        for kind in ("requests", "limits")
        if isinstance(part := parts.get(kind), Mapping)
    }


def _without_code(container: Mapping[str, Any]) -> list[Any]:
    mounts = container.get("volumeMounts")
    return [
        mount
        for mount in (mounts if isinstance(mounts, list) else ())
        if not (isinstance(mount, Mapping) and mount.get("mountPath") == CODE_DIRECTORY)
    ]


def _name(item: Any) -> Any:
    return item.get("name") if isinstance(item, Mapping) else None
