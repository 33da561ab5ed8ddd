"""Schemas of other projects' custom resources: made from their Go types, by the tool that they make them with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cluster.building import CACHE, CONTROLLER_GEN, MODULES, path_of
from tests.cluster.errors import ClusterError

# Pinned in binaries/schemas/go.mod.
PACKAGES = (
    "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1",
    "volcano.sh/apis/pkg/apis/scheduling/v1beta1",
)


def schema_folder() -> Path:
    """The folder with the CustomResourceDefinitions, made if it is not there.

    Raises:
        ClusterError: they cannot be made.
    """
    program = path_of(CONTROLLER_GEN)
    folder = program.parent / "crds"
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    settings = {"CGO_ENABLED": "0", "GOCACHE": str(CACHE / "go-build"), "GOWORK": "off", "GOFLAGS": ""}
    ran = subprocess.run(
        [program, "crd", *(f"paths={package}" for package in PACKAGES), f"output:crd:dir={unfinished}"],
        cwd=MODULES / CONTROLLER_GEN.module, env={**os.environ, **settings},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise ClusterError(f"controller-gen: {ran.stderr.strip()}")
    unfinished.replace(folder)
    return folder
