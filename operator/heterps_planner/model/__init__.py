"""The planning problem and its cost model."""
