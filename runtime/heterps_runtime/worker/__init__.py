"""A worker process: computes its share of one stage.

`main` sets it up, `engine` runs the steps, `feed` prepares batches ahead, `servers` talks to the parameter servers,
`peers` to the stages before and after, `dense` holds the dense parameters, `lookups` the embedding rows of a step.
"""
