"""All experiments, in the order of the document."""

from __future__ import annotations

from collections.abc import Mapping

from experiments import batches, brute_force, learned, methods, provisioning, robustness, sharing
from experiments.framework import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        brute_force.EXPERIMENT,
        provisioning.EXPERIMENT,
        methods.EXPERIMENT,
        learned.ERRATA,
        learned.TRANSFER,
        robustness.EXPERIMENT,
        batches.EXPERIMENT,
        sharing.JOBS,
        sharing.MARKET,
    )
}
