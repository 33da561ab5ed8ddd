"""Servers of stores that are not written in Go: packages of npm and Maven, in pinned versions with their hashes.

Each folder of `packages/` has what its package manager reads, and the hashes of all files. Products lie in
`.cache/cluster/packages`, under a name derived from these inputs, as those of Go's modules do.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import building
from tests.cluster.errors import ClusterError

__all__ = ["AZURITE", "FETCHED", "HADOOP", "Fetched", "fetch"]

PACKAGES = Path(__file__).parent / "packages"
LAST_LINES = 5


@dataclass(frozen=True)
class Fetched:
    """A server, and what runs and fetches it here.

    Attributes:
        name: its folder in `packages/`.
        needs: commands, and the package of Debian that has each.
        command: fetches it, in a folder with a copy of its files.
        product: file or folder that the command makes.
    """

    name: str
    needs: dict[str, str]
    command: tuple[str, ...]
    product: str

    def folder(self) -> Path:
        """Return where its product lies."""
        digest = hashlib.sha256(" ".join(self.command).encode())
        for source in sorted((PACKAGES / self.name).iterdir()):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return building.CACHE / "packages" / f"{self.name}-{digest.hexdigest()[:12]}"

    def path(self) -> Path:
        """Return its product."""
        return self.folder() / self.product

    def missing(self) -> str | None:
        """Return why it cannot be fetched or run here; None if it can."""
        packages = {package for command, package in self.needs.items() if shutil.which(command) is None}
        return f"not installed (names of Debian's packages): {', '.join(sorted(packages))}" if packages else None


AZURITE = Fetched(
    "azurite",
    {"node": "nodejs", "npm": "npm"},
    ("npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"),
    "node_modules",
)
HADOOP = Fetched(
    "hdfs",
    {"java": "default-jre-headless", "mvn": "maven"},
    (
        "mvn",
        "--batch-mode",
        "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies",
        "-DoutputDirectory=jars",
    ),
    "jars",
)
FETCHED = (AZURITE, HADOOP)


def fetch(say: Callable[[str], None]) -> None:
    """Fetch the servers that are missing and can run here.

    Raises:
        ClusterError: a package manager fails; with its last output. Or a file is not the one that was pinned.
    """
    for server in FETCHED:
        if server.path().exists() or server.missing():
            continue
        with building.one_at_a_time(say):
            say(f"Fetching {server.name}")
            _fetch(server)


def _fetch(server: Fetched) -> None:
    unfinished = building.CACHE / f"unfinished-{server.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(PACKAGES / server.name, unfinished)
    ran = subprocess.run(server.command, cwd=unfinished, capture_output=True, text=True, check=False)
    if ran.returncode:
        words = "\n".join((ran.stdout + ran.stderr).splitlines()[-LAST_LINES:])
        raise ClusterError(f"{server.command[0]} failed in {server.name}:\n{words}")
    pins = unfinished / f"{server.product}.sha256"
    if pins.exists():  # npm compares its own
        _compare(unfinished / server.product, pins)
    server.folder().parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(server.folder(), ignore_errors=True)
    unfinished.replace(server.folder())


def _compare(folder: Path, pins: Path) -> None:
    pinned = {line.split()[1]: line.split()[0] for line in pins.read_text().splitlines()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    if wrong := sorted(name for name in {*pinned, *found} if pinned.get(name) != found.get(name)):
        raise ClusterError(f"{', '.join(wrong)}: not the files of {pins.name}")
