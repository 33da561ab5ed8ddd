"""`spec.data` of a job as typed values, checked before any file is touched."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from heterps_runtime.data.errors import DataError, nearest
from heterps_runtime.quantity import parse_bytes

__all__ = [
    "CRITEO_DENSE",
    "CRITEO_LABEL",
    "CRITEO_SPARSE",
    "DataSpec",
    "LabelKind",
    "Split",
    "TensorColumn",
    "label_kind",
]

Format = Literal["parquet", "arrow", "csv", "criteo-tsv"]
LabelKind = Literal["binary", "class", "number"]
Split = Literal["train", "evaluation"]
TensorType = Literal["float32", "uint8"]
Access = Literal["Cached", "Streamed"]

#: Columns of the Criteo click logs, which have no header: a label, 13 counts, 26 hashed categories.
CRITEO_LABEL = "label"
CRITEO_DENSE = tuple(f"I{i}" for i in range(1, 14))
CRITEO_SPARSE = tuple(f"C{i}" for i in range(1, 27))

_CLASS_LOSSES = {"crossentropy", "crossentropyloss", "nllloss"}
_MAX_ELEMENTS = 1 << 28  # of one row's tensor: 1 GiB as float32


def label_kind(loss: str, num_classes: int | None = None) -> LabelKind:
    """The kind of labels of a job.

    Args:
        loss: the manifest's `spec.model.loss`, `module:callable`.
        num_classes: `spec.data.classes`, which says that the labels are classes, whatever the loss is called.

    Returns:
        `binary` (0 or 1) for binary cross-entropies, `class` (0, 1, 2, ...) for cross-entropy and with a number of
        classes, otherwise `number`.

    Raises:
        DataError: a binary loss with a number of classes.
    """
    name = re.split(r"[:.]", loss)[-1].replace("_", "").lower()
    if "binarycrossentropy" in name or name.startswith("bce"):
        if num_classes is not None:
            raise DataError(
                f"spec.data.classes: is {num_classes}, but {loss} needs labels 0 and 1; remove spec.data.classes, or "
                "set spec.model.loss to torch.nn.functional:cross_entropy"
            )
        return "binary"
    return "class" if num_classes is not None or name in _CLASS_LOSSES else "number"


@dataclass(frozen=True)
class TensorColumn:
    """A column of lists of one length: a tensor per row, such as an image.

    The model gets `value * scale + offset`, computed in float32.
    """

    name: str
    shape: tuple[int, ...]  # of a row's tensor, for example (channels, height, width)
    dtype: TensorType  # in the cache
    scale: float
    offset: float

    @property
    def size(self) -> int:
        """Elements of a row's tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class DataSpec:
    """`spec.data`, and the kind of labels that the loss needs or `classes` declares.

    Paths are local paths or addresses of stores (`filesystems.py`), of files or folders.
    """

    format: Format
    train: str
    evaluation: str | None
    label: str
    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    tensors: tuple[TensorColumn, ...]
    label_kind: LabelKind
    num_classes: int | None  # labels must be less; None: the model's logits decide
    cache_directory: Path
    cache_max_bytes: int
    access: Access = "Cached"
    window_rows: int = 1 << 20  # Streamed: rows that the batches of a time are drawn from
    train_after: str | None = None  # file or folder below `train`: only files after it, by path, are trained on
    train_through: str | None = None  # and only files up to this one

    def __post_init__(self) -> None:
        """Check names; raises DataError."""
        if self.format not in get_args(Format):
            known = get_args(Format)
            raise DataError(
                f"spec.data.format: must be one of {', '.join(known)}, is {self.format!r}{nearest(self.format, known)}"
            )
        if not self.dense and not self.sparse and not self.tensors:
            raise DataError(
                "spec.data.sparse: there are no features; list columns under spec.data.sparse, spec.data.dense or "
                "spec.data.tensors"
            )
        tensors = tuple(t.name for t in self.tensors)
        for field, names in (("dense", self.dense), ("sparse", self.sparse), ("tensors", tensors)):
            for name, count in Counter(names).items():
                if count > 1:
                    raise DataError(f"spec.data.{field}: column {name!r} is listed {count} times; list it once")
            if self.label in names:
                raise DataError(
                    f"spec.data.{field}: contains the label {self.label!r}, which would tell the model the answer; "
                    f"remove it from the features"
                )
        for field, names in (("sparse", self.sparse), ("tensors", tensors)):
            for name in names:
                taken = ("dense", "label", "sparse") if field == "tensors" else ("dense", "label")
                if name in taken or name.endswith("_offsets"):
                    raise DataError(
                        f"spec.data.{field}: a column cannot be called {name!r}, because batches use this name "
                        "themselves; rename the column"
                    )
        self._check_tensors()
        if self.format == "criteo-tsv":
            self._check_criteo()

    def _check_tensors(self) -> None:
        if self.tensors and self.format not in ("parquet", "arrow"):
            raise DataError(
                f"spec.data.tensors: the format {self.format} has no lists; write the data as parquet or arrow, and "
                "set spec.data.format"
            )
        for i, tensor in enumerate(self.tensors):
            field = f"spec.data.tensors[{i}]"
            if tensor.name in self.sparse:
                raise DataError(f"{field}: column {tensor.name!r} is also listed under spec.data.sparse; list it once")
            if tensor.dtype not in get_args(TensorType):
                known, found = get_args(TensorType), tensor.dtype
                raise DataError(
                    f"{field}.dtype: must be one of {', '.join(known)}, is {found!r}{nearest(found, known)}"
                )
            if not tensor.shape or min(tensor.shape) < 1 or tensor.size > _MAX_ELEMENTS:
                raise DataError(
                    f"{field}.shape: must be the sizes of a row's tensor, such as [1, 28, 28], each above zero and at "
                    f"most {_MAX_ELEMENTS:,} elements in all, is {list(tensor.shape)}"
                )
            if not (math.isfinite(tensor.scale) and math.isfinite(tensor.offset)) or tensor.scale == 0:
                raise DataError(
                    f"{field}: scale and offset must be finite and scale not zero, are {tensor.scale} and "
                    f"{tensor.offset}; leave them out to pass values on as they are"
                )

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
        cache, classes = data["cache"], data.get("classes")
        return cls(
            format=data["format"],
            train=data["train"],
            evaluation=data.get("evaluation"),
            label=data["label"],
            dense=tuple(data["dense"]),
            sparse=tuple(data["sparse"]),
            tensors=tuple(
                TensorColumn(
                    name=t["name"],
                    shape=tuple(t["shape"]),
                    dtype=t.get("dtype", "float32"),
                    scale=float(t.get("scale", "1")),
                    offset=float(t.get("offset", "0")),
                )
                for t in data.get("tensors", ())
            ),
            label_kind=label_kind(loss, classes),
            num_classes=classes,
            cache_directory=Path(cache.get("directory") or default_cache),
            cache_max_bytes=parse_bytes(cache["maxBytes"], "spec.data.cache.maxBytes"),
            access=data.get("access", "Cached"),
            window_rows=data.get("windowRows", 1 << 20),
            train_after=data.get("trainAfter"),
            train_through=data.get("trainThrough"),
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
