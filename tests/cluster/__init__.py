"""A real Kubernetes on one machine, for tests.

API server, scheduler, controller manager, and nodes that are a kubelet with a containerd of its own each, in seconds.
Read `cluster.py` first; `docs/testing.md` says how to use it and what it needs.
"""
