"""Measures what each layer costs on a pool (docs/profiling.md). Nothing here changes a job's state.

`main` reports a profile, `measure` takes it, `layers` times the layers one by one, `transfers` times the cuts between them, `rehearsal` runs
whole steps with the real processes, `readings` reduces samples to numbers, and `combine` makes the profile of them.
"""
