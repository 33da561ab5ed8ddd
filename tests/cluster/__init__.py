"""A real Kubernetes on one machine, for tests.

API server, scheduler, controller manager, and nodes, each a kubelet with its own containerd, in seconds. Read
`cluster.py` first; `docs/testing.md` describes usage and requirements.
"""
