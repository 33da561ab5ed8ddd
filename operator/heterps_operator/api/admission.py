"""Requirements on a job that runs on a cluster, where pods share no folder, and its pods' configuration. Pure."""

from __future__ import annotations

from typing import Any

from heterps_operator.addresses import below, is_uri
from heterps_operator.api.manifest import Manifest
from heterps_operator.errors import MISSING, FieldError
from heterps_runtime.contract import RUN_CONFIG_VERSION

__all__ = ["CODE_DIRECTORY", "WORK_DIRECTORY", "cluster_problems", "pod_configuration"]

WORK_DIRECTORY = "/var/heterps"  # private to a pod, empty at its start
CODE_DIRECTORY = "/var/heterps-code"  # the code of spec.code, read-only

_SHARED = "a path on a volume that all pods mount, or an address such as s3://bucket/folder"


def cluster_problems(job: dict[str, Any]) -> list[FieldError]:
    """Problems that keep a valid job from running in pods, each with the field and the fix.

    Args:
        job: the HeterPSJob with all defaults.
    """
    spec, found = job["spec"], []
    title = f"HeterPSJob {job['metadata']['name']}"
    if not spec.get("image"):
        found.append(
            FieldError("spec.image", MISSING, "must be set on a cluster", "name the image of your code", title)
        )
    path = spec["checkpoint"].get("path")
    if path is None:
        fix = f"set it to {_SHARED}"
        text = "must be set on a cluster: the pods of a job share no folder"
        found.append(FieldError("spec.checkpoint.path", MISSING, text, fix, title))
    for field, value in (
        ("spec.checkpoint.path", path),
        ("spec.model.initFrom.path", spec["model"].get("initFrom", {}).get("path")),
        ("spec.data.train", spec["data"]["train"]),
        ("spec.data.evaluation", spec["data"].get("evaluation")),
    ):
        if value is not None and not value.startswith("/") and not is_uri(value):
            fix = f"use {_SHARED}"
            found.append(FieldError(field, value, "must be an absolute path or an address on a cluster", fix, title))
    return found


def pod_configuration(manifest: Manifest) -> dict[str, Any]:
    """Return the run configuration of a job's pods.

    The model goes to the checkpoints, the only shared place. Names and limits of other namespaces stay out of it.
    """
    return {
        "version": RUN_CONFIG_VERSION,
        "job": manifest.job,
        "pools": [
            {**pool, "spec": {field: value for field, value in pool["spec"].items() if field != "namespaces"}}
            for pool in manifest.pools
        ],
        "workDirectory": WORK_DIRECTORY,
        "modelPath": below(manifest.job["spec"]["checkpoint"]["path"], "model"),
        "pythonPath": [CODE_DIRECTORY] if manifest.job["spec"].get("code") else [],
    }
