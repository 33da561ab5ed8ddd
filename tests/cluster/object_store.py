"""A real object store with the interface of S3: versitygw, which keeps objects in a folder."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.building import VERSITYGW, path_of
from tests.cluster.errors import ClusterError
from tests.cluster.http_server import HttpServer

__all__ = ["ObjectStore"]

KEY, SECRET = "heterps-tests", "of no use elsewhere"


class ObjectStore(HttpServer):
    """A server in the network of the calling thread; as a context manager it runs inside the block.

    Args:
        folder: an empty folder for its buckets and its log.
        address: HOST:PORT to listen on.
    """

    def __init__(self, folder: Path, address: str) -> None:
        if not path_of(VERSITYGW).exists():
            raise ClusterError("the object store is not built: make cluster-build")
        self._buckets = folder / "buckets"
        self._buckets.mkdir()
        sidecar = folder / "metadata"  # not every file system has extended attributes
        sidecar.mkdir()
        command = [
            str(path_of(VERSITYGW)),
            f"--port={address}",
            f"--access={KEY}",
            f"--secret={SECRET}",
            "--health=/health",
            "posix",
            f"--sidecar={sidecar}",
            str(self._buckets),
        ]
        super().__init__("the object store", command, folder / "versitygw.log", address, "/health")

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients of S3 use it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def place(self, bucket: str) -> str:
        """Return the address of a bucket, which must exist."""
        return f"s3://{bucket}"

    def bucket(self, name: str) -> Path:
        """Return the folder of a bucket, which is made if it does not exist: its files are the objects."""
        folder = self._buckets / name
        folder.mkdir(exist_ok=True)
        return folder
