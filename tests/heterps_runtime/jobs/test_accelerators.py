"""What only a real card can show; the other tests of whole jobs also use one for pool `card`, if there is one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from heterps_runtime.config import RunConfig
from heterps_runtime.worker.exchange.rings import form_ring
from tests.heterps_runtime.helpers.jobs import configuration, run_job, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import difference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

CARD = torch.device("cuda", 0)


def test_nccl_sums_what_the_engine_has_not_finished_computing() -> None:
    ring = form_ring(HashStore(), 0, 1, CARD, "127.0.0.1", timedelta(seconds=60))
    assert type(ring).__name__ == "_NcclRing"
    large = torch.full((2048, 2048), 1 / 2048, device=CARD)
    for _ in range(20):
        large = large @ large * 1.0  # kernels that are still to run when the ring gets their result
    ring.all_reduce(large)
    ring.broadcast(large, 0)
    torch.testing.assert_close(large, torch.full_like(large, 1 / 2048))
    ring.abort()


def distance(precision: str, folder: Path, **training: Any) -> float:
    """The largest difference between a job on the card and plain PyTorch in float32, in units of the parameter."""
    settings: dict[str, Any] = {"microBatches": 1, "steps": 20, **training}
    document = configuration(folder / precision, "flights", 320, precision=precision, **settings)
    trained = trained_model(run_job(document, [("card", 10, 1)], 1))
    plain = RunConfig.from_json(configuration(folder / "plain", "flights", 320, precision="fp32", **settings))
    expected = train(plain, torch.float32)
    return max(difference(trained[name], values) for name, values in expected.items())


def test_fp32_rounds_nothing_and_tf32_does(tmp_path: Path) -> None:
    sgd = {"name": "sgd", "learningRate": "0.2"}
    exact, short, half = (
        distance(precision, tmp_path, optimizer={"dense": sgd, "sparse": sgd}) for precision in ("fp32", "tf32", "fp16")
    )
    assert exact < 1e-5 < short < 1e-2
    assert 1e-5 < half < 1e-2
