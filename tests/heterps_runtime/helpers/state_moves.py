"""Jobs whose servers copy rows from one another, and what tests ask about their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration

SAMPLES, BATCH, STEPS, LAST = 320, 32, 60, 10  # LAST: last layer of models.Flights
COUNTING: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]
TWO: list[Stage] = [("cpu", 4, 2), ("cpu", LAST, 1)]
MIXED: list[Stage] = [("cpu", 4, 2), ("card", LAST, 1)]
RULES: list[dict[str, Any]] = [
    {
        "name": "embeddings.tail.weight",
        "admission": {"minSteps": 2, "unusedSteps": 9},
        "eviction": {"unusedSteps": 16},
    }
]


def with_all_state(work: Path, steps: int) -> dict[str, Any]:
    """A job with Adam, dense parameters in pieces, rows on disk, rules for rows, and encryption."""
    document = configuration(work, rows=4000, steps=steps)
    document["job"]["spec"]["model"] |= {"tables": RULES, "arguments": {"hidden": [256, 192]}}
    document["job"]["spec"]["parameterServer"]["spill"] = {"memory": 1}
    document["job"]["spec"]["encryption"] = "Required"
    return document


def ended(job: ThreadedJob) -> dict[str, Any]:
    """Wait for the end of a job and of its members, none of which may fail; returns the last status."""
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    return status


def reasons(status: dict[str, Any]) -> list[str]:
    """The reasons of a job's events."""
    return [event["reason"] for event in status["events"]]
