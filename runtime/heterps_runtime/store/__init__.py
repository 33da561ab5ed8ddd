"""The storage engine of parameter servers, and a worker's lookups on a CPU: numpy and numba, never torch.

Everything here is a function of arrays, or a store that one thread uses. Nothing knows of networks, steps in progress
or files.

    keys                    names of rows, and their shards
    rows, index, memory     embedding rows
    keyed, candidates       what rows have in common with ids that have none yet; ageing: which of both go
    dense                   dense parameters
    merging                 gradients of a step, added for each row
    optimizers, initial     updates, and values before the first update
    team                    threads that share a store's loops
    lookup                  embedding and bag layers of a worker
    half                    16-bit numbers for messages
    warm, kernel            compilation
"""
