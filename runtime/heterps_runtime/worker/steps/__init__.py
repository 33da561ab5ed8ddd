"""The steps of one stage: `engine` runs them.

`feed` and `source` prepare batches ahead, `inputs` waits for rows and dense parameters, `choosing` picks the next
micro-batch, `stage` computes it, and `delivery` sends the gradients away. `schedule` and `consistency` say which
samples are this worker's and how old its parameters may be.
"""
