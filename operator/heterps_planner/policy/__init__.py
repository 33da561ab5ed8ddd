"""Learned scheduling: features, recurrent policies, their training, and the local search that repairs their plans."""
