"""Learned scheduling: features, recurrent policies, how they learn, and the local search that repairs their plans."""
