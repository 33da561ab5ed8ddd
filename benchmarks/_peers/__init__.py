"""The bench of peers: what `benchmarks.peers` runs, stores and shows."""
