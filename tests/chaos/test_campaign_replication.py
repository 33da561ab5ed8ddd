"""One run of the campaign with copies of rows: a server and a worker are killed, and no committed step is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.availability import unavailable
from tests.chaos.faults.schedule import draw
from tests.chaos.namespaces import obstacles

ROOT = Path(__file__).parents[2]
# A killed server, and a worker that is killed while that server's successor copies rows from the two others.
SEED, FAULTS = 1423, 2
KINDS = ["kill", "terminate", "stop"]
CONSISTENCIES = ["hybrid", "async"]


@pytest.mark.slow
def test_a_job_with_copies_goes_back_to_no_checkpoint(tmp_path: Path) -> None:
    if reasons := obstacles():
        unavailable("; ".join(reasons))
    planned = draw(SEED, FAULTS, KINDS, CONSISTENCIES, 1.0, replicated=True)
    assert (planned.topology.servers, planned.topology.copies) == (3, 2)
    assert [(fault.kind, fault.op) for fault in planned.faults] == [("kill", "ack"), ("kill", "shard-rows")]
    report = tmp_path / "report.json"
    options = ["--seed", str(SEED), "--faults", str(FAULTS), "--longest", "1", "--replication", "--json", str(report)]
    command = [sys.executable, "-m", "tests.chaos", *options, "--kinds", *KINDS, "--consistency", *CONSISTENCIES]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    [run] = json.loads(report.read_text())
    assert [happened["done"] != "" for happened in run["faults"]] == [True, True], "each fault had a target"
    assert run["problems"] == []
