"""`heterps-runtime` whose replicas cut the gradients of the tests' small models into several buckets."""

from __future__ import annotations

from heterps_runtime.__main__ import entry
from heterps_runtime.worker.exchange import replica

__all__ = ["BYTES"]

BYTES = 256

if __name__ == "__main__":
    replica.BUCKET_BYTES = BYTES
    entry()
