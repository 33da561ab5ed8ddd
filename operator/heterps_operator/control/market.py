"""Prices that change while a job trains: whether another plan pays, and when the job moves to it. Pure.

The planner is asked when a price differs from the one that the running plan was made or judged with, and all have held
for `elasticity.cooldownSeconds`. Changes within `_SAME` count as none. Its plan is an offer. The job moves to it if:

- Over the remaining samples it saves more than the move costs, and more than `_MIN_SAVING` of what they would cost.
- Since the prices are what they are, staying has already cost more than the move would have. This is the rule of ski
  rental (Karlin et al., "Competitive snoopy caching", Algorithmica 1988): whenever a price goes back, its rise has cost
  at most twice what it would have with knowledge of the future. So a flapping price moves nothing.

A move is an orderly stop with a checkpoint and a start of the new plan from it. It costs the running plan's price while
it stops, and the new plan's until it trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import build_problem, cost_per_sample
from heterps_operator.formatting import format_money
from heterps_operator.state.offers import Offer
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.prices import PriceHistory
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.trials import Cause, Review
from heterps_operator.state.values import ComputePlan, Observed
from heterps_runtime.contract import JobPhase

__all__ = ["judge_prices", "note_start"]

_MIN_SAVING = 0.05  # of what the rest of training costs; below it, predictions may be wrong
_SAME = 0.05  # relative; a smaller change of a price changes no decision
_STOP_SECONDS = 10.0  # until a job has saved a checkpoint and its processes have ended
_START_SECONDS = 60.0  # until a plan trains, as long as no start of the job was measured


def note_start(status: Status, now: float) -> Status:
    """Take note of how long a start took, in a job that begins to train."""
    if status.phase != Phase.STARTING:
        return status
    return replace(status, start_seconds=max(now - status.phase_since, 0.0))


def judge_prices(
    job: JobSpec, observed: Observed, status: Status
) -> tuple[Status, tuple[ComputePlan, ...], tuple[Event, ...]]:
    """Compare the running plan with the cheapest one at the present prices.

    Args:
        job: with the present prices.
        observed: what is the case.
        status: of a job that neither stops nor ends.

    Returns:
        The status, with `moving` and an `offer` set if the job moves to that; a question to the planner; and an event.
    """
    plan, view = status.plan, observed.coordinator
    if plan is None or not observed.prices:
        return status, (), ()
    prices = {pool.name: str(pool.price_per_unit_hour) for pool in job.pools}
    if status.prices != prices:
        status = replace(status, prices=prices, plan=_repriced(job, plan))
        plan = status.plan or plan
    if not status.judged_prices:  # a plan has just been made, or an earlier version made it
        status = replace(status, judged_prices=prices)
    if status.offer is not None and not _alike(status.offer.prices, prices):
        status = replace(status, offer=None)
    asked = status.review is not None and status.review.cause == Cause.PRICES
    follows = job.elasticity.mode == "Auto" and job.elasticity.price_policy == "Move" and not job.stages_by_hand
    training = status.phase == Phase.RUNNING and view is not None and view.phase == JobPhase.TRAINING
    if not follows or not training:
        return (replace(status, review=None) if asked else status), (), ()
    if asked:
        return _take_answer(job, observed, status, plan), (), ()
    if _alike(status.judged_prices, prices) and status.offer is None:
        return status, (), ()
    if status.offer is not None:
        return _wait_or_move(job, observed, status, plan, status.offer)
    return _ask(job, observed, status, prices)


def _ask(
    job: JobSpec, observed: Observed, status: Status, prices: dict[str, str]
) -> tuple[Status, tuple[ComputePlan, ...], tuple[Event, ...]]:
    """Ask for the cheapest plan, once the prices have held for a while."""
    busy = status.review is not None or observed.planning
    if busy or _held(job, observed, status) < job.elasticity.cooldown_seconds:
        return status, (), ()
    try:
        problem = build_problem(job.limited(observed.capacity.free_units), observed.profiles, status.start_seconds)
    except (KeyError, ValueError):  # profiles of an earlier run are gone, or are of another model
        return replace(status, judged_prices=prices), (), ()
    revision = status.plan_revision + 1
    review = Review(Cause.PRICES, _changes(job, status), revision=revision)
    return replace(status, review=review), (ComputePlan(problem, revision),), ()


def _take_answer(job: JobSpec, observed: Observed, status: Status, plan: JobPlan) -> Status:
    """Keep the planner's plan as an offer if it pays."""
    review, outcome = status.review, observed.outcome
    assert review is not None
    if outcome is None or outcome.revision != review.revision:
        return status if observed.planning else replace(status, review=None)  # lost in a restart: it is asked again
    prices = {pool.name: str(pool.price_per_unit_hour) for pool in job.pools}
    status = replace(status, review=None)
    other = outcome.plan
    if other is None or other.throughput is None or other.cost_per_hour is None:
        return replace(status, judged_prices=prices)
    try:
        problem = build_problem(job, observed.profiles, status.start_seconds)
        lasts, costs = cost_per_sample(problem, plan), cost_per_sample(problem, other)
    except (KeyError, ValueError):
        return replace(status, judged_prices=prices)
    seconds = _START_SECONDS if status.start_seconds is None else status.start_seconds
    move = ((plan.cost_per_hour or 0.0) * _STOP_SECONDS + other.cost_per_hour * seconds) / 3600
    offer = Offer(dict(other.document), prices, lasts - costs, lasts, move)
    return replace(status, offer=offer if _pays(job, observed, offer) else None, judged_prices=prices)


