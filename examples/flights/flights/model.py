"""Will a flight arrive more than 15 minutes late? Embeddings of what is known by name, numbers, and a small MLP.

This is plain PyTorch and imports nothing of HeterPS. `forward` takes the batch by feature name: every sparse feature
as row numbers, int64 `(B,)`, in `[0, num_embeddings)` of its table, and all numbers together as `dense`, float32
`(B, 19)`. Each child of `Flights` is a layer that a plan can place: the lookups suit cheap CPU cores, the linear layers
an accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Flights", "build"]

NUM_DENSE = 19  # the columns that job.yaml lists under spec.data.dense


class FlightTables(nn.Module):
    """Who flies, under which number, with which aircraft."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.carrier = nn.Embedding(1_000, dim)
        self.flight = nn.Embedding(10_000, dim)
        self.tailnum = nn.Embedding(100_000, dim)

    def forward(self, carrier: Tensor, flight: Tensor, tailnum: Tensor) -> Tensor:
        """Row numbers (B,) each -> (B, 3 dim)."""
        return torch.cat([self.carrier(carrier), self.flight(flight), self.tailnum(tailnum)], dim=1)


class RouteTables(nn.Module):
    """From where to where."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.origin = nn.Embedding(1_000, dim)
        self.dest = nn.Embedding(10_000, dim)

    def forward(self, origin: Tensor, dest: Tensor) -> Tensor:
        """Row numbers (B,) each -> (B, 2 dim)."""
        return torch.cat([self.origin(origin), self.dest(dest)], dim=1)


class PlaneTables(nn.Module):
    """The aircraft's type."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.model = nn.Embedding(10_000, dim)
        self.manufacturer = nn.Embedding(1_000, dim)

    def forward(self, model: Tensor, manufacturer: Tensor) -> Tensor:
        """Row numbers (B,) each -> (B, 2 dim)."""
        return torch.cat([self.model(model), self.manufacturer(manufacturer)], dim=1)


class TimeTables(nn.Module):
    """When, by the timetable. These are integers and small, so each has its own row."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.month = nn.Embedding(13, dim)
        self.weekday = nn.Embedding(7, dim)
        self.hour = nn.Embedding(24, dim)

    def forward(self, month: Tensor, weekday: Tensor, hour: Tensor) -> Tensor:
        """Row numbers (B,) each -> (B, 3 dim)."""
        return torch.cat([self.month(month), self.weekday(weekday), self.hour(hour)], dim=1)


class Concat(nn.Module):
    """Joins everything into the MLP's input."""

    def forward(self, flight: Tensor, route: Tensor, plane: Tensor, time: Tensor, dense: Tensor) -> Tensor:
        """(B, n) each -> (B, sum of n)."""
        return torch.cat([flight, route, plane, time, dense], dim=1)


class Flights(nn.Module):
    """Ten embeddings and 19 numbers -> MLP -> one logit per flight."""

    def __init__(self, embedding_dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        first, second = hidden
        self.flight_tables = FlightTables(embedding_dim)
        self.route_tables = RouteTables(embedding_dim)
        self.plane_tables = PlaneTables(embedding_dim)
        self.time_tables = TimeTables(embedding_dim)
        self.concat = Concat()
        self.linear1 = nn.Linear(10 * embedding_dim + NUM_DENSE, first)
        self.relu1 = nn.ReLU()
        self.linear2 = nn.Linear(first, second)
        self.relu2 = nn.ReLU()
        self.output = nn.Linear(second, 1)

    def forward(
        self,
        carrier: Tensor,
        flight: Tensor,
        tailnum: Tensor,
        origin: Tensor,
        dest: Tensor,
        model: Tensor,
        manufacturer: Tensor,
        month: Tensor,
        weekday: Tensor,
        hour: Tensor,
        dense: Tensor,
    ) -> Tensor:
        """Row numbers (B,) each and numbers (B, 19) -> logits (B,)."""
        x = self.concat(
            self.flight_tables(carrier, flight, tailnum),
            self.route_tables(origin, dest),
            self.plane_tables(model, manufacturer),
            self.time_tables(month, weekday, hour),
            dense,
        )
        x = self.relu1(self.linear1(x))
        x = self.relu2(self.linear2(x))
        logits: Tensor = self.output(x)  # (B, 1)
        return logits.squeeze(-1)


def build(embedding_dim: int = 16, hidden: Sequence[int] = (256, 128)) -> Flights:
    """The model, as `spec.model.entrypoint: flights.model:build` names it.

    Args:
        embedding_dim: width of every embedding.
        hidden: widths of the two hidden layers.
    """
    return Flights(embedding_dim, hidden)
