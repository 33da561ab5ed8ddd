"""Updates of replicas: those on accelerators are those on the host, which are the servers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heterps_runtime.store.dense import state_names, update_dense
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.worker.exchange.replica import update_on_device

OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "learningRate": "0.1", "momentum": "0", "weightDecay": "0"},
    {"name": "sgd", "learningRate": "0.1", "momentum": "0.9", "weightDecay": "0.01"},
    {"name": "adagrad", "learningRate": "0.1", "epsilon": "1e-10", "initialAccumulator": "0.1", "weightDecay": "0.01"},
    {"name": "adam", "learningRate": "0.01", "beta1": "0.9", "beta2": "0.99", "epsilon": "1e-8", "weightDecay": "0.1"},
]


@pytest.mark.parametrize("manifest", OPTIMIZERS, ids=lambda manifest: f"{manifest['name']} {len(manifest)}")
def test_an_update_on_a_device_is_that_on_the_host(manifest: dict[str, Any]) -> None:
    optimizer, generator = DenseOptimizer.from_manifest(manifest), torch.Generator().manual_seed(4)
    values = torch.randn(50, generator=generator, dtype=torch.float64)
    state = {name: torch.full_like(values, 0.1) for name in state_names(optimizer)}
    on_host = values.numpy().copy(), [state[name].numpy().copy() for name in state_names(optimizer)]
    for step in range(1, 6):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64)
        given = gradient.clone()
        update_on_device(optimizer, values, state, gradient, 0.25, step)
        assert torch.equal(gradient, given)
        update_dense(optimizer, *on_host, gradient.numpy(), scale=0.25, step=step)
    for device, host in zip([values, *state.values()], [on_host[0], *on_host[1]], strict=True):
        assert torch.allclose(device, torch.from_numpy(host), rtol=1e-12, atol=1e-14)
