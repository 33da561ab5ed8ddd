"""One lookup of a micro-batch: which of the block's rows it reads, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from heterps_runtime.intake import Site

__all__ = ["Array", "Entry"]

Array = np.ndarray[Any, Any]


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
