"""A pool's measured profile: what it depends on, its form, and what its profiler warns of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from heterps_operator.api.shapes import UnreadableError, fields, items, number, optional, plain, real, table, text
from heterps_operator.documents import Json
from heterps_planner.model.limits import MAX_LAYERS
from heterps_planner.scenarios.variants import EXCHANGES, PRECISIONS
from heterps_runtime.contract import PROFILE_VERSION, DenseExchange

__all__ = ["check_profile", "is_profile", "profile_digest", "profile_warnings"]

_MOST_LEVELS = 6  # of lists and objects in a profile
_UNMEASURED = ("initFrom", "tables")  # fields of spec.model that no measured time depends on


def profile_digest(configuration: Json, pool: str, source: str) -> str:
    """What a pool's profile depends on, as 16 hexadecimal digits.

    Args:
        configuration: the run configuration.
        pool: name of one of its pools.
        source: what tells this version of the user's code from others.
    """
    spec = configuration["job"]["spec"]
    manifest = next(p["spec"] for p in configuration["pools"] if p["metadata"]["name"] == pool)
    training, data = spec["training"], spec["data"]
    key = {
        "format": PROFILE_VERSION,
        "model": {name: value for name, value in spec["model"].items() if name not in _UNMEASURED},
        "source": source,
        "data": {name: data.get(name) for name in ("format", "train", "label", "dense", "sparse", "columns")},
        "batch": [training.get("globalBatchSize"), training.get("precision"), training.get("optimizer")],
        "wire": (spec.get("parameterServer") or {}).get("wirePrecision"),
        "pool": [manifest.get(name) for name in ("deviceType", "torchDevice", "unitsPerPod")],
    }
    if training.get("allowedPrecisions"):
        key["precisions"] = sorted(training["allowedPrecisions"])
    exchange = training.get("denseExchange") or DenseExchange.PARAMETER_SERVER
    if exchange != DenseExchange.PARAMETER_SERVER and manifest["deviceType"] == "CPU":
        key["denseExchange"] = exchange
    if data.get("tensors"):
        key["tensors"] = data["tensors"]
    if data.get("access") == "Streamed":  # whole steps were measured with what reading takes
        key["access"] = "Streamed"
    if manifest.get("memoryPerUnit"):  # earlier releases did not measure memory
        key["memory"] = True
    if spec.get("encryption") == "Required":  # whole steps and transfers were measured with it
        key["encrypted"] = True
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]


_NUMBERS = table(optional(real(-1e300, 1e300)))
_SHAPE = fields(
    {
        "version": number(1, 2**31 - 1),
        "batchSize": number(1, 2**63 - 1),
        "samples": number(0, 2**63 - 1),
        "layers": items(fields({"name": text(least=1, most=1_000)}, required=("name",)), MAX_LAYERS),
        "stage": _NUMBERS,
        "parameterServer": _NUMBERS,
        "memory": _NUMBERS,
        "warnings": items(text()),
    },
    required=("version", "batchSize", "samples", "layers"),
)
_PLAIN = plain(_MOST_LEVELS)


def check_profile(document: Any, path: str = "") -> None:
    """Check a measured or stored profile as far as `build_problem` reads it; the planner checks the times.

    Args:
        document: the profile. A user's image measured it, and a stored one may have been changed since.
        path: path of the profile, for messages.

    Raises:
        UnreadableError: the profile is malformed, or has more layers than a planner takes.
    """
    _check(document, path, (PRECISIONS, EXCHANGES))


def _check(document: Any, path: str, keys: Sequence[str]) -> None:
    """Check a profile that may have a part for each name under the first of the keys that it has."""
    for i, key in enumerate(keys):
        if isinstance(document, Mapping) and key in document:
            part = partial(_check, keys=keys[i + 1 :])
            fields({"version": number(1, 2**31 - 1), key: table(part)}, required=("version", key))(document, path)
            return
    _SHAPE(document, path)
    _PLAIN(document, path)


def is_profile(document: Any) -> bool:
    """Whether a document that was kept is a readable profile of this version."""
    try:
        check_profile(document)
    except UnreadableError:
        return False
    return bool(document["version"] == PROFILE_VERSION)


def profile_warnings(profiles: Mapping[str, Json]) -> list[str]:
    """What the profilers want people to know, one line each."""
    return [
        f"profile of pool {pool}{where}: {text}"
        for pool, profile in sorted(profiles.items())
        for where, measured in _measurements(profile)
        for text in measured.get("warnings", ())
    ]


def _measurements(profile: Json) -> list[tuple[str, Json]]:
    """The measurements of a profile: one, or one of each variant, with words for messages."""
    for key, word in ((PRECISIONS, "in"), (EXCHANGES, "with")):
        if key in profile:
            parts: dict[str, Json] = profile[key]
            return [
                (f" {word} {name}{where}", measured)
                for name, part in parts.items()
                for where, measured in _measurements(part)
            ]
    return [("", profile)]
