"""A parameter server: one shard of all embedding rows, and some of the dense parameters of CPU stages."""
