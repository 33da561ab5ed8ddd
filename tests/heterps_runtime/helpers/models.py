"""Ordinary PyTorch modules that tests train and cut. None of them knows HeterPS.

`EXAMPLES` names each with a function that draws a batch: `EXAMPLES["flights"].build()`, `.batch(generator, n)`.
Module-level `build_*` functions serve as entry points (`tests.heterps_runtime.helpers.models:build_flights`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Flights(nn.Module):
    """Many embeddings, numbers, and a multi-layer perceptron."""

    ROWS: dict[str, int] = {"carrier": 20, "origin": 5, "dest": 110, "hour": 24, "weekday": 7, "tail": 997}  # noqa: RUF012

    def __init__(self, dim: int = 4, hidden: tuple[int, ...] = (16, 8), num_dense: int = 3) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(rows, dim) for name, rows in self.ROWS.items()})
        sizes = [len(self.ROWS) * dim + num_dense, *hidden]
        steps: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            steps += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*steps)
        self.head = nn.Linear(sizes[-1], 1)

    def forward(
        self,
        carrier: Tensor,
        origin: Tensor,
        dest: Tensor,
        hour: Tensor,
        weekday: Tensor,
        tail: Tensor,
        dense: Tensor,
    ) -> Any:
        columns = {
            "carrier": carrier,
            "origin": origin,
            "dest": dest,
            "hour": hour,
            "weekday": weekday,
            "tail": tail,
        }
        looked_up = [embedding(columns[name]) for name, embedding in self.embeddings.items()]
        return self.head(self.mlp(torch.cat([*looked_up, dense], dim=1))).squeeze(1)


class ShortFlights(Flights):
    """Flights, in bfloat16 by its own autocast."""

    def forward(
        self,
        carrier: Tensor,
        origin: Tensor,
        dest: Tensor,
        hour: Tensor,
        weekday: Tensor,
        tail: Tensor,
        dense: Tensor,
    ) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(carrier, origin, dest, hour, weekday, tail, dense)


class TwoTower(nn.Module):
    """Two towers; items are looked up in both, from one shared table, and each tower has a multi-valued feature."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.users = nn.Embedding(50, dim)
        self.items = nn.Embedding(70, dim, padding_idx=0)
        self.history = nn.EmbeddingBag(70, dim, mode="mean", padding_idx=0)
        self.history.weight = self.items.weight
        self.tags = nn.EmbeddingBag(30, dim, mode="sum")
        self.user_tower = nn.Sequential(nn.Linear(2 * dim, 8), nn.Tanh(), nn.Linear(8, dim))
        self.item_tower = nn.Sequential(nn.Linear(2 * dim, 8), nn.Tanh(), nn.Linear(8, dim))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(
        self, user: Tensor, item: Tensor, history: Tensor, history_offsets: Tensor, tags: Tensor, tags_offsets: Tensor
    ) -> Any:
        who = self.user_tower(torch.cat([self.users(user), self.history(history, history_offsets)], dim=1))
        what = self.item_tower(torch.cat([self.items(item), self.tags(tags, tags_offsets)], dim=1))
        return (who * what).sum(dim=1) * self.scale


class Block(nn.Module):
    """A residual block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Any:
        out = self.second(self.act(self.first(x)))
        out += x
        return self.act(out)


class Residual(nn.Module):
    """Fields stacked into one table with offsets, residual blocks, and a skip over the whole model."""

    starts: Tensor

    def __init__(self, dim: int = 4, size: int = 12) -> None:
        super().__init__()
        self.fields = nn.Embedding(60, dim)
        self.register_buffer("starts", torch.tensor([0, 20, 40]))
        self.enter = nn.Linear(3 * dim, size)
        self.blocks = nn.Sequential(Block(size), Block(size))
        self.norm = nn.LayerNorm(size)
        self.leave = nn.Linear(size, 2)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Any:
        ids = torch.stack([a, b, c], dim=1) + self.starts
        x = self.enter(self.fields(ids).flatten(1))
        y = self.blocks(x)
        return self.leave(self.norm(x + y))


class Logistic(nn.Module):
    """Logistic regression on three fields and three numbers: a convex loss without kinks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Embedding(20, 1), nn.Embedding(20, 1), nn.Embedding(20, 1)
        self.linear = nn.Linear(3, 1)

    def forward(self, a: Tensor, b: Tensor, c: Tensor, dense: Tensor) -> Any:
        return (self.a(a) + self.b(b) + self.c(c) + self.linear(dense)).squeeze(1)


