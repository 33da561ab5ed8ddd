"""What the planner has chosen for a job, and the job keeps."""

from __future__ import annotations

from heterps_operator.api.job import JobSpec
from heterps_operator.state.status import Status
from heterps_runtime.contract import DenseExchange

__all__ = ["as_chosen", "as_claimed"]


def as_chosen(job: JobSpec, status: Status) -> JobSpec:
    """The job with what was chosen for it so far.

    A precision stays for good, as it changes the model. An exchange of dense gradients stays as long as the plan does:
    later plans are compared with it, and another exchange takes a restart.
    """
    job = job.in_precision(status.chosen_precision)
    return job if status.plan is None else job.in_exchange(status.plan.exchange_on_cpus)


def as_claimed(job: JobSpec, status: Status) -> JobSpec:
    """The job with what was chosen, or else would be if it were alone: the line plans each job in one variant."""
    job = as_chosen(job, status).in_precision(status.chosen_precision or status.claim_precision)
    if not job.chooses_exchange:
        return job
    return job.in_exchange(DenseExchange(status.claim_exchange or DenseExchange.PARAMETER_SERVER))
