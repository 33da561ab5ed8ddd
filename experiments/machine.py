"""Description of the measuring machine, without a name or a path."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

__all__ = ["describe_machine"]


def describe_machine(seeds: int) -> dict[str, Any]:
    """Return processor, cores, memory, the CUDA card if there is one, versions, the date and the number of seeds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(memory),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": seeds,
        **({"card": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
