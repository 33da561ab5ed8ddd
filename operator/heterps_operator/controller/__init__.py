"""The operator: what it has seen of the cluster, whose turn it is, and one control loop per job."""
