"""Limits of the numbers in a problem file."""

from __future__ import annotations

__all__ = [
    "MAX_BYTES",
    "MAX_COUNTS",
    "MAX_INTERRUPTIONS",
    "MAX_LAYERS",
    "MAX_POOLS",
    "MAX_PRICE",
    "MAX_RATE",
    "MAX_SAMPLES",
    "MAX_SECONDS",
    "MAX_SEGMENTS",
    "MAX_UNITS",
    "MIN_SECONDS",
]

# The exact method keeps a few tables with one number per (first layer, last layer, pool): these limits bound its
# memory to a gigabyte. Layers beyond them can be grouped in the profile without losing good cuts.
MAX_LAYERS = 1_000
MAX_POOLS = 256
MAX_SEGMENTS = 5_000_000  # layers x layers x pools, times numbers of units if layers have tables
MAX_COUNTS = 64  # numbers of units in a table of measured times
MAX_UNITS = 1_000_000_000
# Numbers outside these ranges are mistakes, and would make the arithmetic overflow.
MIN_SECONDS = 1e-12
MAX_SECONDS = 1e9
MAX_PRICE = 1e9
MAX_RATE = 1e18  # samples per second
MAX_BYTES = 1e18
MAX_INTERRUPTIONS = 1e3  # per unit and hour
MAX_SAMPLES = 1e18  # between two checkpoints
