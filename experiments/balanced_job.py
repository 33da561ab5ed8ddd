"""A job whose batches the product's controller divides, for experiments: real (`image_job`) or simulated.

Each turn looks at the job, asks `rebalance` and sends what it decides, as the control loop does. The loop itself is not
used, because it would start the processes outside of the experiment's nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from heterps_operator.api.job import JobSpec
from heterps_operator.control.tuning.rebalancing import rebalance
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import CoordinatorView, MemberView, Observed, SubmitAllocation
from heterps_runtime.contract import JobPhase, worker_name

__all__ = ["MIN_GAIN_PERCENT", "BalancedJob", "one_stage"]

MIN_GAIN_PERCENT = 2  # of a change; the default of jobs, 5, would let a division be 5 % from the best


def one_stage(count: int, layers: int) -> JobPlan:
    """A plan with one stage of all layers on `count` workers."""
    stage = {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": layers - 1, "layers": ["all"]}
    servers = {"pool": "cpu", "replicas": 1, "units": 1}
    return JobPlan.from_json({"stages": [{**stage, "units": count, "pods": count}], "parameterServer": servers})


class BalancedJob(ABC):
    """A job of one stage under a policy.

    Args:
        job: what the controller is told.
        plan: of one stage.

    Attributes:
        job: with the policy in force.
        view: the last status, with the measured figures.
    """

    def __init__(self, job: JobSpec, plan: JobPlan) -> None:
        self.job = job
        self.view = CoordinatorView(JobPhase.STARTING)
        self._plan = plan
        self._status = Status()

    @abstractmethod
    def now(self) -> float:
        """Seconds of a clock that only goes forward."""

    @abstractmethod
    def pause(self) -> None:
        """Wait a moment, short beside a step."""

    @abstractmethod
    def _look(self) -> CoordinatorView:
        """The status now, with measured figures."""

    @abstractmethod
    def _send(self, action: SubmitAllocation) -> None:
        """Carry out a division."""

    @property
    def workers(self) -> list[MemberView]:
        """The workers, by index."""
        found = [self.view.member(worker_name(0, index)) for index in range(self._plan.pods[0])]
        return [member for member in found if member is not None]

    @property
    def batches(self) -> tuple[int, ...]:
        """The present division of the batch."""
        return tuple(member.batch_size for member in self.workers)

    def activities(self) -> list[Mapping[str, float]]:
        """Seconds per step by activity, of each worker."""
        entries = {entry["name"]: entry for entry in self.view.document.get("members") or ()}
        return [entries[member.name]["figures"] for member in self.workers]

    def follow(self, policy: str, interval: float, seed: int) -> None:
        """Follow a policy from now on, with nothing known of the workers."""
        balancing = replace(
            self.job.balancing, policy=policy, interval_seconds=interval, min_gain_percent=MIN_GAIN_PERCENT, seed=seed
        )
        self.job, self._status = replace(self.job, balancing=balancing), Status()

    def divide(self, batches: tuple[int, ...]) -> None:
        """Divide the batch by hand."""
        self._send(SubmitAllocation((batches,)))

    def turn(self, *, decide: bool) -> None:
        """Look at the job and, if asked to, carry out what the controller decides."""
        self.view = self._look()
        if decide and self.view.phase == JobPhase.TRAINING:
            observed = Observed(self.now(), self._status, coordinator=self.view)
            self._status, actions = rebalance(self.job, observed, self._status, self._plan)
            for action in actions:
                self._send(action)
