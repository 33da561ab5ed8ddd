"""A fake of `heterps plan --problem FILE --output json`: always the same plan, or the behaviour in $FAKE_PLANNER.

$FAKE_PLANNER: `infeasible`, `refuse` (bad input), `hang`, or nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("--problem")
    options, _ = parser.parse_known_args()
    problem = json.loads(Path(options.problem).read_text())
    match os.environ.get("FAKE_PLANNER", ""):
        case "infeasible":
            answer = {"feasible": False, "reason": "ThroughputFloorUnreachable", "bestThroughput": 31000.0,
                      "message": "no plan reaches 90,000 samples/s; the best is 31,000"}  # fmt: skip
            sys.stdout.write(json.dumps(answer))
            return 3
        case "refuse":
            sys.stderr.write("problem.layers[3].pools.v100.computeSeconds: must be > 0, is -1\n")
            return 2
        case "hang":
            threading.Event().wait()
    names = [layer["name"] for layer in problem["layers"]]
    stage = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": len(names) - 1, "layers": names,
             "units": 2, "pods": 2}  # fmt: skip
    plan = {
        "version": 1, "method": "optimal", "feasible": True, "seconds": 0.01, "stages": [stage],
        "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1}, "throughput": 52_000.0, "costPerHour": 0.12,
        "cost": 0.0002, "lowerBound": 0.0002, "gap": 0.0, "optimal": True, "bindingLimits": [], "shadowPrices": {},
    }  # fmt: skip
    sys.stdout.write(json.dumps(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main())
