"""The Go toolchain of this checkout: selection, settings and error messages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.processes import ending

# Cache of compiled packages. Sources stay in the machine's cache, which other projects and checkouts share.
COMPILED = Path(__file__).parents[2] / ".cache" / "cluster" / "go-build"
# The version that the newest module in `binaries/` requires.
VERSION = (1, 26)
WANTED = f"Go {'.'.join(map(str, VERSION))} or later builds the test cluster's programs"
LAST_LINES = 15


def go_problem() -> str | None:
    """Return why Go cannot build here; empty if it can."""
    if shutil.which("go") is None:
        return f"go is not installed: {WANTED}"
    # An older Go may fetch a newer one, depending on the machine's settings, in a folder that requires it.
    newest = Path(__file__).parent / "binaries" / "versitygw"
    ran = subprocess.run(
        ["go", "env", "GOVERSION"], cwd=newest, env=environment(), capture_output=True, text=True, check=False
    )
    found = re.match(r"go(\d+)\.(\d+)", ran.stdout)
    if found is None:
        return f"go env GOVERSION says: {_last_lines(ran)}: {WANTED}"
    if (int(found[1]), int(found[2])) < VERSION:
        return f"{ran.stdout.strip()} is installed: {WANTED}"
    return None


def environment(flags: str = "") -> dict[str, str]:
    """Return the environment of Go and programs that call it. Its files can be deleted without being root
    (-modcacherw).

    The compiler's processes are short: those that collect no garbage below a gigabyte need a quarter less time.
    """
    settings = {"CGO_ENABLED": "0", "GOCACHE": str(COMPILED), "GOWORK": "off", "GOGC": "off", "GOMEMLIMIT": "1GiB"}
    return {**os.environ, **settings, "GOFLAGS": f"-modcacherw {flags}".strip()}


def go(arguments: Sequence[str], module: Path, flags: str = "") -> None:
    """Run Go in the folder of a module.

    Raises:
        ClusterError: it fails; with its last output.
    """
    run_in(module, ["go", *arguments], flags)


def run_in(module: Path, command: Sequence[str | Path], flags: str = "") -> None:
    """Run Go, or a program that calls it, in the folder of a module.

    Raises:
        ClusterError: it fails; with its last output.
    """
    ran = subprocess.run(command, cwd=module, env=environment(flags), capture_output=True, text=True, check=False)
    if ran.returncode:
        words = " ".join(str(word) for word in command[:2])
        raise ClusterError(f"{words} {ending(ran.returncode)} in {module.name}:\n{_last_lines(ran)}")


def _last_lines(ran: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(ran.stderr.strip().splitlines()[-LAST_LINES:])
