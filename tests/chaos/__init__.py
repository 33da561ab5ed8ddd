"""A fault campaign: real jobs under faults that a seed draws, judged from outside.

A job runs with the real command `heterps run` in its own network, mount and process namespaces. Nothing in the product
knows of the campaign: connections are redirected to the campaign's proxy by iptables, the job's work directory is on a
file system of the campaign (FUSE), and processes get signals. docs/testing.md explains how to run it and read it.

    namespaces  isolates the campaign from the machine
    faults      the faults: drawn, waited for and injected
    job         the job under test
    replanning  `heterps run` for jobs whose plan changes
    scene       the job with the faults around it
    campaign    a run from its start to its judgement
    results     recovery times, judgements and reports
    cluster     the same on a cluster: its faults, its job, its judgement
"""
