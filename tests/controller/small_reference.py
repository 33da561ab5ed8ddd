"""What plain PyTorch trains, in one process and in float64, from the manifest of a small job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.config import RunConfig
from tests.controller.real_job import RealJob
from tests.runtime.plain_torch import train

__all__ = ["plain_model"]


def plain_model(folder: Path, **spec: Any) -> dict[str, Any]:
    """The model of a small job, by parameter; of HeterPS only the manifest, data, order and first values are used.

    Args:
        folder: an empty one.
        spec: changes of the manifest, as for `RealJob`; `training__precision` is fp64.
    """
    job = RealJob(folder, profiled=False, training__precision="fp64", **spec)
    manifest = load_manifest(folder / "job.yaml")
    config = RunConfig.from_json(manifest.run_configuration(job.work))
    # The same module under the name that it has in this process.
    entrypoint = f"tests.controller.{config.entrypoint}"
    return train(dataclasses.replace(config, entrypoint=entrypoint), torch.float64)
