"""All experiments, in the order of the document."""

from __future__ import annotations

from collections.abc import Mapping

from experiments import (
    ablation,
    batches,
    brute_force,
    derived,
    image_accuracy,
    image_nodes,
    learned,
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
        derived.EXPERIMENT,
        learned.ERRATA,
        ablation.EXPERIMENT,
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
