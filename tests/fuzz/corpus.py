"""The inputs that are kept: a few small ones per target, which together reach what its seeds do not."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.bounds import find_excess, measure
from tests.fuzz.target import Target, execute

__all__ = ["CORPUS", "keep", "load", "name_of"]

CORPUS = Path(__file__).parent / "corpus"
_MOST_BYTES = 8 * 1024  # of a target, so that the repository stays small
_MOST_INPUT = 2 * 1024


def name_of(data: bytes) -> str:
    """Return the file name of an input."""
    return hashlib.sha256(data).hexdigest()[:12]


def load(target: Target, folder: Path = CORPUS) -> list[bytes]:
    """Return the kept inputs of a target, in the order of their names."""
    return [file.read_bytes() for file in sorted((folder / target.name).glob("*")) if file.is_file()]


def keep(target: Target, candidates: Iterable[bytes], folder: Path = CORPUS) -> int:
    """Replace the kept inputs of a target; return their number.

    The smallest inputs come first, and an input is kept if it reaches a line of the product that neither a seed nor an
    earlier one does.

    Args:
        target: the parser.
        candidates: inputs to choose from.
        folder: where the folders of targets are.
    """
    reached: set[tuple[str, int]] = set()
    for seed in target.seeds():
        execute(target, seed)  # fills caches, so that what fills them is not taken for a line of an input
        reached |= measure(target, seed).covered
    chosen: list[bytes] = []
    for data in sorted(set(candidates), key=lambda data: (len(data), data)):
        if len(data) > _MOST_INPUT or sum(map(len, chosen)) + len(data) > _MOST_BYTES:
            break
        cost = measure(target, data)
        if cost.covered <= reached or find_excess(target, len(data), cost):
            continue
        reached |= cost.covered
        chosen.append(data)
    kept = folder / target.name
    shutil.rmtree(kept, ignore_errors=True)
    for data in chosen:
        kept.mkdir(parents=True, exist_ok=True)
        (kept / name_of(data)).write_bytes(data)
    return len(chosen)
