"""HeterPSJobs on a cluster, for programs: `connect(...)` gives a `HeterPSClient`; the commands are built on it."""
