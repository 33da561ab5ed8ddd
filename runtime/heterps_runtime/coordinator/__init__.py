"""One coordinator per job: membership, the commit of every step, checkpoints, the job's figures.

`core` decides and has no I/O; `server` gives it sockets, HTTP, threads and a clock.
"""
