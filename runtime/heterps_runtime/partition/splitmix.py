"""splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), the runtime's hash.

`mix64` works on numpy arrays; `store.kernel` compiles it for single words. Resuming a job relies on results that do not
change between versions.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["GOLDEN", "mix64"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment: 2**64 / golden ratio, odd
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTOR_1, _FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Words = TypeVar("Words", np.uint64, npt.NDArray[np.uint64])


def mix64(x: Words) -> Words:
    """Finaliser (Stafford's mix 13): every input bit flips every output bit with probability 1/2."""
    x = (x ^ (x >> _SHIFT_1)) * _FACTOR_1
    x = (x ^ (x >> _SHIFT_2)) * _FACTOR_2
    return x ^ (x >> _SHIFT_3)
