"""Unequal machines made of one: limits on cores and memory by control groups, a link of its own for each node.

Needs Linux, root, and control groups that can be written (version 1 or 2). The process that uses it must be in a
network namespace of its own (`unshare --net`), whose links disappear with it. Each node is another namespace, joined to
this one by a pair of virtual interfaces, on which tc's token bucket (tbf) limits the rate in both directions.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from experiments.control_groups import OWN, ControlGroups, unavailable

__all__ = ["HUB", "Confinement", "missing"]

HUB = "10.77.255.1"  # address of this namespace, for all nodes
_PERIOD_MICROSECONDS = 20_000  # short: a node is slow rather than stopped for a while
_CONTROLLERS = ("cpu", "memory")
_BURST_BYTES = 131_072  # more than a segmented packet of a virtual interface
_LATENCY = "2s"  # that a packet may wait for its turn before it is dropped
_PROGRAMS = ("ip", "tc", "nsenter", "setpriv", "unshare")


def missing() -> str:
    """What this machine lacks for a confinement; empty: nothing."""
    if os.geteuid() != 0:
        return "root"
    if not all(any(os.access(f"{folder}/{name}", os.X_OK) for folder in _path()) for name in _PROGRAMS):
        return f"the programs {', '.join(_PROGRAMS)} (Debian: iproute2, util-linux)"
    return unavailable(_CONTROLLERS)


def _path() -> list[str]:
    return [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]


def _run(*command: str) -> None:
    environment = os.environ | {"PATH": ":".join(_path())}
    subprocess.run(command, check=True, env=environment, capture_output=True, text=True)


class Confinement:
    """Nodes with limits, which end with the context.

    Args:
        count: number of nodes.
    """

    def __init__(self, count: int) -> None:
        self._nodes = range(count)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._groups = ControlGroups(_CONTROLLERS, period_microseconds=_PERIOD_MICROSECONDS)

    def __enter__(self) -> Confinement:
        self._groups.__enter__()
        try:
            for node in self._nodes:
                self._groups.make(str(node))
            self._make_links()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    # --- nodes --------------------------------------------------------------------------------------------------------

    def address(self, node: int) -> str:
        """The address of a node."""
        return f"10.77.{node}.2"

    def start(
        self, node: int | None, command: Sequence[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program in a node; None: in this namespace, without limits."""
        enter = () if node is None else ("nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net", "--")
        with log.open("ab") as output:
            process = subprocess.Popen((*enter, *command), env=environment, stdout=output, stderr=output)
        # Before it has taken any memory to speak of.
        self._groups.move(process.pid, OWN if node is None else str(node))
        return process

    def limit_cores(self, node: int, cores: float | None) -> None:
        """Limit a node to a share of the processors; None: no limit."""
        self._groups.limit_cores(str(node), None if cores is None else max(cores, self._groups.least_cores))

    def limit_memory(self, node: int, size: int | None) -> None:
        """Limit a node's memory to `size` bytes, page cache included; None: no limit.

        Raises:
            OSError: the node uses more, and the kernel cannot take it back.
        """
        self._groups.limit_memory(str(node), size)

    def memory(self, node: int) -> int:
        """Bytes that a node uses, as its limit counts them."""
        return self._groups.memory(str(node))

    def limit_rate(self, node: int, bits_per_second: float | None) -> None:
        """Limit a node's link in both directions; None: no limit."""
        inside = ("nsenter", f"--net=/proc/{self._holders[node].pid}/ns/net", "--")
        for enter, device in (((), f"node{node}"), (inside, "hub")):
            with contextlib.suppress(subprocess.CalledProcessError):  # there was no limit
                _run(*enter, "tc", "qdisc", "del", "dev", device, "root")
            if bits_per_second is not None:
                limit = ("rate", f"{bits_per_second:.0f}bit", "burst", str(_BURST_BYTES), "latency", _LATENCY)
                _run(*enter, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)

    # --- setting up ---------------------------------------------------------------------------------------------------

    def _make_links(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "address", "add", f"{HUB}/32", "dev", "lo")
        for _ in self._nodes:
            hold = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity")  # ends with us
            self._holders.append(subprocess.Popen(hold, stdin=subprocess.DEVNULL))
        for node, holder in enumerate(self._holders):
            self._wait_for_namespace(holder.pid)
            _run("ip", "link", "add", f"node{node}", "type", "veth", "peer", "name", "hub", "netns", str(holder.pid))
            _run("ip", "address", "add", f"10.77.{node}.1/24", "dev", f"node{node}")
            _run("ip", "link", "set", f"node{node}", "up")
            inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
            _run(*inside, "ip", "link", "set", "lo", "up")
            _run(*inside, "ip", "address", "add", f"{self.address(node)}/24", "dev", "hub")
            _run(*inside, "ip", "link", "set", "hub", "up")
            _run(*inside, "ip", "route", "add", "default", "via", f"10.77.{node}.1")

    def _wait_for_namespace(self, pid: int) -> None:
        """Wait until a program that was started by unshare is in its own namespace."""
        mine = os.readlink("/proc/self/ns/net")
        for _ in range(1000):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/net") != mine:
                    return
            time.sleep(0.01)
        raise RuntimeError("no network namespace within 10 s")

    def _remove(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._groups.__exit__()
