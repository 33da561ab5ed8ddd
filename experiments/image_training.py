"""Training of an image model in one process, on the batches of its job."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.image_data import BATCHES, digits, manifest_documents
from heterps_runtime.data import BatchOrder
from heterps_runtime.intake import build_model

__all__ = ["accuracies"]


def accuracies(model: str, updates: int, every: int) -> list[tuple[int, float]]:
    """Train, and return (updates, accuracy on held-out images) before the first update and after every few."""
    splits = digits()
    spec = manifest_documents(model)[1]["spec"]
    seed, batch = spec["training"]["seed"], BATCHES[model]
    (images, labels), (held_out, answers) = (
        (_scaled(images), torch.from_numpy(labels)) for images, labels in (splits["train"], splits["test"])
    )
    net = build_model(spec["model"]["entrypoint"], spec["model"].get("arguments") or {}, seed, torch.float32)
    torch.manual_seed(seed)  # of dropout
    order = BatchOrder(len(labels), batch, seed)
    rate = float(spec["training"]["optimizer"]["dense"]["learningRate"])
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    curve = [(0, _accuracy(net, held_out, answers))]
    for step in range(updates):
        rows = order.rows(step, 0, order.batches.size(step))
        net.train()
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(images[rows]), labels[rows]))
        optimizer.step()
        if (step + 1) % every == 0:
            curve.append((step + 1, _accuracy(net, held_out, answers)))
    return curve


def _scaled(images: Any) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255).unsqueeze(1)


def _accuracy(net: nn.Module, images: torch.Tensor, answers: torch.Tensor) -> float:
    net.eval()
    with torch.no_grad():
        return float((net(images).argmax(1) == answers).float().mean())
