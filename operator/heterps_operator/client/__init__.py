"""Python client for HeterPSJobs on a cluster: `connect(...)` returns a `HeterPSClient`, which the commands use too."""
