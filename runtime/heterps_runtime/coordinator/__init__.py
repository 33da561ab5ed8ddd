"""The coordinator of a job: membership, commits, checkpoints, metrics.

`core` decides, without I/O; `server` provides sockets, HTTP, threads and a clock.
"""
