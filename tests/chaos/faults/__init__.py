"""Faults: drawn, waited for and injected.

kinds, schedule      which fault happens to whom, when and for how long: pure, drawn from a seed
changes              changes of the plan between and during faults: pure, too
moments              events of the protocol, recognised in the bytes that pass
incident             a fault that has happened
director             waits for the moment of each fault, and injects it
peers                which process is behind a port
links, disturbances  the proxy between the processes, and what it does to their bytes
disk, fuse           the file system below a job, and its faults
"""
