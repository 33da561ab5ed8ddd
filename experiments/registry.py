"""All experiments, in the order of the document."""

from __future__ import annotations

from collections.abc import Mapping

from experiments import brute_force, methods, robustness
from experiments.framework import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        brute_force.EXPERIMENT,
        methods.EXPERIMENT,
        robustness.EXPERIMENT,
    )
}
