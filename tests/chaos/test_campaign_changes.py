"""One run of the campaign whose stages and numbers of servers change, while a server that copies rows is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.availability import unavailable
from tests.chaos.faults.changes import draw_changing
from tests.chaos.namespaces import obstacles

ROOT = Path(__file__).parents[2]
# From one server to three, of which a new one is killed while it copies rows; then to three stages and two servers.
SEED, FAULTS, CHANGES = 7369, 2, 2
KINDS = ["kill", "terminate", "stop"]
CONSISTENCIES = ["hybrid", "async"]


@pytest.mark.slow
def test_every_sample_counts_once_while_stages_and_servers_change(tmp_path: Path) -> None:
    if reasons := obstacles():
        unavailable("; ".join(reasons))
    planned = draw_changing(SEED, FAULTS, CHANGES, KINDS, CONSISTENCIES, 1.0)
    assert [(len(plan.stages), plan.servers) for plan in planned.plans] == [(2, 1), (2, 3), (3, 2)]
    assert [fault.kind for fault in planned.faults] == ["replan", "kill", "replan", "terminate"]
    assert planned.faults[1].op == "shard-rows"
    report = tmp_path / "report.json"
    options = ["--seed", str(SEED), "--faults", str(FAULTS), "--changes", str(CHANGES), "--longest", "1"]
    command = [sys.executable, "-m", "tests.chaos", *options, "--json", str(report)]
    command += ["--kinds", *KINDS, "--consistency", *CONSISTENCIES]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [run] = json.loads(report.read_text())
    assert all(happened["done"] for happened in run["faults"]), "each fault had a target"
    assert run["problems"] == []
