"""The methods by name: one module each, all behind the interface of `base`. Adding one is a file and a line here."""

from __future__ import annotations

from heterps_planner.methods import brute_force, cpu, gpu, optimal
from heterps_planner.methods.base import Found, Method, Task

__all__ = ["METHODS", "Found", "Method", "Task"]

METHODS: dict[str, Method] = {
    "optimal": optimal.find,
    "brute-force": brute_force.find,
    "cpu": cpu.find,
    "gpu": gpu.find,
}
