"""The control loop of one job, on this machine as on a cluster."""
