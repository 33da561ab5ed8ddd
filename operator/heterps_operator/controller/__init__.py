"""The operator: watches and stores of the cluster, a work queue, and one controller per job."""
