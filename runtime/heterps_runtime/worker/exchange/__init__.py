"""Between workers: `peers` connects neighbouring stages, `collectives` the workers of one stage.

On pools that all-reduce, each worker holds a `replica` of its stage's dense parameters. `parameters` keeps it across
generations.
"""
