"""A worker process: computes its share of one stage.

`main` starts the process, `member` takes part in the job, `generation` sets the worker up for each set of members, and
`model` holds the user's model. Three packages do the work:

    steps       the engine, and what it needs to compute one step after another
    rows        rows, dense parameters and gradients, to and from the parameter servers
    exchange    activations between stages; all-reduce and replicas within a stage
"""
