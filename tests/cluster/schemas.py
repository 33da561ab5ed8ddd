"""Schemas of other projects' custom resources: generated from their Go types, with their own tool.

They are products of the build, like programs: controller-gen needs the types' sources, which tests cannot fetch.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.cluster import building
from tests.cluster.building import CONTROLLER_GEN, Say
from tests.cluster.golang import go, run_in


def schema_folder() -> Path:
    """Folder of the generated CustomResourceDefinitions, one per file."""
    return building.folder_of(CONTROLLER_GEN.module) / "crds"


def make_schemas(say: Say) -> None:
    """Generate missing CustomResourceDefinitions, of all packages that the module names, or none.

    Raises:
        ClusterError: they cannot be generated.
    """
    if schema_folder().exists():
        return
    building.build([CONTROLLER_GEN], say)
    with building.one_at_a_time(say):
        if schema_folder().exists():
            return
        module = building.MODULES / CONTROLLER_GEN.module
        packages = re.findall(r'^\s*_ "(.+)"$', (module / "types.go").read_text(), re.M)
        unfinished = building.CACHE / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        go(["list", "-deps", *packages], module)
        paths = [f"paths={package}" for package in packages]
        run_in(module, [building.path_of(CONTROLLER_GEN), "crd", *paths, f"output:crd:dir={unfinished}"])
        unfinished.replace(schema_folder())
        say(f"  schemas of {len(packages)} packages: {len(list(schema_folder().iterdir()))} files")
