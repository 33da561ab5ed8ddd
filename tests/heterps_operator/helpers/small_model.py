"""The smallest complete model: two tables, numbers, two linear layers. Tests copy it to their job's folder."""

from __future__ import annotations

import time
from pathlib import Path

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
    """Overflows float32 for inputs beyond 1e19. Slow until the job has a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Unsaved(18, 16)

    def forward(self, carrier: Tensor, origin: Tensor, dense: Tensor) -> Tensor:
        return super().forward(carrier, origin, dense * dense)


class Branching(Small):
    def forward(self, carrier: Tensor, origin: Tensor, dense: Tensor) -> Tensor:
        if dense.sum() > 0:
            return super().forward(carrier, origin, dense)
        return dense[:, 0]


class Repeated(nn.Module):
    """Much computation with few parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(18, 256), nn.Linear(256, 256), nn.Linear(256, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(6):
            x = torch.relu(self.again(x))
        out: Tensor = self.last(x)
        return out


class Deep(Small):
    """As slow as its processor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: nn.Module = Repeated()  # type: ignore[assignment]


class Sleeping(nn.Linear):
    """Takes a tenth of a millisecond per sample, on any machine."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(len(x) * 1e-4)
        return super().forward(x)


class Unsaved(nn.Linear):
    """Takes 0.05 s as long as the job beside this module has no checkpoint, so that it has one after a few steps."""

    def forward(self, x: Tensor) -> Tensor:
        saved = any(Path(__file__).parent.glob(".heterps/*/checkpoints/*/manifest.json"))
        # A length cannot be traced, so the layer stays intact.
        time.sleep(0.05 if len(x) and not saved else 0.0)
        return super().forward(x)


class Held(nn.Linear):
    """Takes `least_seconds` per step, and more the longer a file named `held` exists beside this module.

    A step takes a fortieth of the file's age, from half a second on: after ten minutes fewer than half of four hundred
    steps are done. The first ones of a process take no longer than without the file: tests wait for some steps first.
    """

    UNHELD_CALLS = 6

    def __init__(self, inputs: int, outputs: int, file: str = "", least_seconds: float = 0.02) -> None:
        super().__init__(inputs, outputs)
        self.file = Path(file) if file else Path(__file__).with_name("held")
        self.least_seconds = least_seconds
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        # A length cannot be traced, so the layer stays intact, and is called in every step.
        self.calls += len(x) > 0
        time.sleep(self._held_seconds() if self.calls > self.UNHELD_CALLS else self.least_seconds)
        return super().forward(x)

    def _held_seconds(self) -> float:
        try:
            # Not the time of day, which a fault may step (tests/chaos). This clock differs from it by leap seconds.
            age = time.clock_gettime(time.CLOCK_TAI) - self.file.stat().st_mtime
        except FileNotFoundError:
            return self.least_seconds
        return max(0.5, age / 40)


class Counting(nn.Module):
    """A model in which every parameter counts the samples applied to it: see `tests/counting.py`.

    The gradient of a sample's loss is the same whatever the parameters are: -1 for the sample's own row and for the
    biases, minus the sample's numbers for the weights. All parameters start at 0 (the rows by `embeddingInit`).
    """

    def __init__(self, samples: int, numbers: int, held: str, least_seconds: float) -> None:
        super().__init__()
        self.tables = nn.Embedding(samples, 1)
        self.linear = Held(numbers, 1, held, least_seconds)
        self.output = nn.Linear(numbers, 1)
        for layer in (self.linear, self.output):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, sample: Tensor, dense: Tensor) -> Tensor:
        counts: Tensor = self.tables(sample) + self.linear(dense) + self.output(dense)
        return counts.squeeze(-1)


def count(counts: Tensor, label: Tensor) -> Tensor:
    """The loss of `Counting`, (B,): each step along its negative gradient adds one sample."""
    return -counts


class Paced(Small):
    def __init__(self) -> None:
        super().__init__()
        self.linear = Sleeping(18, 16)


def build() -> Small:
    return Small()


def build_deep() -> Deep:
    return Deep()


def build_paced() -> Paced:
    return Paced()


def build_held(least_seconds: float = 0.02) -> Small:
    model = Small()
    model.linear = Held(18, 16, least_seconds=least_seconds)
    return model


def build_counting(samples: int, numbers: int, held: str = "", least_seconds: float = 0.02) -> Counting:
    return Counting(samples, numbers, held, least_seconds)


def build_squaring() -> Squaring:
    return Squaring()


def build_branching() -> Branching:
    return Branching()
