"""A server's dense parameters and statistics as files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_runtime.checkpoint import Origin, StateFile, dense_arrays
from heterps_runtime.partition.pieces import Place
from heterps_runtime.store.dense import LAST_STEP, DenseStore
from heterps_runtime.store.statistics import StatisticsStore

__all__ = ["dense_files"]


def dense_files(
    index: int, origin: Origin, dense: DenseStore, places: Mapping[str, Place], statistics: StatisticsStore
) -> list[StateFile]:
    """Copies of dense parameters with their optimizer state, and of statistics, as files of a checkpoint.

    Args:
        index: of the server.
        origin: commit of the values.
        dense: pieces of parameters.
        places: of the pieces, by the names of parameters.
        statistics: buffers that training changes.
    """
    arrays = {n: v for n, v in dense.snapshot().items() if n != LAST_STEP}
    pieces = {}
    for name, value in arrays.items():
        parameter = name.partition("::")[0]
        place = places[parameter]
        if place.is_whole:
            arrays[name] = value.reshape(place.shape)
        else:
            pieces[parameter] = place
    files = []
    for role, values, cut in (("dense", arrays, pieces), ("buffers", statistics.snapshot(), {})):
        if values:
            name = f"{role}-ps-{index}.safetensors"
            files.append(StateFile(name, dense_arrays(values, role), origin, role, index, cut))
    return files
