"""The fault campaign on a cluster: real jobs in pods, under faults of pods, nodes, the API server and operators.

The cluster is the one of `tests/cluster`, started once for all jobs of a campaign. Nothing in the product knows of the
campaign. Faults, reports and the proof of the model are those of the campaign on one machine.

    schedule    draws a job and its faults
    moments     when the next fault is due
    director    waits for the moment of each fault, injects it there, and ends it after its duration
    injection   what a fault does to pods, nodes, the API server, operators and the job's spec
    gate        the API server as operators see it
    operators   two operators with one Lease, restarted as a Deployment restarts them
    job         the job under test, observed even while the API server is down
    bill        what the bill of a job may say
    judgement   what is wrong after the end of a job
    campaign    the cluster, and a run from its start to its judgement
"""
