"""Rows of a block and how they travel: keys, format, gradients, and which of them each lookup reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from heterps_runtime.intake import Site
from heterps_runtime.store.half import Precision

__all__ = ["Array", "Entry", "RowFormat", "RowGradients", "ServerKeys"]

Array = np.ndarray[Any, Any]


class ServerKeys(NamedTuple):
    """Unique keys, those of one server after those of another, so that a server's rows are a part of an array.

    Attributes:
        keys: (U,).
        starts: (S + 1,) start of each server's keys, and the end.
    """

    keys: Array
    starts: Array

    def part(self, server: int) -> slice:
        """The positions of a server's keys."""
        return slice(int(self.starts[server]), int(self.starts[server + 1]))


@dataclass(frozen=True)
class RowFormat:
    """How a worker has rows, and how they travel.

    Attributes:
        dtype: of rows.
        wire: precision of rows and gradients in messages.
        device: that looks them up.
    """

    dtype: np.dtype[Any]
    wire: Precision
    device: torch.device


class RowGradients(NamedTuple):
    """Sums of gradients of rows of one dimension.

    Attributes:
        dim: of the rows.
        keys: (U,).
        values: (U, dim).
        finite: whether all values are finite, and their sum.
    """

    dim: int
    keys: ServerKeys
    values: Array
    finite: bool


@dataclass
class Entry:
    """A lookup of a micro-batch.

    Attributes:
        site: the lookup.
        dim: of its table.
        shape: of the ids.
        inverse: (n,) positions in the block's unique keys of this dim; set once these are known.
        skip: (n,) entries of padding_idx; None: the lookup has no padding_idx.
        offsets: (B,) start of each bag; None: an embedding.
        weights: (n,) per_sample_weights, if given.
    """

    site: Site
    dim: int
    shape: tuple[int, ...]
    inverse: Array
    skip: Array | None
    offsets: Array | None
    weights: torch.Tensor | None
