"""A worker process: computes its share of one stage.

`main` starts it, `member` is its life, `generation` sets it up for each set of members, `engine` runs the steps. `feed`
and `source` prepare batches ahead, `stage` computes, `inputs` waits for rows and dense parameters, `delivery` sends the
gradients away. `servers` talks to the parameter servers, `peers` to the stages before and after, `parameters` holds the
dense parameters on pools that all-reduce.
"""
