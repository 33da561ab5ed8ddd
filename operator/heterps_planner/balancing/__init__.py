"""Division of a stage's batch among workers of different speed.

`optimal` solves min over b of max_i (o_i + s_i b_i) subject to sum b_i = B, exactly; the other policies serve for
comparison. All of them keep the global batch, so that balancing never changes what the model learns: gradients are
weighted by b_i / B. `BatchController` measures o and s of each worker during training, and proposes a new division when
it pays; `Pace` reduces the frequency where changes have not paid. `simulate` runs it, or a similar controller, against
workers of known speeds.
"""

from __future__ import annotations

from heterps_planner.balancing.controller import BatchController
from heterps_planner.balancing.estimates import WorkerEstimate
from heterps_planner.balancing.optimal import divide_equal, divide_optimal
from heterps_planner.balancing.pace import Pace
from heterps_planner.balancing.policies import POLICIES, divide, divide_bno, divide_in_proportion, divide_random
from heterps_planner.balancing.workers import NodeMetrics, Worker, finish_time

__all__ = [
    "POLICIES",
    "BatchController",
    "NodeMetrics",
    "Pace",
    "Worker",
    "WorkerEstimate",
    "divide",
    "divide_bno",
    "divide_equal",
    "divide_in_proportion",
    "divide_optimal",
    "divide_random",
    "finish_time",
]
