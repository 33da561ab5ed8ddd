"""A real object store with the interface of S3: versitygw, which keeps objects in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from heterps_operator.measure.http_requests import NoResponseError, send_request
from tests.cluster.building import VERSITYGW, path_of
from tests.cluster.errors import ClusterError
from tests.cluster.kubectl import wait_until

__all__ = ["ObjectStore"]

KEY, SECRET = "heterps-tests", "of no use elsewhere"


class ObjectStore:
    """A server in the network of the calling thread; as a context manager it runs inside the block.

    Args:
        folder: an empty folder for its buckets and its log.
        address: HOST:PORT to listen on.
    """

    def __init__(self, folder: Path, address: str) -> None:
        if not path_of(VERSITYGW).exists():
            raise ClusterError("the object store is not built: make cluster-build")
        self.url = f"http://{address}"
        self._log = folder / "versitygw.log"
        self._buckets = folder / "buckets"
        self._buckets.mkdir()
        sidecar = folder / "metadata"  # not every file system has extended attributes
        sidecar.mkdir()
        self._command = [
            str(path_of(VERSITYGW)),
            f"--port={address}",
            f"--access={KEY}",
            f"--secret={SECRET}",
            "--health=/health",
            "posix",
            f"--sidecar={sidecar}",
            str(self._buckets),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ObjectStore:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        wait_until("the object store is ready", self._ready, 60, more=self.story)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients of S3 use it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str) -> Path:
        """Return the folder of a bucket, which is made if it does not exist: its files are the objects."""
        folder = self._buckets / name
        folder.mkdir(exist_ok=True)
        return folder

    def story(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the object store has ended\n{self.story()}"
        try:
            return send_request("GET", f"{self.url}/health", headers={}, timeout=5, most_bytes=1000).status == 200
        except NoResponseError:
            return False
