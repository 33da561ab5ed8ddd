"""Which process of the job is behind a port or a pid, from the kernel's tables."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from tests.chaos.namespaces import PROXY_PORT

__all__ = [
    "CONNECTIONS",
    "CONTROLLER",
    "name_of",
    "original_client_port",
    "owner_of_client",
    "owner_of_listener",
    "processes",
]

CONNECTIONS = Path("/proc/net/nf_conntrack")  # not every kernel shows it
CONTROLLER = "heterps"
_COMMANDS = ("heterps_operator", "tests.chaos.replanning")  # modules that are the `heterps` command
_LISTENING = "0A"
_LOOPBACK = "0100007F"  # 127.0.0.1 in /proc/net/tcp


def name_of(pid: int) -> str | None:
    """Return the name of a process of the job, such as `ps-0`; None if it is another or has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if "heterps_runtime" in words:
        role, *rest = words[words.index("heterps_runtime") + 1 :]
        options = dict(zip(rest[::2], rest[1::2], strict=False))
        if role == "worker":
            return f"worker-{options.get('--stage')}-{options.get('--index')}"
        return f"ps-{options.get('--index')}" if role == "ps" else role
    for module in _COMMANDS:
        if module in words:
            command = words[words.index(module) + 1]
            return CONTROLLER if command == "run" else command
    return None


def processes() -> dict[str, int]:
    """Return the pids of the job's processes by name."""
    found = {}
    for entry in Path("/proc").iterdir():
        name = name_of(int(entry.name)) if entry.name.isdecimal() else None
        if name is not None and not _is_zombie(int(entry.name)):
            found[name] = int(entry.name)
    return found


def original_client_port(seen: int) -> int:
    """Return the port of a redirected client, as the client sees it.

    Connections from one port to several listeners would be the same once they are redirected to the proxy, so the
    kernel gives the later ones another port. Its table has a line for each connection: first the addresses as the
    client sees them, then those of the proxy's answers.

    Args:
        seen: port of the client, as the proxy sees it.
    """
    try:
        text = CONNECTIONS.read_text()
    except FileNotFoundError:
        return seen
    found = re.search(rf" sport=(\d+) dport=\d+ src=\S+ dst=\S+ sport={PROXY_PORT} dport={seen} ", text)
    return int(found[1]) if found else seen


def owner_of_client(port: int, remote_port: int) -> str:
    """Return the name of the process with a connection from a local port; `other` if it is not one of the job."""
    return _owner(f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{remote_port:04X}", None)


def owner_of_listener(port: int) -> str:
    """Return the name of the process that listens on a port; `other` if it is not one of the job."""
    return _owner(f"{_LOOPBACK}:{port:04X}", None, _LISTENING)


def _owner(local: str, remote: str | None, state: str | None) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == local and remote in (None, fields[2]) and state in (None, fields[3]) and fields[9] != "0":
            return _holder_of(f"socket:[{fields[9]}]")
    return "other"


def _holder_of(link: str) -> str:
    for name, pid in processes().items():
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) == link:
                        return name
    return "other"


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
