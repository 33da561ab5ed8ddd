"""A status as an operator stores it."""

from __future__ import annotations

from heterps_operator.state.history import PlanRecord
from heterps_operator.state.offers import Offer
from heterps_operator.state.status import Condition, Failure, Phase, Relayed, Status
from heterps_operator.state.throughput import Sample, ThroughputSeries
from heterps_operator.state.trials import Cause, FloorMoves, Review, Trial
from heterps_planner.balancing import Pace, WorkerEstimate
from heterps_planner.plans.selection import Candidate, Selection
from tests.heterps_operator.helpers.documents import NOW
from tests.heterps_operator.helpers.world import JOB_PLAN


def full_status() -> Status:
    """A status in which every field has another value than by default."""
    condition = Condition("Planned", "True", "PlanComputed", "x", NOW)
    failure = Failure("x", "x", last_lines=("x",))
    observed = WorkerEstimate().observe(512, 1.0).observe(512, 1.0)
    return Status(
        phase=Phase.RUNNING, phase_since=NOW, started=NOW, finished=NOW, conditions=(condition,), plan=JOB_PLAN,
        plan_revision=3, plan_reason="Replanned", history=(PlanRecord(1, NOW, "PlanComputed", predicted=2.0),),
        planned_with={"cpu": 4}, refused_with={"cpu": 4}, possible=True, claim={"cpu": 5}, claim_precision="bf16",
        claim_exchange="AllReduce",
        precision=Selection("bf16", (Candidate("fp32", 1.5, 2.5, 3.5), Candidate("bf16"))),
        waiting_since=NOW,
        crowded={"cpu": 2}, crowded_since=NOW, incarnation=2,
        attempts={"ps-0": 2}, queued=True, admitted=NOW, not_before={"": 1.0}, heard=NOW, relayed=Relayed(NOW, 1, 1),
        resumed_incarnation=1, failures=1, failures_in_a_row=1, failed_at_step=7, disruptions=1, disrupted=NOW,
        restarts={"ps-0": 1}, stopping_since=NOW, moving="x", outcome=Phase.FAILED, outcome_since=NOW,
        members_ended=NOW, orderly=True, failure=failure,
        last_observation=NOW, last_rebalance=NOW, speeds={"worker-0-0": observed.observe(256, 99.5)},
        pace=Pace(2, NOW, {"worker-0-0": 512}, 0.5), review=Review(Cause.MISSED, "x", 1.5, "x", 3), reviewed=NOW,
        series=ThroughputSeries(3, (2, 1), 1.5, NOW, (Sample(NOW, 1.5, (1.5, 2.5)),)),
        moved_for_floor=FloorMoves(1.5, NOW, 2.5),
        trials=(Trial((2, 1), (3, 1), 1.5, 2.5, NOW, 1.5, True, "x"),), result={"committedSteps": 1},
        prices={"cpu": "0.05"}, judged_prices={"cpu": "0.04"}, start_seconds=1.5,
        offer=Offer(dict(JOB_PLAN.document), {"cpu": "0.05"}, 1.5, 2.5, 3.5),
    )  # fmt: skip
