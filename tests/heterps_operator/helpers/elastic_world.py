"""A closed loop around `reconcile`: training whose throughput depends on its workers, an external load, and noise.

The planner is the real one. Its profile has one error: it underestimates the part of the work that workers share. So
too few workers look sufficient.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from heterps_operator.api.job import PoolSpec
from heterps_operator.state.status import Status
from heterps_operator.state.values import ComputePlan, ProcessView
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan as make_plan
from heterps_planner.scenarios.evaluate import evaluate
from tests.heterps_operator.helpers.world import PROFILE, World, make_job

Load = Callable[[float], float]  # seconds since training began -> part of the machine used by others

BATCH = 4096
TURN_SECONDS = 10.0  # averaging window of the coordinator's throughput
STARTUP_SECONDS = 25.0
_FRESH = {"version": 1, "method": "optimal", "feasible": True, "cost": 0.01}


class ElasticWorld(World):
    """A job of one stage that trains beside a load.

    A step takes the n-th part of the work, and an overhead that more workers do not shorten; both grow with the load.

    Args:
        load: external load of the machine, from 0.
        floor: required samples/s.
        noise: relative standard deviation of a measurement over ten seconds.
        believed: part of the work that workers share, according to the profile.
        work: seconds of one worker's time per step.
        overhead: seconds per step without load, and the increase for a load of 1.
        slowdown: relative increase of the work's duration for a load of 1.
        workers: at the start.
        seed: seed of the noise.
        elasticity: settings.
        max_units: limit of the pool; one unit is the server's.
        restart_every: seconds after which a new operator reads the state; None: never.
    """

    def __init__(
        self,
        load: Load = lambda t: 0.0,
        *,
        floor: float = 11_000.0,
        noise: float = 0.04,
        believed: float = 0.3,
        work: float = 0.41,
        overhead: tuple[float, float] = (0.08, 0.1),
        slowdown: float = 0.0,
        workers: int = 2,
        seed: int = 0,
        elasticity: dict[str, Any] | None = None,
        max_units: int = 9,
        restart_every: float | None = None,
    ) -> None:
        pool = PoolSpec("cpu", "CPU", Decimal("0.04"), max_units, 1)
        settings = {"max_scale_down_percent": 100} if elasticity is None else elasticity
        super().__init__(
            make_job(
                pools=(pool,), global_batch_size=BATCH, micro_batches=1, min_samples_per_second=floor,
                elasticity=settings,
            )
        )  # fmt: skip
        self.load = load
        self._work, self._overhead, self._slowdown, self._noise = work, overhead, slowdown, noise
        self._rng = np.random.default_rng(seed)
        self._restart_every = restart_every
        layers = [{**layer, "parallelFraction": believed} for layer in PROFILE["layers"]]
        self._profile = {**PROFILE, "batchSize": BATCH, "layers": layers}
        self.changes: list[tuple[float, int]] = []  # (seconds, workers) of each change of the plan
        self.seen: list[tuple[float, int, bool, bool]] = []  # (seconds, workers, is the floor met, can it be met)
        self.began = self._train(workers)

    # --- the truth ---

    def rate(self, workers: int, load: float) -> float:
        """Samples per second, without noise."""
        return BATCH / self._seconds(workers, load, 1.0)

    def _seconds(self, workers: int, load: float, waiting: float) -> float:
        fixed, more = self._overhead
        return self._work * (1 + self._slowdown * load) / workers + (fixed + more * load) * waiting

    def needed(self, load: float) -> int:
        """The fewest workers that meet the floor; 0: no number does."""
        floor, most = self.job.min_samples_per_second or 0.0, (self.job.pools[0].max_units or 0) - 1
        return next((n for n in range(1, most + 1) if self.rate(n, load) >= floor), 0)

    # --- the loop ---

    def _train(self, workers: int) -> float:
        """Start training with a plan based on a different profile."""
        self.settle()
        self.listen()
        self.settle()
        self.profiles["cpu"] = self._profile
        self.end("profile-cpu", 0)
        self.settle()
        names = [layer["name"] for layer in PROFILE["layers"]]
        stage = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 2, "layers": names}
        servers = {"pool": "cpu", "replicas": 1, "units": 1}
        plan = {**_FRESH, "stages": [{**stage, "units": workers, "pods": workers}], "parameterServer": servers}
        self.answer({**plan, "throughput": 20_000.0, "costPerHour": 0.04 * (workers + 1)})
        self.settle()
        self.join("ps-0", *(f"worker-0-{i}" for i in range(workers)))
        return self.time

    def run(self, seconds: float) -> ElasticWorld:
        """Advance time."""
        end = self.time + seconds
        while self.time < end:
            self.time += TURN_SECONDS
            self._happen()
            before = self.status.plan_revision
            decision = self.turn()
            for action in decision.actions:
                if isinstance(action, ComputePlan):
                    self._plan(action)
            if self._restart_every and (self.time - self.began) % self._restart_every < TURN_SECONDS:
                self.status = Status.from_json(json.loads(json.dumps(self.status.to_json())))
            if self.status.plan_revision != before:
                self.changes.append((self.time - self.began, self.workers))
        return self

    @property
    def workers(self) -> int:
        """Workers of the plan."""
        assert self.status.plan is not None
        return self.status.plan.pods[0]

    def _plan(self, request: ComputePlan) -> None:
        problem = Problem.from_json(request.problem)
        found = evaluate(problem, list(request.stages)) if request.stages else make_plan(problem)
        self.answer({**found.to_json(), "version": 1})

    def _happen(self) -> None:
        """Start and stop workers, and make steps."""
        assert self.document is not None
        listed = {m["name"]: m for m in self.document["members"]}
        for name, process in list(self.processes.items()):
            if process.running and process.spec.role == "worker":
                if name not in listed:
                    self.end(name, 0)
                elif listed[name]["state"] != "ready" and self.time - process.started >= STARTUP_SECONDS:
                    listed[name]["state"] = "ready"
        self._drop_ended(listed)
        ready = sum(m["role"] == "worker" and m["state"] == "ready" for m in listed.values())
        now = self.time - self.began
        load = self.load(now)
        noise = float(np.exp(self._noise * self._rng.standard_normal()))
        alone = BATCH / self._seconds(ready, load, 0.5) * noise
        floor = self.job.min_samples_per_second or 0.0
        self.seen.append((now, ready, self.rate(ready, load) >= 0.95 * floor, self.needed(load) > 0))
        self.set_phase(
            "Training",
            committedSteps=50 + int(now),
            totalSteps=10_000_000,
            samplesPerSecond=self.rate(ready, load) * noise,
            stages=[{"name": "stage-0", "samplesPerSecond": alone}],
        )

    def _drop_ended(self, listed: dict[str, Any]) -> None:
        """Remove a worker whose process ended, although the plan contains it again."""
        for name, member in listed.items():
            process: ProcessView | None = self.processes.get(name)
            if process is not None and not process.running and member["state"] == "ready":
                member["state"] = "absent"

    # --- what came of it ---

    def missed_share(self, since: float = 0.0) -> float:
        """Part of the time in which the floor was missed although it was reachable."""
        judged = [met for now, _, met, possible in self.seen if possible and now >= since]
        return 1 - sum(judged) / len(judged) if judged else 0.0

    def set_floor(self, floor: float) -> None:
        """Change the floor in the spec."""
        self.job = replace(self.job, min_samples_per_second=floor)


# --- loads ------------------------------------------------------------------------------------------------------------


def steady(height: float, end: float) -> Load:
    """A constant load until `end`."""
    return lambda t: height if t < end else 0.0


def square(period: float, on: float, end: float, height: float = 1.0) -> Load:
    """A load during the first `on` seconds of each period, until `end`."""
    return lambda t: height if t < end and t % period < on else 0.0


def telegraph(seed: int, mean: float, end: float, height: float = 1.0) -> Load:
    """A load that switches at random, after `mean` seconds on average, until `end`."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(mean, int(4 * end / mean) + 20))
    return lambda t: height if t < end and int(np.searchsorted(times, t)) % 2 else 0.0


def drift(rise: float, end: float, height: float = 1.0) -> Load:
    """A load that grows for `rise` seconds, stays, and stops at `end`."""
    return lambda t: 0.0 if t >= end else height * min(1.0, t / rise)
