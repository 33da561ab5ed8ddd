"""Errors of test clusters."""

from __future__ import annotations


class ClusterError(Exception):
    """A test cluster could not be built, started or reached; the message names the fix."""
