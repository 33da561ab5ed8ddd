"""The all-reduce of a replica's gradients in buckets: each as early as backward allows, all in one order."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch

from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.worker.exchange import replica as replicas
from heterps_runtime.worker.exchange.buckets import Reduction
from heterps_runtime.worker.exchange.parameters import Replication
from heterps_runtime.worker.exchange.replica import Leaves, Replica

CPU = torch.device("cpu")
OPTIMIZER = DenseOptimizer.from_manifest({"name": "sgd", "learningRate": "0.1", "momentum": "0", "weightDecay": "0"})


class RecordingGroup:
    """A group of one that notes which gradients existed when a bucket came."""

    def __init__(self) -> None:
        self.leaves: Leaves = {}
        self.turns: list[int] = []
        self.missing: list[set[str]] = []  # parameters without a gradient, by bucket

    def all_reduce(self, turn: int, tensor: torch.Tensor, done: Callable[[Exception | None], None]) -> None:
        self.turns.append(turn)
        self.missing.append({name for name, leaf in self.leaves.items() if leaf.grad is None})
        done(None)


def made(shapes: Mapping[str, tuple[int, ...]], statistics: int = 0) -> Replica:
    generator = torch.Generator().manual_seed(1)
    initial = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return Replica(initial, {"mean": torch.zeros(statistics)} if statistics else {}, OPTIMIZER, CPU)


def begun(replica: Replica, step: int = 0, **settings: Any) -> tuple[Reduction, RecordingGroup, list[Exception | None]]:
    group, told = RecordingGroup(), list[Exception | None]()
    given = {"changes": {}, "unscale": None, **settings}
    replication = Replication(replica, group)  # type: ignore[arg-type]
    return Reduction(replication, step, done=told.append, **given), group, told


THREE = {"first": (4, 4), "second": (4, 4), "third": (4, 4)}  # 128 bytes each


def loss_of(leaves: Leaves) -> torch.Tensor:
    x = torch.ones(2, 4, dtype=torch.float64)
    for leaf in leaves.values():
        x = torch.tanh(x @ leaf)
    return x.sum()


def test_a_bucket_is_sent_while_backward_still_computes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BUCKET_BYTES", 100)
    replica = made(THREE)
    reduction, group, told = begun(replica, step=5)
    leaves = group.leaves = replica.acquire(private=True)
    reduction.follow(leaves)
    loss_of(leaves).backward()  # type: ignore[no-untyped-call]
    assert group.turns == [15, 16, 17]
    assert group.missing == [{"first", "second"}, {"first"}, set()]
    assert told == [None], "once, after the last bucket"
    expected = torch.cat([leaf.grad.reshape(-1) for leaf in leaves.values() if leaf.grad is not None])
    assert torch.equal(reduction.flat, expected)
    reduction.finish({})
    assert len(group.turns) == 3


def test_gradients_are_freed_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a garbage collection, which does not see the hooks of tensors."""
    monkeypatch.setattr(replicas, "BUCKET_BYTES", 100)
    replica = made(THREE)
    reduction, _, _ = begun(replica)
    leaves = replica.acquire(private=True)
    reduction.done = partial(lambda step, error: None, leaves)  # as that of a step, which owns both
    reduction.follow(leaves)
    loss_of(leaves).backward()  # type: ignore[no-untyped-call]
    reduction.finish({})
    watched: list[weakref.ref[Any]] = [
        weakref.ref(reduction),
        weakref.ref(reduction.flat),
        *map(weakref.ref, leaves.values()),
    ]
    gc.collect()
    gc.disable()
    try:
        del reduction, leaves
        assert [ref() for ref in watched] == [None] * 5
    finally:
        gc.enable()


def test_what_backward_does_not_reach_is_zero_and_comes_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BUCKET_BYTES", 100)
    replica = made(THREE)
    reduction, group, told = begun(replica)
    leaves = replica.acquire(private=True)
    reduction.flat.fill_(torch.nan)  # memory that was used before
    reduction.follow(leaves)
    loss_of({name: leaf for name, leaf in leaves.items() if name != "second"}).backward()  # type: ignore[no-untyped-call]
    assert group.turns == [0], "the bucket of the second parameter holds the first one's up"
    reduction.finish({name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None})
    assert group.turns == [0, 1, 2]
    assert told == [None]
    assert not replica.part(reduction.flat, "second").any()
    assert torch.equal(replica.part(reduction.flat, "first"), leaves["first"].grad)  # type: ignore[arg-type]


def test_changes_of_statistics_and_the_loss_scale_are_those_of_the_step() -> None:
    replica = made(THREE, statistics=2)
    gradient = torch.full((4, 4), 6.0, dtype=torch.float64)
    reduction, _, _ = begun(replica, changes={"mean": torch.tensor([1.0, 2.0])}, unscale=0.5)
    reduction.finish({"third": gradient})
    expected = [0.0] * 32 + [3.0] * 16 + [1.0, 2.0]
    assert reduction.flat.tolist() == expected
    assert reduction.finite
    reduction, _, _ = begun(replica)
    reduction.finish({"first": gradient / 0})
    assert not reduction.finite


@pytest.mark.parametrize("seed", range(20))
def test_buckets_tile_the_gradient_from_its_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(replicas, "BUCKET_BYTES", draw.choice([8, 64, 400, 10**6]))
    shapes = {f"p{i}": (draw.randint(0, 12), draw.randint(1, 4)) for i in range(draw.randint(0, 9))}
    replica = made(shapes, draw.choice([0, 3]))
    buckets = replica.buckets
    assert buckets[0].end == replica.empty_gradient().numel()
    assert buckets[-1].begin == 0
    assert all(later.end == earlier.begin for earlier, later in itertools.pairwise(buckets))
    assert sorted(name for bucket in buckets for name in bucket.names) == sorted(shapes)
    for bucket in buckets:
        for name in bucket.names:
            begin = replica.part(replica.empty_gradient(), name).storage_offset()
            assert bucket.begin <= begin <= bucket.end
    least = replicas.BUCKET_BYTES // 8
    assert all(bucket.end - bucket.begin >= least for bucket in buckets[:-1])