class AwkwardlyNamed(Logistic):
    """Its parameters have names that state of optimizers has elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.ones(1))
        self.exp_avg = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, a: Tensor, b: Tensor, c: Tensor, dense: Tensor) -> Any:
        return super().forward(a, b, c, dense * self.exp_avg) * self.step


class Picture(nn.Module):
    """Convolutions with a residual sum, pooling to one pixel, and no table; with batch normalisation if asked for."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        bias = not normed  # before a norm its gradient is 0 but for rounding, which Adam would amplify
        self.enter = nn.Conv2d(2, 4, 3, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(4) if normed else nn.Identity()
        self.inner = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=bias), nn.BatchNorm2d(4) if normed else nn.Identity()
        )
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.leave = nn.Linear(4, 3, bias=bias)
        self.last_norm = nn.BatchNorm1d(3, affine=False) if normed else nn.Identity()

    def forward(self, image: Tensor) -> Any:
        x = self.relu(self.norm(self.enter(image)))
        x = self.relu(self.inner(x) + x)
        return self.last_norm(self.leave(torch.flatten(self.pool(x), 1)))


class Bags(nn.Module):
    """Every kind of bag: 2-D, last offset included, weighted, max, and a functional call of a module's weight."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.square = nn.EmbeddingBag(40, dim, mode="sum", padding_idx=-1)
        self.closed = nn.EmbeddingBag(40, dim, mode="max", include_last_offset=True)
        self.weighted = nn.EmbeddingBag(40, dim, mode="sum")
        self.plain = nn.Embedding(40, dim, padding_idx=3)
        self.head = nn.Linear(5 * dim, 1)

    def forward(
        self,
        wide: Tensor,
        listed: Tensor,
        listed_offsets: Tensor,
        bought: Tensor,
        bought_offsets: Tensor,
        price: Tensor,
        one: Tensor,
    ) -> Any:
        square = self.square(wide)
        closed = self.closed(listed, torch.cat([listed_offsets, listed_offsets.new_full((1,), listed.shape[0])]))
        weighted = self.weighted(bought, bought_offsets, per_sample_weights=price.exp())
        once = self.plain(one.view(-1, 1) % 40).squeeze(1)
        again = F.embedding(one + 5, self.plain.weight, padding_idx=3)
        return self.head(torch.cat([square, closed, weighted, once, again], dim=1)).squeeze(-1)


class Awkward(nn.Module):
    """Sizes, tuples, dictionaries, buffers, detached values and directly used parameters across layers."""

    mask: Tensor

    class Untraceable(nn.Module):
        """Depends on values, holds no table: it runs untraced. Takes a dictionary, returns a tuple."""

        def __init__(self, size: int) -> None:
            super().__init__()
            self.linear = nn.Linear(size, size)

        def forward(self, parts: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            x = parts["x"]
            if x.sum() > 1e9:
                return x, x
            return self.linear(x), parts["y"] * 2

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(30, dim)
        self.other = nn.Embedding(30, dim)
        self.bias = nn.Parameter(torch.randn(dim))
        self.register_buffer("mask", torch.tensor([1.0, 0.5, 0.25, 1.0]))
        self.untraceable = self.Untraceable(dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.shared = nn.Linear(dim, dim)
        self.act = nn.Tanh()
        self.gate = nn.Linear(dim, dim)
        self.head = nn.Linear(3 * dim, 1)

    def forward(self, a: Tensor, b: Tensor, numbers: Tensor, absent: Tensor | None = None) -> Any:
        size = a.shape[0]
        left, right = self.table(a), self.other(torch.remainder(b, 30))
        first, second = self.untraceable({"x": left + self.bias, "y": right})
        states, _ = self.rnn(torch.stack([first, second], dim=1))
        halves = states.chunk(2, dim=1)
        x = self.act(self.shared(halves[0].reshape(size, -1)))
        y = self.act(self.shared(halves[1].reshape(size, -1)))
        with torch.no_grad():
            level = self.gate(numbers).sigmoid()
        z = self.gate(x * level.detach()) + y * self.mask.to(x.dtype)
        if absent is not None:
            z = z + absent
        return self.head(torch.cat([x, z, numbers.expand(size, -1)], dim=1)).view(size)


@dataclass(frozen=True)
class Example:
    """A module and how to draw a batch for it."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]


