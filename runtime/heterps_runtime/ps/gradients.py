"""A worker's gradients, as a server keeps them until their step is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Gradients"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Gradients:
    """A worker's gradients of a step, summed over its samples."""

    chunks: tuple[tuple[int, Array, Array], ...]  # (dim, keys (U,), gradients (U, dim))
    dense: dict[str, Array]  # of the server's pieces of parameters (n,)
    statistics: dict[str, Array]  # changes, likewise
