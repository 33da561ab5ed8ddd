"""Debian's Prometheus and promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.debian import program
from tests.cluster.kubectl import Answer


def promtool(*arguments: str, folder: Path) -> Answer:
    """Run promtool, which may fail, in a folder."""
    command: Sequence[str] = [str(program("promtool")), *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Answer(ran.returncode, ran.stdout, ran.stderr)