def _pays(job: JobSpec, observed: Observed, offer: Offer) -> bool:
    """Whether the rest of training saves clearly more than the move costs."""
    left = _samples_left(job, observed)
    return left * offer.saves > max(offer.move_cost, left * offer.lasts * _MIN_SAVING)


def _wait_or_move(
    job: JobSpec, observed: Observed, status: Status, plan: JobPlan, offer: Offer
) -> tuple[Status, tuple[ComputePlan, ...], tuple[Event, ...]]:
    """Move when staying has cost as much as the move; drop an offer that does not pay any more."""
    now, view = observed.time, observed.coordinator
    assert view is not None
    if not _pays(job, observed, offer):
        return replace(status, offer=None), (), ()
    rate = plan.throughput or view.samples_per_second
    lost = _held(job, observed, status, since_plan=True) * rate * offer.saves
    other = JobPlan.from_json(offer.plan)
    if lost < offer.move_cost or not observed.capacity.fits(other.units):
        return status, (), ()
    left = _samples_left(job, observed)
    text = (
        f"{_describe_prices(job, observed)}: the rest of training costs {format_money(left * offer.lasts)} with plan "
        f"{status.plan_revision} and {format_money(left * (offer.lasts - offer.saves))} with {other.summary}, and the "
        f"move {format_money(offer.move_cost)}"
    )
    status = replace(status, moving=text, stopping_since=now).with_phase(Phase.STOPPING, now)
    event = Event("Normal", "Replanned", f"{text}; the job saves a checkpoint and continues with that plan", now)
    return status, (), (event,)


def _held(job: JobSpec, observed: Observed, status: Status, *, since_plan: bool = False) -> float:
    """Seconds since a price of the job changed last; `since_plan`: or since the job trains, if that is less."""
    steps = [_since(history) for pool, history in observed.prices.items() if pool in job.prices]
    begins = [*steps, status.phase_since] if since_plan else steps
    return observed.time - max(begins, default=observed.time)


def _since(history: PriceHistory) -> float:
    """When a price took on about its present value."""
    since = history[-1].since
    for step in reversed(history):
        if not _is_same(step.price, history[-1].price):
            break
        since = step.since
    return since


def _is_same(price: Decimal, other: Decimal) -> bool:
    return abs(float(price) - float(other)) <= _SAME * float(other)


def _alike(prices: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether two sets of prices lead to the same decisions."""
    return prices.keys() == others.keys() and all(_is_same(Decimal(prices[p]), Decimal(others[p])) for p in prices)


def _samples_left(job: JobSpec, observed: Observed) -> float:
    view = observed.coordinator
    assert view is not None
    return float(max(view.total_steps - view.committed_steps, 0) * job.global_batch_size)


def _repriced(job: JobSpec, plan: JobPlan) -> JobPlan:
    """The running plan with its price per hour at the present prices."""
    if plan.cost_per_hour is None or any(pool not in job.prices for pool in plan.units):
        return plan
    units_per_pod = {pool.name: pool.units_per_pod for pool in job.pools}
    return plan.with_workers(plan.pods, plan.servers, units_per_pod, job.prices)


def _changes(job: JobSpec, status: Status) -> str:
    """Which prices differ from those that the plan was judged with."""
    before = {name: Decimal(price) for name, price in status.judged_prices.items()}
    changed = [p for p in job.pools if not _is_same(before.get(p.name, Decimal(0)), p.price_per_unit_hour)]
    return ", ".join(f"pool {pool.name} costs ${pool.price_per_unit_hour} per unit and hour" for pool in changed)


def _describe_prices(job: JobSpec, observed: Observed) -> str:
    """The price that took on its present value last, with the one before."""
    moved = [(pool, steps) for pool, steps in observed.prices.items() if pool in job.prices and len(steps) > 1]
    if not moved:
        return "prices have changed"
    pool, steps = max(moved, key=lambda item: _since(item[1]))
    before = next((s.price for s in reversed(steps) if not _is_same(s.price, steps[-1].price)), steps[-2].price)
    return f"pool {pool} costs ${steps[-1].price} per unit and hour after ${before}"
