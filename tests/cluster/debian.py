"""Programs of Debian's packages that are unpacked instead of installed.

Installing Debian's `prometheus` creates a user, enables a service and brings dozens of packages for its web pages. The
tests need two of its files.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cluster import building
from tests.cluster.errors import ClusterError

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


def folder() -> Path:
    """Folder of the unpacked files."""
    return building.CACHE / "debian" / PACKAGE


def program(name: str) -> Path | None:
    """Return the path of one of the programs, installed or unpacked; None if there is neither."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    unpacked = folder() / "usr" / "bin" / name
    return unpacked if unpacked.exists() else None


def missing() -> list[str]:
    """Return the programs that are neither installed nor unpacked."""
    return [name for name in PROGRAMS if program(name) is None]


def unpack(say: Callable[[str], None]) -> None:
    """Download and unpack the package, if it is missing and there is apt.

    Raises:
        ClusterError: apt or dpkg fails; with its last output.
    """
    if not missing() or shutil.which("apt-get") is None:
        return
    with building.one_at_a_time(say):
        if not missing():
            return
        say(f"Unpacking Debian's package {PACKAGE}")
        unfinished = building.CACHE / "unfinished-debian"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            _run("apt-get", "download", PACKAGE, where=unfinished)
        except ClusterError:  # the machine's lists are missing or old
            _run("apt-get", "update", where=unfinished)
            _run("apt-get", "download", PACKAGE, where=unfinished)
        [archive] = unfinished.glob("*.deb")
        _run("dpkg-deb", "--extract", archive.name, "files", where=unfinished)
        shutil.rmtree(folder(), ignore_errors=True)
        folder().parent.mkdir(exist_ok=True)
        (unfinished / "files").replace(folder())
        shutil.rmtree(unfinished)


def _run(*command: str, where: Path) -> None:
    ran = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if ran.returncode:
        words = "\n".join((ran.stdout + ran.stderr).splitlines()[-5:])
        raise ClusterError(f"{' '.join(command)} failed:\n{words}")
