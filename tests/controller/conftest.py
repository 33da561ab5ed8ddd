"""Jobs and programs for the controller's tests: real processes, but none that needs torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterps_operator.cli.session import Programs

HERE = Path(__file__).parent
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
    """Whoever starts the tests may have a narrow terminal, in which tables break their words; pytest-xdist tells it."""
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def programs() -> Programs:
    """A runtime and a planner that take no time."""
    return Programs(
        runtime=(sys.executable, "-I", "-S", str(HERE / "fake_runtime.py")),
        planner=(sys.executable, "-I", "-S", str(HERE / "fake_planner.py")),
    )


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A valid manifest in a folder of its own."""
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    return path
