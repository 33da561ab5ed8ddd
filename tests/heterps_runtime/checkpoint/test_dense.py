"""Pieces of dense parameters in files, read as whole parameters and as other pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    DamagedError,
    FileEntry,
    Origin,
    StateFile,
    Storage,
    dense_arrays,
    new_folder,
    read_dense,
    read_pieces,
)
from heterps_runtime.checkpoint.errors import ShapeError
from heterps_runtime.checkpoint.format import TensorFile, write_tensors
from heterps_runtime.partition import pieces as division
from heterps_runtime.partition.pieces import Place, divide
from tests.heterps_runtime.helpers.checkpoint_samples import make_manifest

Values = dict[str, npt.NDArray[Any]]
SHAPES: dict[str, tuple[int, ...]] = {
    "wide.weight": (40, 25),
    "cube": (3, 4, 5),
    "bias": (7,),
    "scale": (),
    "none": (0, 3),
}
ORIGIN = Origin(20, 1)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "SMALLEST_PIECE", 8)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "checkpoints")


def values() -> Values:
    """All parameters, with state of Adam."""
    rng = np.random.default_rng(4)
    return {f"{n}{s}": rng.normal(size=shape) for n, shape in SHAPES.items() for s in ("", "::exp_avg", "::exp_avg_sq")}


def shares(servers: int) -> list[dict[str, Place]]:
    """The places of the pieces of each server."""
    found: list[dict[str, Place]] = [{} for _ in range(servers)]
    for name, parts in divide({n: int(np.prod(shape)) for n, shape in SHAPES.items()}, servers).items():
        for part in parts:
            found[part.server][name] = Place(part.start, part.stop, SHAPES[name])
    return found


def part_of(whole: Values, places: Mapping[str, Place]) -> Values:
    """What a server with pieces at some places holds."""
    found = {}
    for name, value in whole.items():
        place = places.get(name.partition("::")[0])
        if place is not None:
            found[name] = value.reshape(-1)[place.start : place.stop]
    return found


def write(storage: Storage, whole: Values, servers: int) -> CheckpointManifest:
    """A checkpoint of some servers, as `ps.shard` writes it."""
    folder, files = new_folder(20, 1), []
    for index, places in enumerate(shares(servers)):
        held = part_of(whole, places)
        arrays = {n: v.reshape(p.shape) if (p := places[n.partition("::")[0]]).is_whole else v for n, v in held.items()}
        cut = {name: place for name, place in places.items() if not place.is_whole}
        file = StateFile(f"dense-ps-{index}.safetensors", dense_arrays(arrays), ORIGIN, "dense", index, cut)
        files.append(file.write(storage, folder))
    return make_manifest(20, folder, tuple(files))


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].shape == v.shape and np.array_equal(found[n], v) for n, v in expected.items()
    )


@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_any_number_of_servers_reads_what_another_number_wrote(before: int, after: int, storage: Storage) -> None:
    whole = values()
    manifest = write(storage, whole, before)
    assert same(read_dense(storage, manifest), whole)
    for places in shares(after):
        assert same(read_pieces(storage, manifest, places), part_of(whole, places))
    if before == 5:
        assert {len(shares(5)[i].keys() & {"wide.weight"}) for i in range(5)} == {1}, "it is cut"


def test_only_the_files_that_have_a_piece_are_read(storage: Storage) -> None:
    """With the same number of servers that is its own, and a damaged file stops no other server."""
    whole = values()
    manifest = write(storage, whole, 3)
    paths = [manifest.path_of(entry) for entry in manifest.files]
    broken = bytearray(storage.read(paths[1]))
    broken[-1] ^= 1
    storage.write_atomic(paths[1], bytes(broken))
    for index, places in enumerate(shares(3)):
        verified: set[str] = set()
        if index == 1:
            with pytest.raises(DamagedError, match=r"dense-ps-1\.safetensors was changed") as caught:
                read_pieces(storage, manifest, places, verified=verified)
            assert caught.value.file == paths[1]
        else:
            assert same(read_pieces(storage, manifest, places, verified=verified), part_of(whole, places))
            assert verified == {paths[index]}


def test_each_file_is_verified_once(storage: Storage) -> None:
    whole = values()
    manifest = write(storage, whole, 2)
    verified = {manifest.path_of(entry) for entry in manifest.files}
    broken = bytearray(storage.read(manifest.path_of(manifest.files[0])))
    broken[-1] ^= 1
    storage.write_atomic(manifest.path_of(manifest.files[0]), bytes(broken))
    read_pieces(storage, manifest, shares(1)[0], verified=verified)  # a stage after another


def test_what_is_in_one_piece_is_written_as_before_there_were_pieces(storage: Storage) -> None:
    whole = values()
    [entry] = write(storage, whole, 1).files
    expected = write_tensors(
        storage, "other", "dense-ps-0.safetensors", dense_arrays(whole), origin=ORIGIN, role="dense"
    )
    assert entry == expected


def changed_places(storage: Storage, manifest: CheckpointManifest, index: int, change: Any) -> CheckpointManifest:
    """The checkpoint with other places in one of its files, and the right checksum."""
    entry = manifest.files[index]
    with TensorFile(storage, manifest.path_of(entry)) as file:
        arrays = {name: file.read(name).copy() for name in file.specs}
        places = change(json.loads(file.metadata["pieces"]))
    text = places if isinstance(places, str) else json.dumps(places)
    written = write_tensors(
        storage, manifest.folder, entry.name, arrays, origin=ORIGIN, role="dense", index=index, version=3,
        metadata={"pieces": text},
    )  # fmt: skip
    files: list[FileEntry] = list(manifest.files)
    files[index] = written
    return replace(manifest, files=tuple(files))


def at(start: int) -> Any:
    return lambda places: places | {"wide.weight": places["wide.weight"] | {"start": start}}


def test_pieces_that_are_exchanged_give_another_model(storage: Storage) -> None:
    whole = values()
    manifest = write(storage, whole, 2)
    starts = [shares(2)[i]["wide.weight"].start for i in (0, 1)]
    exchanged = changed_places(storage, changed_places(storage, manifest, 0, at(starts[1])), 1, at(starts[0]))
    assert not same(read_dense(storage, exchanged), whole)
    assert sorted(read_dense(storage, exchanged)["wide.weight"].reshape(-1)) == sorted(whole["wide.weight"].reshape(-1))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (at(1), r"lacks elements of wide\.weight from 0 on"),
        (at(501), r"has elements of wide\.weight.* beyond its shape"),
        (at(-1), "unreadable places"),
        (lambda places: "[]", "unreadable places"),
        (lambda places: "[" * 100_000, "unreadable places"),
        (lambda places: {"wide.weight": {"start": 0}}, "unreadable places"),
        (lambda places: {"wide.weight": {"start": 0, "shape": "4"}}, "unreadable places"),
        (lambda places: {"wide.weight": {"start": True, "shape": [1000]}}, "unreadable places"),
    ],
)
def test_places_that_do_not_fit_are_damage(change: Any, reason: str, storage: Storage) -> None:
    manifest = changed_places(storage, write(storage, values(), 2), 0, change)
    with pytest.raises(DamagedError, match=reason):
        read_dense(storage, manifest)


def test_a_piece_that_is_there_twice_is_damage(storage: Storage) -> None:
    manifest = changed_places(storage, write(storage, values(), 2), 1, at(499))
    with pytest.raises(DamagedError, match=r"wide\.weight is in more than one dense file"):
        read_dense(storage, manifest)


def test_a_missing_piece_is_damage(storage: Storage) -> None:
    manifest = write(storage, values(), 3)
    fewer = replace(manifest, files=manifest.files[:2])
    with pytest.raises(DamagedError, match=r"lacks elements of wide\.weight from 666 on"):
        read_dense(storage, fewer, ["wide.weight"])
    with pytest.raises(DamagedError, match=r"lacks elements of wide\.weight from 500 on"):
        read_pieces(storage, replace(manifest, files=manifest.files[::2]), {"wide.weight": Place(500, 800, (40, 25))})
    with pytest.raises(DamagedError, match="has no dense state of gone"):
        read_pieces(storage, manifest, {"gone": Place.whole((3,))})
    assert read_pieces(storage, manifest, {"gone": Place.whole((3,))}, partly=True) == {}


@pytest.mark.parametrize("servers", [1, 2])
def test_another_shape_in_the_model_is_an_error_of_the_user(servers: int, storage: Storage) -> None:
    manifest = write(storage, values(), servers)
    with pytest.raises(ShapeError, match=r"'wide.weight' has the shape \[40, 25\] in step-.* but \[25, 40\] in this"):
        read_pieces(storage, manifest, {"wide.weight": Place(0, 10, (25, 40))}, verified=set())
