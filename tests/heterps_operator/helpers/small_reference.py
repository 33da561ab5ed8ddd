"""The model that plain PyTorch trains from a small job's manifest, in one process and in float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from tests.heterps_operator.helpers.real_job import RealJob
from tests.heterps_runtime.helpers.plain_torch import train

__all__ = ["plain_model"]


def plain_model(folder: Path, **spec: Any) -> dict[str, Any]:
    """Return the parameters of a small job's model; only manifest, data, order and initial values come from HeterPS.

    Args:
        folder: an empty folder.
        spec: changes of the manifest, as for `RealJob`; `training__precision` is fp64.
    """
    job = RealJob(folder, profiled=False, training__precision="fp64", **spec)
    manifest = load_manifest(folder / "job.yaml")
    config = RunConfig.from_json(manifest.run_configuration(job.work))
    # The same module under its name in this process.
    entrypoint = f"tests.heterps_operator.helpers.{config.entrypoint}"
    return train(dataclasses.replace(config, entrypoint=entrypoint), torch.float64)