def _ids(generator: torch.Generator, rows: int, *shape: int) -> Tensor:
    return torch.randint(rows, shape, generator=generator)


def _bags(generator: torch.Generator, rows: int, num_bags: int) -> tuple[Tensor, Tensor]:
    """Ids (nnz,) and offsets (num_bags,); some bags are empty."""
    lengths = _ids(generator, 4, num_bags)
    offsets = torch.cumsum(lengths, 0) - lengths
    return _ids(generator, rows, int(lengths.sum())), offsets


def _numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.get_default_dtype())


def flights_batch(generator: torch.Generator, n: int) -> Batch:
    columns = {name: _ids(generator, rows, n) for name, rows in Flights.ROWS.items()}
    return {**columns, "dense": _numbers(generator, n, 3)}


def two_tower_batch(generator: torch.Generator, n: int) -> Batch:
    history, history_offsets = _bags(generator, 70, n)
    tags, tags_offsets = _bags(generator, 30, n)
    return {
        "user": _ids(generator, 50, n),
        "item": _ids(generator, 70, n),
        "history": history,
        "history_offsets": history_offsets,
        "tags": tags,
        "tags_offsets": tags_offsets,
    }


def residual_batch(generator: torch.Generator, n: int) -> Batch:
    return {name: _ids(generator, 20, n) for name in "abc"}


def bags_batch(generator: torch.Generator, n: int) -> Batch:
    listed, listed_offsets = _bags(generator, 40, n)
    bought, bought_offsets = _bags(generator, 40, n)
    return {
        "wide": torch.where(_ids(generator, 3, n, 5) == 0, 39, _ids(generator, 40, n, 5)),
        "listed": listed,
        "listed_offsets": listed_offsets,
        "bought": bought,
        "bought_offsets": bought_offsets,
        "price": _numbers(generator, bought.shape[0]),
        "one": _ids(generator, 35, n),
    }


def awkward_batch(generator: torch.Generator, n: int) -> Batch:
    return {"a": _ids(generator, 30, n), "b": _ids(generator, 30, n) + 60, "numbers": _numbers(generator, n, 4)}


EXAMPLES = {
    "flights": Example(Flights, flights_batch),
    "two_tower": Example(TwoTower, two_tower_batch),
    "residual": Example(Residual, residual_batch),
    "bags": Example(Bags, bags_batch),
    "awkward": Example(Awkward, awkward_batch),
}


def build_flights(dim: int = 4, hidden: list[int] | None = None) -> nn.Module:
    return Flights(dim, tuple(hidden or (16, 8)))


def build_short_flights() -> nn.Module:
    return ShortFlights()


def build_two_tower(dim: int = 4) -> nn.Module:
    return TwoTower(dim)


def build_residual(dim: int = 4) -> nn.Module:
    return Residual(dim)


def build_picture() -> nn.Module:
    return Picture(normed=False)


def build_normed_picture() -> nn.Module:
    return Picture(normed=True)


def build_awkwardly_named() -> nn.Module:
    return AwkwardlyNamed()


def build_logistic() -> nn.Module:
    return Logistic()
