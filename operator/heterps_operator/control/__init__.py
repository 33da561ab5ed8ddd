"""Every decision about a job, as pure functions of values."""
