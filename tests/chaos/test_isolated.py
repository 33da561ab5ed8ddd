"""The proxy and the disk with real connections and files, in namespaces of their own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from heterps_runtime.checkpoint.manifest import new_folder
from tests.availability import unavailable
from tests.chaos.faults.disk import Disk
from tests.chaos.faults.incident import Hit
from tests.chaos.faults.links import Links
from tests.chaos.faults.moments import Sighting
from tests.chaos.faults.peers import CONNECTIONS
from tests.chaos.namespaces import obstacles, run_isolated

LINK = "other>other"  # both ends are processes of this test, not of a job
PUSH = b'{"op":"push","generation":1,"step":5,"worker":"worker-0-0"}'
PATIENCE_SECONDS = 30.0
PUBLISH = """
import sys
from heterps_runtime.checkpoint.publishing import publication
from heterps_runtime.storage import Storage

with publication(Storage.open(sys.argv[1]), "model.json") as folder:
    (folder / "model.json").write_text(sys.argv[2])
"""


def connected() -> tuple[socket.socket, socket.socket]:
    """A client and the accepted connection, which the proxy knows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), timeout=PATIENCE_SECONDS)
        accepted, _ = server.accept()
    accepted.settimeout(PATIENCE_SECONDS)
    client.sendall(b"!")
    assert accepted.recv(1) == b"!"
    return client, accepted


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def proxied(folder: Path) -> None:
    seen: list[Sighting] = []
    links = Links(seen.append)
    client, accepted = connected()
    client.sendall(PUSH)
    assert receive(accepted, len(PUSH)) == PUSH
    assert seen == [Sighting("other", "other", True, "push", 5)]
    accepted.sendall(b"answer")
    assert receive(client, 6) == b"answer"
    hit = Hit()
    assert links.run(lambda: links.disturb("corrupt", LINK, True, PATIENCE_SECONDS, 0.0, hit)) == 1
    assert not hit.happened
    client.sendall(b"abc")
    assert receive(accepted, 3) == b"qbc"
    assert hit.happened
    client.close()
    assert accepted.recv(1) == b"", "the end of a connection is passed on"
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed_port = server.getsockname()[1]
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", closed_port)).recv(1)
    links.close()


def renumbered(folder: Path) -> None:
    links = Links(lambda sighting: None)
    with contextlib.ExitStack() as opened:
        servers = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        port = 0
        for server in servers:  # from one port to both
            client = opened.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("127.0.0.1", port))
            client.connect(server.getsockname())
            port = client.getsockname()[1]
            client.sendall(b"!")
            accepted, _ = server.accept()
            assert opened.enter_context(accepted).recv(1) == b"!"
        ports = [connection.ports for connection in links._connections]
        seen = [connection.near[1].get_extra_info("peername")[1] for connection in links._connections]
    assert len(set(seen)) == 2, "the kernel has changed the port of the second one"
    # A kernel without the table leaves the second client a stranger, and its faults without a moment.
    assert [port in known for known in ports].count(True) == (2 if CONNECTIONS.exists() else 1)
    links.close()


def reset(folder: Path) -> None:
    links = Links(lambda sighting: None)
    client, accepted = connected()
    client.sendall(PUSH)
    receive(accepted, len(PUSH))
    assert links.run(lambda: links.reset(LINK, Hit())) == 1
    for end in (client, accepted):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    links.close()


def vanished(folder: Path) -> None:
    links = Links(lambda sighting: None)
    (client, accepted), (other, other_accepted) = connected(), connected()
    client.sendall(PUSH)
    receive(accepted, len(PUSH))
    assert links.run(lambda: links.vanish(LINK, None, Hit())) == 2
    client.sendall(b"lost")
    accepted.settimeout(0.5)
    with pytest.raises(TimeoutError):
        accepted.recv(1)
    fresh, fresh_accepted = connected()
    fresh.sendall(b"new")
    assert receive(fresh_accepted, 3) == b"new", "new connections work"
    assert links.run(lambda: links.vanish(LINK, 0.2, Hit())) == 3
    fresh.sendall(b"late")
    assert receive(fresh_accepted, 4) == b"late", "TCP repeats what was lost for a time"
    other.close()
    other_accepted.close()
    links.close()


def mounted(folder: Path) -> None:
    seen: list[str] = []
    disk = Disk(folder / "point", folder / "files", 100, lambda sighting: seen.append(f"{sighting.op} {sighting.step}"))
    checkpoints = folder / "point" / "job" / "checkpoints"
    names = {step: new_folder(step, 1) for step in (10, 20, 21, 30, 31, 39, 40, 41, 100)}

    def save(step: int, written: Callable[[], None] = lambda: None) -> None:
        """Write a file as a checkpoint is written, from another thread than the one that serves the mount."""
        target = checkpoints / names[step] / "rows"
        target.parent.mkdir(parents=True)
        with target.with_name(".rows.partial").open("wb", buffering=0) as file:
            file.write(b"12345678")
            written()
            os.fsync(file.fileno())
        target.with_name(".rows.partial").rename(target)
        assert target.read_bytes() == b"12345678"

    save(10)
    assert seen == ["file 10"]
    for kind, number in (("disk-full", errno.ENOSPC), ("disk-error", errno.EIO), ("disk-torn", errno.EIO)):
        step = {"disk-full": 20, "disk-error": 30, "disk-torn": 40}[kind]
        hit = Hit()
        if kind == "disk-torn":  # no write of the checkpoint is left that it could tear
            save(step - 1, lambda: disk.disturb("disk-torn", 0.0, 1, hit))  # noqa: B023  # is called at once
        else:
            disk.disturb(kind, 0.0, 1, hit)
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            save(step)
        assert raised.value.errno == number
        assert hit.happened
        save(step + 1)
    torn = folder / "files" / "job" / "checkpoints" / names[40] / ".rows.partial"
    assert torn.read_bytes() == b"1234"
    hit = Hit()
    disk.disturb("disk-full", 0.0, 1, hit)
    save(100)  # faults spare the last checkpoint
    assert not hit.happened
    (checkpoints / "unsynced").write_bytes(b"never synced")
    partial = [f"job/checkpoints/{names[step]}/.rows.partial" for step in (30, 40)]
    assert disk.lose_power() == [*partial, "job/checkpoints/unsynced"]
    assert (folder / "files" / "job" / "checkpoints" / "unsynced").read_bytes() == b""
    assert (checkpoints / names[10] / "rows").read_bytes() == b"12345678"
    for text in ("older", "newer"):  # which takes the older one's place
        publish = [sys.executable, "-c", PUBLISH, str(folder / "point" / "model"), text]
        subprocess.run(publish, check=True)  # it maps files, which this process must not
    assert (folder / "files" / "model" / "model.json").read_text() == "newer"
    disk.close()
    assert not list((folder / "point").iterdir())


CASES = {"proxied": proxied, "renumbered": renumbered, "reset": reset, "vanished": vanished, "mounted": mounted}


def isolated(folder: Path, arguments: Sequence[str]) -> int:
    """Called in the namespaces."""
    CASES[arguments[0]](folder)
    assert threading.active_count() == 1, threading.enumerate()
    return 0


@pytest.mark.parametrize("case", CASES)
def test_faults_in_namespaces(case: str) -> None:
    if reasons := obstacles():
        unavailable("; ".join(reasons))
    assert run_isolated("tests.chaos.test_isolated", [case]) == 0
