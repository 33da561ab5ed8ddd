"""Measures the cost of each layer on a pool (docs/profiling.md). Nothing here changes a job's state.

`main` reports the profile that `measure` takes. `rehearsal` runs whole steps with real processes, `layers` times single
layers, `transfers` times cuts, `readings` reduces samples to numbers, and `combine` computes the profile.
"""
