"""Defaults that depend on other fields, which a schema cannot express.

An API server fills in fixed defaults. Defaults that depend on another field (the options of an optimizer on its name,
the device on the kind of pool) are filled in here, after validation and on every substrate, so that later code finds
every value in the manifest. The descriptions in `crds/` name the same values; a test compares them with these.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["DENSE_OPTIONS", "SPARSE_OPTIONS", "complete_job", "complete_pool"]

# Options of optimizers and their defaults. Those of sgd (except its step size), adagrad and adam are PyTorch's; ftrl
# has the power and the initial value 0 of McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013).
_ADAM = {"learningRate": "0.001", "beta1": "0.9", "beta2": "0.999", "epsilon": "1e-8"}
_ADAGRAD = {"learningRate": "0.01", "epsilon": "1e-10", "initialAccumulator": "0"}
DENSE_OPTIONS: dict[str, dict[str, str]] = {
    "sgd": {"learningRate": "0.01", "momentum": "0", "weightDecay": "0"},
    "adagrad": {**_ADAGRAD, "weightDecay": "0"},
    "adam": {**_ADAM, "weightDecay": "0"},
}
SPARSE_OPTIONS: dict[str, dict[str, str]] = {
    "sgd": {"learningRate": "0.01"},
    "adagrad": _ADAGRAD,
    "rowwise-adagrad": {**_ADAGRAD, "learningRate": "0.05"},
    "adam": _ADAM,
    "ftrl": {"learningRate": "0.05", "initialAccumulator": "0", "l1": "0", "l2": "0", "learningRatePower": "-0.5"},
}
_RESOURCES = {"CPU": "cpu", "GPU": "nvidia.com/gpu"}
_DEVICES = {"CPU": "cpu", "GPU": "cuda", "XPU": "xpu"}
_SCHEDULERS = {"Volcano": "volcano", "Coscheduling": "scheduler-plugins-scheduler"}  # names in their charts


def complete_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a valid HeterPSJob with every default filled in."""
    result = copy.deepcopy(job)
    spec = result["spec"]
    training = spec["training"]
    if "steps" not in training:
        training.setdefault("epochs", 1)
    training.setdefault("maxStaleness", 0 if training["consistency"] == "sync" else 4)
    optimizer = training["optimizer"]
    for kind, options in (("dense", DENSE_OPTIONS), ("sparse", SPARSE_OPTIONS)):
        optimizer[kind] = {**options[optimizer[kind]["name"]], **optimizer[kind]}
    init = spec["model"]["embeddingInit"]
    if init["distribution"] == "normal":
        spec["model"]["embeddingInit"] = {"mean": "0", "std": "1", **init}
    scheduling = spec["runPolicy"]["schedulingPolicy"]
    if scheduling["gang"] in _SCHEDULERS:
        scheduling.setdefault("schedulerName", _SCHEDULERS[scheduling["gang"]])
    return result


def complete_pool(pool: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a valid DevicePool with every default filled in."""
    result = copy.deepcopy(pool)
    spec = result["spec"]
    if spec["deviceType"] in _RESOURCES and "deviceClassName" not in spec:
        spec.setdefault("resourceName", _RESOURCES[spec["deviceType"]])
    spec.setdefault("torchDevice", _DEVICES[spec["deviceType"]])
    return result
