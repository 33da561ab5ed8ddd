"""A fault campaign: real jobs under faults that a seed draws, judged from outside.

A job runs with the real command `heterps run` in its own network, mount and process namespaces. Nothing in the product
knows of the campaign: connections are redirected to the campaign's proxy by iptables, the job's work directory is on a
file system of the campaign (FUSE), and processes get signals. See docs/testing.md for how to run and read it.

    schedule    which fault happens to whom, when and for how long: pure, drawn from a seed
    moments     events of the protocol, recognised in the bytes that pass
    namespaces  isolates the campaign from the machine
    peers       which process is behind a port
    links       the proxy, and faults of connections
    fuse, disk  the file system, and faults of the disk
    job         the job under test
    director    waits for the moment of each fault, and injects it
    recovery    how long the job took to go on
    judgement   whether the job did what is promised
    report      tables, JSON and plots
"""
