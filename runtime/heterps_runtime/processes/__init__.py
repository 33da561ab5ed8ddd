"""Parts of every process of a job: log lines, the link to its parent, counters, metrics."""
