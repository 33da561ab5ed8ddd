"""A parameter server: a shard of the embedding rows, and a part of the dense parameters of CPU stages."""
