"""What goes wrong with a test cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A test cluster could not be built, started or reached; the message says what to do."""
