"""Fixtures of tests of whole jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_core() -> Iterator[None]:
    """Keep the threads of a job on one core.

    The interpreter runs one of them at a time anyway. On several cores each message wakes another core, which then
    waits for the interpreter's lock: a third of the processor time of a job, and of its duration.
    """
    cores = os.sched_getaffinity(0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)
