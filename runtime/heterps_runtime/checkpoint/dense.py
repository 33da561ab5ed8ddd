"""Dense parameters and buffers in state files.

A file has a parameter as `dense/NAME`, in its own shape, and its optimizer state as `dense/NAME::exp_avg` and so on.
Servers hold pieces of large parameters (`partition.pieces`). A piece and its state are flat arrays under the same
names, and the header's metadata says where they belong: `pieces` is a JSON object such as
`{"top.weight": {"shape": [512, 1024], "start": 131072}}`. A checkpoint has each element of a parameter once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.checkpoint.errors import DamagedError, ShapeError
from heterps_runtime.checkpoint.format import TensorFile, verify_file
from heterps_runtime.checkpoint.manifest import CheckpointManifest
from heterps_runtime.partition.pieces import Place
from heterps_runtime.storage import Storage

__all__ = ["dense_arrays", "pieces_metadata", "read_dense", "read_pieces"]

Array = npt.NDArray[Any]

_PIECES = "pieces"  # key of the metadata


def dense_arrays(values: Mapping[str, Array], role: str = "dense") -> dict[str, Array]:
    """Dense parameters (with state as `NAME::exp_avg`), or buffers, by their names in a file."""
    return {f"{role}/{name}": value for name, value in values.items()}


def pieces_metadata(places: Mapping[str, Place]) -> dict[str, str]:
    """The metadata of a file with pieces of parameters, by name; none if there are no pieces."""
    where = {name: {"shape": list(place.shape), "start": place.start} for name, place in sorted(places.items())}
    return {_PIECES: json.dumps(where, separators=(",", ":"))} if where else {}


def read_dense(
    storage: Storage, manifest: CheckpointManifest, names: Collection[str] | None = None, *, role: str = "dense"
) -> dict[str, Array]:
    """Read dense parameters with their optimizer state, or buffers.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: the checkpoint.
        names: parameters to read; None: all. The state of `NAME` is included as `NAME::exp_avg` and so on.
        role: "dense" or "buffers".

    Returns:
        name -> writable copy of the array.

    Raises:
        DamagedError: a parameter is missing, or a file does not match the manifest.
        StorageError: a file cannot be read.
    """
    wanted = None if names is None else dict.fromkeys(names)
    found = _read(storage, manifest, role, wanted, None)
    _check_present(manifest, role, wanted or {}, found)
    return {name: one.finish(manifest, role).reshape(one.place.shape) for name, one in found.items()}


def read_pieces(
    storage: Storage,
    manifest: CheckpointManifest,
    places: Mapping[str, Place],
    *,
    role: str = "dense",
    verified: set[str] | None = None,
    partly: bool = False,
) -> dict[str, Array]:
    """Read pieces of dense parameters with their optimizer state, whichever pieces the checkpoint has.

    Args:
        storage: the storage of the job's checkpoints.
        manifest: the checkpoint.
        places: of the pieces, by name of the parameter.
        role: "dense" or "buffers".
        verified: names of files whose checksums have been compared; those of the others are, before something is read
            from them, and they are added. None: no checksum is compared.
        partly: leave out parameters that the checkpoint does not have.

    Returns:
        name -> writable copy of the piece (n,).

    Raises:
        DamagedError: a parameter is missing, or a file does not match the manifest.
        ShapeError: a parameter has another shape in the checkpoint.
        StorageError: a file cannot be read.
    """
    found = _read(storage, manifest, role, dict(places), verified)
    if not partly:
        _check_present(manifest, role, places, found)
    return {name: one.finish(manifest, role) for name, one in found.items()}


@dataclass
class _Found:
    """A piece that is being read."""

    name: str
    place: Place
    values: Array  # (n,)
    ranges: list[tuple[int, int]]  # of elements that have been read

    def finish(self, manifest: CheckpointManifest, role: str) -> Array:
        """The values; raises DamagedError unless each element has been read once."""
        reached = self.place.start
        for start, stop in sorted(self.ranges):
            if start < reached:
                raise DamagedError(f"{self.name} is in more than one {role} file")
            if start > reached:
                break
            reached = stop
        if reached != self.place.stop:
            raise DamagedError(f"{manifest.folder} lacks elements of {self.name} from {reached} on")
        return self.values


def _read(
    storage: Storage,
    manifest: CheckpointManifest,
    role: str,
    wanted: Mapping[str, Place | None] | None,
    verified: set[str] | None,
) -> dict[str, _Found]:
    """Read places of parameters and of their state; None: the whole of one, or all of them."""
    found: dict[str, _Found] = {}
    available = sum(entry.bytes for entry in manifest.files_of(role))
    for entry in manifest.files_of(role):
        path = manifest.path_of(entry)
        with TensorFile(storage, path) as file:
            pieces = _pieces_of(file, path)
            for key, spec in file.specs.items():
                name = key.removeprefix(f"{role}/")
                parameter = name.partition("::")[0]
                if wanted is not None and parameter not in wanted:
                    continue
                there = _place_of(spec.shape, pieces.get(parameter), path, name)
                one = found.get(name)
                if one is None:
                    place = (wanted or {}).get(parameter)
                    if place is None:
                        place = Place.whole(there.shape)
                        if place.stop * spec.dtype.itemsize > available:  # before so much memory is taken
                            raise DamagedError(f"{manifest.folder} lacks elements of {name}")
                    one = found[name] = _Found(name, place, np.empty(place.stop - place.start, spec.dtype), [])
                start, stop = max(one.place.start, there.start), min(one.place.stop, there.stop)
                if start >= stop and one.place.shape == there.shape:
                    continue
                if verified is not None and path not in verified:
                    verify_file(storage, manifest.folder, entry, manifest.origin)
                    verified.add(path)
                if one.place.shape != there.shape:
                    raise ShapeError(name, there.shape, one.place.shape, manifest.folder)
                values = file.read_flat(key, start - there.start, stop - there.start)
                one.values[start - one.place.start : stop - one.place.start] = values
                one.ranges.append((start, stop))
    return found


def _check_present(manifest: CheckpointManifest, role: str, wanted: Collection[str], found: Collection[str]) -> None:
    absent = sorted(set(wanted) - set(found))
    if absent:
        raise DamagedError(f"{manifest.folder} has no {role} state of {', '.join(absent)}")


def _pieces_of(file: TensorFile, path: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The first element of each piece in a file, and the shape of its parameter, by name.

    Raises:
        DamagedError: its metadata is malformed.
    """
    try:
        entries = json.loads(file.metadata.get(_PIECES, "{}")).items()
        pieces = {name: (entry["start"], tuple(entry["shape"])) for name, entry in entries}
        if not all(type(size) is int and size >= 0 for start, shape in pieces.values() for size in (start, *shape)):
            raise ValueError("a negative number")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} has unreadable places of pieces ({error})", path) from error
    return pieces


def _place_of(shape: tuple[int, ...], piece: tuple[int, tuple[int, ...]] | None, path: str, name: str) -> Place:
    """The place of an array of a file; raises DamagedError if it does not fit into its parameter."""
    if piece is None:
        return Place.whole(shape)
    place = Place(piece[0], piece[0] + math.prod(shape), piece[1])
    if place.stop > math.prod(place.shape):
        raise DamagedError(f"{path} has elements of {name} beyond its shape {list(place.shape)}", path)
    return place
