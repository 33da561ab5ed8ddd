"""Fixtures for the controller's tests: jobs and programs with real processes that do not need torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterps_operator.cli.session import Programs

HELPERS = Path(__file__).parent / "helpers"
MANIFEST = """
apiVersion: heterps.io/v1alpha1
kind: DevicePool
metadata: {name: cpu}
spec: {deviceType: CPU, resourceName: cpu, torchDevice: cpu, maxUnits: 8, pricePerUnitHour: "0.04"}
---
apiVersion: heterps.io/v1alpha1
kind: DevicePool
metadata: {name: accelerator}
spec: {deviceType: GPU, resourceName: nvidia.com/gpu, torchDevice: auto, maxUnits: 1, pricePerUnitHour: "2.42"}
---
apiVersion: heterps.io/v1alpha1
kind: HeterPSJob
metadata: {name: tiny}
spec:
  image: example.com/tiny:1
  model:
    entrypoint: tiny:build
    loss: torch.nn.functional:binary_cross_entropy_with_logits
  data: {format: parquet, train: data, label: late, dense: [distance], sparse: [carrier]}
  training:
    globalBatchSize: 512
    epochs: 1
    optimizer:
      dense: {name: adam, learningRate: "0.001"}
      sparse: {name: rowwise-adagrad, learningRate: "0.05"}
  objective: {minSamplesPerSecond: 20000}
  pools: [{name: cpu}, {name: accelerator}]
"""


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a wide terminal: narrow ones wrap words in tables, and pytest-xdist inherits the width."""
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def programs() -> Programs:
    """A fake runtime and planner that answer at once."""
    return Programs(
        runtime=(sys.executable, "-I", "-S", str(HELPERS / "fake_runtime.py")),
        planner=(sys.executable, "-I", "-S", str(HELPERS / "fake_planner.py")),
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A valid manifest in its own folder."""
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    return path
