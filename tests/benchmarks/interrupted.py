"""A bench of one fake entrant, for a test that interrupts it: `python -m tests.benchmarks.interrupted FOLDER`."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks._peers.entrants import Entrant, Role
from benchmarks._peers.rounds import Cell, Results
from benchmarks._peers.running import Outcome, run_entrant

from tests.benchmarks.small import fake

FOLDER = Path(sys.argv[1])


def run(entrant: Entrant, cell: Cell) -> Outcome:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        settings = {"fifo": str(FOLDER / "fifo"), "threads": 1}
        return run_entrant(entrant, settings, Path(folder), programs="tests.benchmarks.programs")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has programs in the background ignore it
    entrant = fake("has children", Role("worker"))
    results = Results(FOLDER / "peers.json", {})
    peers.measure([Cell("deep", "fp32")], {"deep": [entrant]}, 1, results, run)
