"""The division of dense parameters among servers."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.partition.pieces import SMALLEST_PIECE, Piece, divide

SIZES = st.one_of(st.integers(0, 3 * SMALLEST_PIECE), st.integers(0, 200 * SMALLEST_PIECE))
PARAMETERS = st.lists(SIZES, min_size=1, max_size=30).map(lambda sizes: {f"p{i}": size for i, size in enumerate(sizes)})


def loads(pieces: dict[str, tuple[Piece, ...]], servers: int) -> list[int]:
    """Elements of each server."""
    total = [0] * servers
    for parts in pieces.values():
        for part in parts:
            total[part.server] += part.stop - part.start
    return total


@given(PARAMETERS, st.integers(1, 9))
def test_every_element_lies_on_one_server_and_small_parameters_stay_whole(sizes: dict[str, int], servers: int) -> None:
    pieces = divide(sizes, servers)
    assert pieces.keys() == sizes.keys()
    for name, parts in pieces.items():
        bounds = [parts[0].start, *(part.stop for part in parts)]
        assert [part.start for part in parts] == bounds[:-1]
        assert (bounds[0], bounds[-1]) == (0, sizes[name])
        assert len({part.server for part in parts}) == len(parts)
        assert all(0 <= part.server < servers for part in parts)
        assert len(parts) == 1 or min(part.stop - part.start for part in parts) >= SMALLEST_PIECE


@given(PARAMETERS, st.integers(1, 9))
def test_servers_have_equally_many_elements(sizes: dict[str, int], servers: int) -> None:
    load = loads(divide(sizes, servers), servers)
    mean = sum(load) / servers
    assert max(load) - min(load) <= 2 * SMALLEST_PIECE + len(sizes)
    if mean >= 50 * SMALLEST_PIECE:
        assert max(load) - min(load) <= 0.05 * mean


def test_one_large_matrix_loads_all_servers() -> None:
    sizes = {"wide": 1024 * 1024, "narrow": 1024 * 20, "bias": 1024, "head": 20}
    assert loads(divide(sizes, 4, whole=["wide"]), 4) == [1024 * 1024, 1024 * 20, 1024, 20], "as if nothing was cut"
    load = loads(divide(sizes, 4), 4)
    assert max(load) / min(load) < 1.08  # narrow stays whole
    assert divide(sizes, 4)["wide"] == tuple(Piece(i, i << 18, (i + 1) << 18) for i in range(4))


@given(PARAMETERS, st.integers(1, 9), st.randoms())
def test_the_division_does_not_depend_on_the_order_of_names(sizes: dict[str, int], servers: int, draw: Random) -> None:
    names = list(sizes)
    draw.shuffle(names)
    assert divide({name: sizes[name] for name in names}, servers) == divide(sizes, servers)


@given(PARAMETERS, st.integers(1, 9))
def test_what_must_stay_whole_is_not_cut(sizes: dict[str, int], servers: int) -> None:
    pieces = divide(sizes, servers, whole=["p0"])
    assert [(piece.start, piece.stop) for piece in pieces["p0"]] == [(0, sizes["p0"])]
