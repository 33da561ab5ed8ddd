"""The planning methods by name: one module each, all with the interface of `base`.

A new method needs a module and a line here.
"""

from __future__ import annotations

from heterps_planner.methods import (
    bayesian,
    brute_force,
    cpu,
    genetic,
    gpu,
    greedy,
    heuristic,
    heuristic_gpu_first,
    optimal,
    pretrained,
    rl_lstm,
    rl_rnn,
)
from heterps_planner.methods.base import Found, Method, Task

__all__ = ["METHODS", "Found", "Method", "Task"]

METHODS: dict[str, Method] = {
    "optimal": optimal.find,
    "rl-lstm": rl_lstm.find,
    "rl-rnn": rl_rnn.find,
    "pretrained": pretrained.find,
    "bayesian": bayesian.find,
    "genetic": genetic.find,
    "greedy": greedy.find,
    "brute-force": brute_force.find,
    "cpu": cpu.find,
    "gpu": gpu.find,
    "heuristic": heuristic.find,
    "heuristic-gpu-first": heuristic_gpu_first.find,
}
