"""Imports and memory of `heterps plan --problem FILE`: no framework, no compiler, little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.heterps_planner.helpers.problems import document

MOST_MEGABYTES = 150
PROGRAM = """
import json, sys
from pathlib import Path
from heterps_operator.__main__ import main
try:
    code = main(["plan", "--problem", sys.argv[1], "--output", "json"])
except SystemExit as ending:
    code = ending.code
heavy = ("torch", "numba", "llvmlite", "matplotlib", "optuna", "scipy.stats", "kopf", "kubernetes", "aiohttp", "celpy")
heavy = [name for name in heavy if name in sys.modules]
# Not getrusage: its peak includes that of the parent process, if larger.
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"code": code, "heavy": heavy, "megabytes": peak}), file=sys.stderr)
"""


def test_planning_a_problem_file_loads_no_framework_and_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document()))
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    figures = json.loads(done.stderr.strip().splitlines()[-1])
    assert json.loads(done.stdout)["optimal"] is True
    assert figures["code"] in (0, None)
    assert figures["heavy"] == []
    assert figures["megabytes"] < MOST_MEGABYTES
