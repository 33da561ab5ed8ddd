"""`spec.data` of a job as typed values, checked before any file is touched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from heterps_runtime.data.errors import DataError, nearest

__all__ = [
    "CRITEO_DENSE",
    "CRITEO_LABEL",
    "CRITEO_SPARSE",
    "DataSpec",
    "LabelKind",
    "Split",
    "label_kind",
    "parse_bytes",
]

Format = Literal["parquet", "arrow", "csv", "criteo-tsv"]
LabelKind = Literal["binary", "class", "number"]
Split = Literal["train", "evaluation"]

#: Columns of the Criteo click logs, which have no header: a label, 13 counts, 26 hashed categories.
CRITEO_LABEL = "label"
CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_CLASS_LOSSES = {"crossentropy", "crossentropyloss", "nllloss"}


def parse_bytes(value: str | int, field: str) -> int:
    """Read a Kubernetes quantity such as `10Gi`, `500M` or `1.5Gi` as a number of bytes.

    Raises:
        DataError: the value is not a quantity, or not above zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(value).strip())
    if match is None or match[2] not in _UNITS:
        raise DataError(f"{field}: must be a quantity such as 10Gi or 500M, is {value!r}")
    size = int(Decimal(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise DataError(f"{field}: must be above zero, is {value!r}")
    return size


def label_kind(loss: str) -> LabelKind:
    """The kind of labels that a loss needs.

    Args:
        loss: the manifest's `spec.model.loss`, `module:callable`.

    Returns:
        `binary` (0 or 1) for binary cross-entropies, `class` (0, 1, 2, ...) for cross-entropy, otherwise `number`.
    """
    name = re.split(r"[:.]", loss)[-1].replace("_", "").lower()
    if "binarycrossentropy" in name or name.startswith("bce"):
        return "binary"
    return "class" if name in _CLASS_LOSSES else "number"


@dataclass(frozen=True)
class DataSpec:
    """`spec.data`, and the kind of labels that the loss needs.

    Paths are local paths or pyarrow filesystem URIs (`s3://`, `gs://`, `hdfs://`, `file://`, ...) of files or folders.
    """

    format: Format
    train: str
    evaluation: str | None
    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    label_kind: LabelKind
    cache_directory: Path
    cache_max_bytes: int

    def __post_init__(self) -> None:
        """Check names; raises DataError."""
        if self.format not in get_args(Format):
            known = get_args(Format)
            raise DataError(
                f"spec.data.format: must be one of {', '.join(known)}, is {self.format!r}{nearest(self.format, known)}"
            )
        if not self.dense and not self.sparse:
            raise DataError(
                "spec.data.sparse: there are no features; list columns under spec.data.sparse or spec.data.dense"
            )
        for field, names in (("dense", self.dense), ("sparse", self.sparse)):
            for name, count in Counter(names).items():
                if count > 1:
                    raise DataError(f"spec.data.{field}: column {name!r} is listed {count} times; list it once")
            if self.label in names:
                raise DataError(
                    f"spec.data.{field}: contains the label {self.label!r}, which would tell the model the answer; "
                    f"remove it from the features"
                )
        for name in self.sparse:
            if name in ("dense", "label") or name.endswith("_offsets"):
                raise DataError(
                    f"spec.data.sparse: a column cannot be called {name!r}, because batches use this name themselves; "
                    f"rename the column"
                )
        if self.format == "criteo-tsv":
            self._check_criteo()

    def _check_criteo(self) -> None:
        expected = (("dense", self.dense, CRITEO_DENSE), ("sparse", self.sparse, CRITEO_SPARSE))
        for field, names, known in (*expected, ("label", (self.label,), (CRITEO_LABEL,))):
            for name in names:
                if name not in known:
                    columns = known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
                    raise DataError(
                        f"spec.data.{field}: criteo-tsv has {columns} there, not {name!r}{nearest(name, known)}"
                    )

    @classmethod
    def from_manifest(cls, data: Mapping[str, Any], loss: str, default_cache: str | Path) -> DataSpec:
        """Read `spec.data` with its defaults.

        Args:
            data: the manifest's `spec.data`, paths made absolute.
            loss: `spec.model.loss`, which determines the kind of labels.
            default_cache: the cache's folder if `spec.data.cache.directory` is not set.

        Raises:
            DataError: a field is wrong.
        """
        cache = data["cache"]
        return cls(
            format=data["format"],
            train=data["train"],
            evaluation=data.get("evaluation"),
            label=data["label"],
            dense=tuple(data["dense"]),
            sparse=tuple(data["sparse"]),
            label_kind=label_kind(loss),
            cache_directory=Path(cache.get("directory") or default_cache),
            cache_max_bytes=parse_bytes(cache["maxBytes"], "spec.data.cache.maxBytes"),
        )

    def location(self, split: Split) -> str:
        """The path or URI of a split.

        Raises:
            DataError: the manifest has none.
        """
        path = self.train if split == "train" else self.evaluation
        if path is None:
            raise DataError("spec.data.evaluation: is missing; name a file or folder to evaluate the model on")
        return path
