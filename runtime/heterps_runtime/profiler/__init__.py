"""Measures what each layer costs on a pool (docs/profiling.md). Nothing here changes a job's state.

`main` reports a profile and `measure` takes it: `rehearsal` runs whole steps with the real processes, `layers` times
the layers one by one, `transfers` times the cuts between them, `readings` reduces samples to numbers, and `combine`
makes the profile of them.
"""
