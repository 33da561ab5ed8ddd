"""One run of the campaign, in the form in which people start it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.availability import unavailable
from tests.chaos.faults.schedule import draw
from tests.chaos.namespaces import obstacles

ROOT = Path(__file__).parents[2]
# A coordinator that is stopped for a second, a torn checkpoint, and a killed server whose answers are on their way and
# whose rows another one holds, too.
SEED, FAULTS = 189, 3
KINDS = ["kill", "stop", "delay", "disk-full", "disk-torn"]
CONSISTENCIES = ["hybrid", "async"]


@pytest.mark.slow
def test_a_job_survives_its_faults_and_every_sample_counts_once(tmp_path: Path) -> None:
    if reasons := obstacles():
        unavailable("; ".join(reasons))
    report = tmp_path / "report.json"
    options = ["--seed", str(SEED), "--faults", str(FAULTS), "--longest", "1", "--json", str(report)]
    command = [sys.executable, "-m", "tests.chaos", *options, "--kinds", *KINDS, "--consistency", *CONSISTENCIES]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [run] = json.loads(report.read_text())
    planned = draw(SEED, FAULTS, KINDS, CONSISTENCIES, 1.0).faults
    assert {fault.kind for fault in planned} == {"kill", "stop", "disk-torn"}
    assert draw(SEED, FAULTS, KINDS, CONSISTENCIES, 1.0).topology.copies == 2
    assert [happened["fault"] for happened in run["faults"]] == [asdict(fault) for fault in planned]
    assert all(happened["done"] for happened in run["faults"]), "each fault had a target"
    assert run["problems"] == []
    assert "1 jobs, 3 faults, 0 jobs failed" in ran.stdout
