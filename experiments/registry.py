"""All experiments, in the order of the document."""

from __future__ import annotations

from collections.abc import Mapping

from experiments import (
    ablation,
    batches,
    bayesian_times,
    brute_force,
    derived,
    executions,
    frameworks,
    image_accuracy,
    image_nodes,
    learned,
    measured_learning,
    methods,
    provisioning,
    robustness,
    sharing,
)
from experiments.framework import Experiment

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        brute_force.EXPERIMENT,
        provisioning.EXPERIMENT,
        methods.EXPERIMENT,
        methods.PAPER_CASES,
        bayesian_times.EXPERIMENT,
        executions.EXPERIMENT,
        executions.ON_CARD,
        frameworks.EXPERIMENT,
        frameworks.ON_CARD,
        derived.EXPERIMENT,
        learned.ERRATA,
        ablation.EXPERIMENT,
        measured_learning.EXPERIMENT,
        learned.TRANSFER,
        robustness.EXPERIMENT,
        batches.EXPERIMENT,
        batches.RULE,
        image_nodes.EXPERIMENT,
        image_accuracy.EXPERIMENT,
        sharing.JOBS,
        sharing.MARKET,
    )
}
