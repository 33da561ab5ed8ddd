"""The shipped policy: its file, and its domain.

The file is a safetensors file: the parameters, and as metadata the domain of the training set (the least and greatest
value of every feature, numbers of layers and pools), the command that created it, its seed, date and score. The format
is a length (8 bytes, little endian), JSON of that length, and the numbers (https://github.com/huggingface/safetensors);
for a dozen float32 arrays the planner reads it without the library.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.policy.features import FIELDS, NAMES, Features
from heterps_planner.policy.network import Parameters

__all__ = ["PATH", "Policy", "check_range", "load", "save", "shipped"]

PATH = Path(__file__).with_name("pretrained.safetensors")
_FORMAT = "heterps-policy-1"
_DTYPE = np.dtype("<f4")
_MARGIN = 0.15  # of a feature's range, by which a problem may exceed it
_POOL_FIELDS = ("maxUnits", "pricePerUnitHour")
_ADVICE = "use the method 'rl-lstm' or 'optimal'"


@dataclass(frozen=True)
class Policy:
    """Parameters and the domain in which they were trained."""

    parameters: Parameters
    lowest: list[float]  # for each feature, in the order of features.NAMES
    highest: list[float]
    layers: tuple[int, int]  # minimum and maximum
    pools: tuple[int, int]
    provenance: Mapping[str, str]


def save(policy: Policy, path: Path) -> None:
    """Write a policy."""
    domain = {
        "features": {
            name: [round(low, 6), round(high, 6)]
            for name, low, high in zip(NAMES, policy.lowest, policy.highest, strict=True)
        },
        "layers": policy.layers,
        "pools": policy.pools,
    }
    metadata = {"format": _FORMAT, "domain": json.dumps(domain), **policy.provenance}
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, values in policy.parameters.items():
        numbers = np.ascontiguousarray(values, dtype=_DTYPE).tobytes()
        offsets = [len(data), len(data) + len(numbers)]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        data += numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def load(path: Path) -> Policy:
    """Read a policy.

    Raises:
        ValueError: the file was not written by `save` for these features.
    """
    try:
        return _parse(path.name, path.read_bytes())
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged ({error!r}); recreate it with experiments.train_policy") from error


def _parse(file: str, content: bytes) -> Policy:
    begin = 8 + int.from_bytes(content[:8], "little")
    if begin > len(content):
        raise ValueError(f"{file} is not a safetensors file, or is truncated")
    header = json.loads(content[8:begin])
    metadata = dict(header.pop("__metadata__", {}))
    if metadata.pop("format", "") != _FORMAT:
        raise ValueError(f"{file} is not a policy of this version; recreate it with experiments.train_policy")
    domain = json.loads(metadata.pop("domain"))
    if tuple(domain["features"]) != NAMES:
        raise ValueError(f"{file} was trained on other features; recreate it with experiments.train_policy")
    parameters: Parameters = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise ValueError(f"{file}: {name} is of type {entry['dtype']}, must be F32")
        if not all(type(size) is int and size > 0 for size in entry["shape"]):
            raise ValueError(f"{file}: {name} is of shape {entry['shape']}, must be of positive whole numbers")
        count, offset = math.prod(entry["shape"]), begin + entry["data_offsets"][0]
        if offset + 4 * count > len(content):
            raise ValueError(f"{file} ends within {name}; recreate it with experiments.train_policy")
        parameters[name] = np.frombuffer(content, _DTYPE, count, offset).astype(np.float32).reshape(entry["shape"])
    return Policy(
        parameters=parameters,
        lowest=[low for low, _ in domain["features"].values()],
        highest=[high for _, high in domain["features"].values()],
        layers=tuple(domain["layers"]),
        pools=tuple(domain["pools"]),
        provenance=metadata,
    )


@functools.cache
def shipped() -> Policy:
    """Return the policy that ships with the planner."""
    return load(PATH)


def check_range(policy: Policy, problem: Problem, features: Features) -> None:
    """Reject problems outside the policy's training domain, where its plans are meaningless.

    Raises:
        ProblemError: the number of layers or pools, or a feature, is out of range; the message names the field.
    """
    for path, count, (least, most) in (
        ("problem.layers", len(problem.layers), policy.layers),
        ("problem.pools", len(problem.pools), policy.pools),
    ):
        if not least <= count <= most:
            raise ProblemError(path, f"the pretrained policy knows {least} to {most} of them, not {count}; {_ADVICE}")
    lowest, highest = np.array(policy.lowest), np.array(policy.highest)
    margin = _MARGIN * (highest - lowest)
    values = np.where(features.possible[:, :, None], features.raw, (lowest + highest) / 2)
    beyond = np.maximum(lowest - margin - values, values - highest - margin)
    if (beyond <= 0).all():
        return
    layer, pool, number = np.unravel_index(int(beyond.argmax()), beyond.shape)
    field, name = FIELDS[number], problem.pools[pool].name
    if field in _POOL_FIELDS:
        path = f"problem.pools[{pool}].{field}"
    else:
        path = f"problem.layers[{layer}].pools.{name}.{field}"
    raise ProblemError(
        path,
        f"the pretrained policy was trained on problems whose feature {NAMES[number]!r} is "
        f"{lowest[number]:.3g} to {highest[number]:.3g}; here it is {values[layer, pool, number]:.3g}; {_ADVICE}",
    )
