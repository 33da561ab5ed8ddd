"""Releases kept as fixtures, so that tests can upgrade from them and roll back to them.

    python -m tests.cluster.releases

keeps the committed checkout as the release of its version: the operator, the runtime, the chart and the custom
resources. The learned policies' weights are left out, which no operator needs to run.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from tests.cluster.building import ROOT

FOLDER = ROOT / "tests" / "fixtures" / "releases"
_KEPT = ("operator", "runtime", "helm", "crds")
_LEFT_OUT = ":(exclude)*.safetensors"


def releases() -> list[str]:
    """Return the versions of the kept releases, the oldest first."""
    names = [path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def unpack(version: str, folder: Path) -> Path:
    """Unpack a release into a new folder in `folder`, and return it."""
    target = folder / version
    target.mkdir(parents=True)
    with tarfile.open(FOLDER / f"{version}.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target


def keep() -> Path:
    """Keep the commit of this checkout, and return the file."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = ["git", "archive", "--format=tar", "HEAD", "--", *_KEPT, _LEFT_OUT]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{version}.tar.xz"
    path.write_bytes(lzma.compress(archive, preset=9 | lzma.PRESET_EXTREME))
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{keep()}\n")
