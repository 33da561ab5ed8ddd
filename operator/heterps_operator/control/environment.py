"""Environment variables of the runtime's processes that are the same on every substrate."""

from __future__ import annotations

from heterps_operator.state.values import ProcessSpec
from heterps_runtime.cores import THREADS

__all__ = ["process_variables"]

# Every library that would otherwise take all cores of the machine.
_THREAD_VARIABLES = (THREADS, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def process_variables(spec: ProcessSpec) -> dict[str, str]:
    """Variables that hold a process to its threads and let its log say at once what happens to it."""
    threads = dict.fromkeys(_THREAD_VARIABLES, str(max(1, spec.threads)))
    return {**threads, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
