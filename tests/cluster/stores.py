"""Real stores on this machine: S3 (`object_store.py`), Google Cloud Storage, Azure's blobs, and HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from heterps_runtime.filesystems import open_address
from heterps_runtime.storage import Storage
from tests.availability import unavailable
from tests.cluster.building import FAKE_GCS, VERSITYGW, path_of
from tests.cluster.errors import ClusterError
from tests.cluster.fetching import AZURITE, HADOOP, Fetched
from tests.cluster.golang import go_problem
from tests.cluster.http_server import HttpServer, Server, free_address
from tests.cluster.object_store import ObjectStore

__all__ = ["KINDS", "Azure", "Gcs", "Hdfs", "Place", "open_place"]

KINDS = ("s3", "gs", "abfs", "hdfs")

_ACCOUNT = "devstoreaccount1"  # Azurite's own account, whose key its documentation publishes
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# A namenode and a datanode in one process, which starts in three seconds of processor time.
_HDFS = "org.apache.hadoop.test.MiniDFSClusterManager"
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Gcs(HttpServer):
    """fake-gcs-server, which keeps objects in a folder. It takes any credentials.

    Args:
        folder: an empty folder for its objects and its log.
        address: HOST:PORT to listen on.
    """

    def __init__(self, folder: Path, address: str) -> None:
        if not path_of(FAKE_GCS).exists():
            raise ClusterError("the server of GCS is not built: make cluster-build")
        host, _, port = address.rpartition(":")
        command = [str(path_of(FAKE_GCS)), "-backend=filesystem", f"-filesystem-root={folder / 'objects'}"]
        command += ["-scheme=http", f"-host={host}", f"-port={port}", "-log-level=warn"]
        super().__init__("fake-gcs-server", command, folder / "gcs.log", address, "/_internal/healthcheck")

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients use it."""
        return {"CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url, "GOOGLE_CLOUD_PROJECT": "tests"}

    def place(self, bucket: str) -> str:
        """Return the address of a bucket."""
        return f"gs://anonymous@{bucket}"


class Azure(HttpServer):
    """Azurite, Microsoft's own emulator of the blob service, which keeps blobs in a folder.

    Args:
        folder: an empty folder for its blobs and its log.
        address: HOST:PORT to listen on.
    """

    OPTION = "?enable_tls=false"

    def __init__(self, folder: Path, address: str) -> None:
        if not AZURITE.path().exists():
            raise ClusterError("Azurite was not fetched: make cluster-build")
        host, _, port = address.rpartition(":")
        command = ["node", str(AZURITE.path() / "azurite" / "dist" / "src" / "blob" / "main.js")]
        command += [f"--blobHost={host}", f"--blobPort={port}", f"--location={folder}"]
        # It knows no newer versions of the interface than its own, and pyarrow's client asks for the newest.
        command += ["--disableTelemetry", "--silent", "--skipApiVersionCheck"]
        super().__init__("Azurite", command, folder / "azurite.log", address, "/", status=400)
        self._address = address

    def kill(self) -> None:
        """End it in order: it stores what it knows of its blobs every few seconds only, and at its end."""
        self.process.terminate()
        self.process.wait()

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients use it."""
        return {"AZURE_STORAGE_KEY": _ACCOUNT_KEY}

    def place(self, container: str) -> str:
        """Return the address of a container; its option is `OPTION`."""
        return f"abfs://{_ACCOUNT}@{self._address}/{container}"


class Hdfs(Server):
    """A namenode and a datanode.

    Args:
        folder: an empty folder for their files and their log.
        address: HOST:PORT of the namenode.
    """

    def __init__(self, folder: Path, address: str) -> None:
        if not HADOOP.path().exists():
            raise ClusterError("Hadoop was not fetched: make cluster-build")
        self._address = address
        self._started = folder / "started.json"
        command = [*_JAVA, "-cp", f"{HADOOP.path()}/*", _HDFS, f"-nnport={address.rpartition(':')[2]}"]
        command += ["-datanodes=1", f"-writeDetails={self._started}"]
        command += ["-D", f"hdfs.minidfs.basedir={folder / 'hdfs'}", "-format"]
        super().__init__("HDFS", command, folder / "hdfs.log")

    def start(self) -> None:
        """Start it, and wait until it is ready. It is formatted at the first start."""
        self._started.unlink(missing_ok=True)
        super().start()
        if self._command[-1] == "-format":
            self._command.pop()

    def ready(self) -> bool:
        """Return whether the datanode has come to the namenode."""
        return self._started.exists() and self._started.stat().st_size > 0

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables with which clients use it."""
        return {}

    def place(self, folder: str) -> str:
        """Return the address of a folder."""
        return f"hdfs://{self._address}/{folder}"


@dataclass(frozen=True)
class Place:
    """A bucket, a container or a folder of a running store.

    Attributes:
        kind: the store's scheme, or "local".
        root: its address, or a path.
        option: ends addresses of files in it.
        server: the store; None if local.
    """

    kind: str
    root: str
    option: str = ""
    server: ObjectStore | Gcs | Azure | Hdfs | None = None

    def address(self, name: str) -> str:
        """Return the address of a file or folder in it."""
        return f"{self.root}/{name}{self.option}"

    def storage(self, name: str) -> Storage:
        """Open a folder in it."""
        return Storage.open(self.address(name))


@contextmanager
def open_place(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, bucket: str = "team-a") -> Iterator[Place]:
    """Run a store, and set the variables of its clients in this process; skips the test if it is not there."""
    if kind == "local":
        yield Place(kind, str(folder))
        return
    server = _server(kind, folder, free_address())
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    with server:
        place = Place(kind, server.place(bucket), Azure.OPTION if kind == "abfs" else "", server)
        if isinstance(server, ObjectStore):
            server.bucket(bucket)
        elif kind != "hdfs":
            filesystem, _ = open_address(place.root + place.option)
            filesystem.create_dir(bucket, recursive=False)
        yield place


def _server(kind: str, folder: Path, address: str) -> ObjectStore | Gcs | Azure | Hdfs:
    if kind in ("s3", "gs"):
        program = VERSITYGW if kind == "s3" else FAKE_GCS
        if not path_of(program).exists():
            unavailable(f"no {program.name}: {go_problem() or 'not built: make cluster-build'}")
        return ObjectStore(folder, address) if kind == "s3" else Gcs(folder, address)
    server: Fetched = AZURITE if kind == "abfs" else HADOOP
    if (problem := server.missing()) or not server.path().exists():
        unavailable(f"no {server.name}: {problem or 'not fetched: make cluster-build'}")
    return Azure(folder, address) if kind == "abfs" else Hdfs(folder, address)
