"""Any division of a batch covers every sample once, in an order that all processes derive alike."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.partition.allocation import Allocation, even_split, micro_batches, scale_batches


@st.composite
def allocations(draw: st.DrawFn) -> Allocation:
    total = draw(st.integers(1, 500))
    stages = []
    for workers in draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)):
        cuts = sorted(draw(st.lists(st.integers(0, total), min_size=workers - 1, max_size=workers - 1)))
        stages.append(tuple(b - a for a, b in itertools.pairwise([0, *cuts, total])))
    return Allocation(0, tuple(stages))


@given(allocations(), st.integers(1, 8), st.data())
@settings(deadline=None, max_examples=300)
def test_micro_batches_cover_every_sample_once_on_one_path_each(
    allocation: Allocation, per_worker: int, data: st.DataObject
) -> None:
    full = sum(allocation.batches[0])
    size = data.draw(st.integers(1, full))
    pieces = micro_batches(allocation, size, per_worker)
    assert [p.index for p in pieces] == list(range(len(pieces)))
    ordered = sorted(pieces, key=lambda p: p.start)
    assert [p.start for p in ordered] == [0, *(p.stop for p in ordered[:-1])]
    assert ordered[-1].stop == size
    assert all(p.size > 0 for p in pieces)
    for stage, batches in enumerate(allocation.batches):
        shares = scale_batches(batches, size)
        ends = list(itertools.accumulate(shares))
        assert all(0 <= p.path[stage] < len(batches) for p in pieces)
        for worker, (share, end) in enumerate(zip(shares, ends, strict=True)):
            mine = [p for p in pieces if p.path[stage] == worker]
            assert sum(p.size for p in mine) == share
            assert all(end - share <= p.start and p.stop <= end for p in mine)


@given(allocations(), st.integers(1, 8))
@settings(deadline=None)
def test_pieces_of_a_pipeline_are_bounded_and_those_of_one_stage_are_whole_shares(
    allocation: Allocation, per_worker: int
) -> None:
    size = sum(allocation.batches[0])
    pieces = micro_batches(allocation, size, per_worker)
    if len(allocation.batches) == 1:
        assert [p.size for p in pieces] == [b for b in allocation.batches[0] if b]
    else:
        widest = max(len(stage) for stage in allocation.batches)
        assert max(p.size for p in pieces) <= -(-size // (per_worker * widest))


@given(allocations(), st.integers(1, 8))
@settings(deadline=None)
def test_every_path_gets_its_first_piece_before_any_gets_its_second(allocation: Allocation, per_worker: int) -> None:
    pieces = micro_batches(allocation, sum(allocation.batches[0]), per_worker)
    seen: dict[tuple[int, ...], int] = {}
    numbers = []
    for piece in pieces:
        numbers.append(seen.setdefault(piece.path, 0))
        seen[piece.path] += 1
    assert numbers == sorted(numbers)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any), st.integers(0, 5000))
def test_scaled_shares_add_up_and_stay_in_proportion(batches: list[int], total: int) -> None:
    scaled = scale_batches(batches, total)
    assert sum(scaled) == total
    whole = sum(batches)
    assert all(abs(s - b * total / whole) < 1 for s, b in zip(scaled, batches, strict=True))
    assert all(s == 0 for s, b in zip(scaled, batches, strict=True) if b == 0)


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_even_splits_differ_by_at_most_one(total: int, parts: int) -> None:
    split = even_split(total, parts)
    assert sum(split) == total
    assert max(split) - min(split) <= 1


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        (((3, 5), (4, 3)), "disagree on the global batch"),
        (((9, -1),), "must be >= 0"),
        (((), ()), "must be >= 0"),
    ],
)
def test_allocations_that_do_not_tile_a_batch_are_refused(batches: tuple[tuple[int, ...], ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Allocation(0, batches)
