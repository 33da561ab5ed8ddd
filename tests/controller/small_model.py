"""The smallest model that has everything: two tables, numbers, two linear layers. Tests copy it beside their job."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.carrier = nn.Embedding(50, 8)
        self.origin = nn.Embedding(200, 8)

    def forward(self, carrier: Tensor, origin: Tensor) -> Tensor:
        return torch.cat([self.carrier(carrier), self.origin(origin)], dim=1)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.linear = nn.Linear(18, 16)
        self.output = nn.Linear(16, 1)

    def forward(self, carrier: Tensor, origin: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([self.tables(carrier, origin), dense], dim=1)
        logits: Tensor = self.output(torch.relu(self.linear(x)))
        return logits.squeeze(-1)


class Squaring(Small):
    """Beyond float32 as soon as a number is beyond 1e19."""

    def forward(self, carrier: Tensor, origin: Tensor, dense: Tensor) -> Tensor:
        return super().forward(carrier, origin, dense * dense)


class Branching(Small):
    def forward(self, carrier: Tensor, origin: Tensor, dense: Tensor) -> Tensor:
        if dense.sum() > 0:
            return super().forward(carrier, origin, dense)
        return dense[:, 0]


def build() -> Small:
    return Small()


def build_squaring() -> Squaring:
    return Squaring()


def build_number() -> int:
    return 17


def build_branching() -> Branching:
    return Branching()
