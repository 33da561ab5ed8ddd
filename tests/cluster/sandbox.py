"""Namespaces that hold a whole cluster, so that nothing of it can stay behind.

A cluster's daemons and pods share a network, a mount and a process namespace of their own. The first process of a
process namespace is its init: when it ends, for whatever reason, the kernel ends every other process in there,
and with the last process go the mounts, interfaces, routes and iptables rules. So a cluster is ended by ending one
process, and two clusters use the same ports, addresses and paths without meeting.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.errors import ClusterError

# Settings of the whole machine that a kubelet writes at its start unless they are so: it is shown files that say so.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
# Reaps the processes that daemons leave to it, as an init must: containerd waits for its shims to disappear.
# SIGTERM would not reach an init that has no handler for it; SIGCHLD has to be waited for in any case.
INIT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
print("up", flush=True)
while signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) != signal.SIGTERM:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
# containerd, CNI and kubelet write below /run and /var whatever their settings say. The cluster has a /run of its own,
# and sees the machine's /var with what it writes there kept in memory.
MOUNTS = """
mount -t tmpfs heterps /run
mkdir -p /run/heterps/var /run/heterps/work /run/netns
mount -t overlay -o lowerdir=/var,upperdir=/run/heterps/var,workdir=/run/heterps/work heterps /var
"""
CLONE_NEWNET = 0x40000000  # from linux/sched.h; os.setns is newer than Python 3.11


@dataclass(frozen=True)
class Sandbox:
    """A set of namespaces, known by its init process."""

    pid: int  # of the init, as seen from outside
    started: int  # its start in clock ticks since boot: another process may have its pid one day
    outer: subprocess.Popen[bytes] | None = field(default=None, compare=False)  # unshare, where this process started it

    @classmethod
    def create(cls, folder: Path, *, outlive_parent: bool) -> Sandbox:
        """Start the init; with `outlive_parent=False` it ends with the calling process, even if that is killed."""
        unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--mount-proc", "--fork", "--kill-child"]
        tied = [] if outlive_parent else ["setpriv", "--pdeathsig", "KILL"]
        # -I: the init needs nothing of the checkout, and a file there must not change it.
        with (folder / "logs" / "init.log").open("wb") as log:
            outer = subprocess.Popen(
                [*tied, *unshare, sys.executable, "-I", "-c", INIT],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert outer.stdout is not None
        with outer.stdout:
            if outer.stdout.readline() != b"up\n":
                raise ClusterError(f"the namespaces cannot be made: {(folder / 'logs' / 'init.log').read_text()}")
        [pid] = children(outer.pid)
        sandbox = cls(pid, start_time(pid) or 0, outer)
        (folder / "sandbox.json").write_text(json.dumps({"pid": sandbox.pid, "started": sandbox.started}))
        sandbox._mount(folder)
        return sandbox

    @classmethod
    def load(cls, folder: Path) -> Sandbox | None:
        """The sandbox whose init was written down in this folder, if one was."""
        try:
            return cls(**json.loads((folder / "sandbox.json").read_text()))
        except FileNotFoundError:
            return None

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs a command inside."""
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--", *arguments]

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Run a command inside, and return what it prints."""
        ran = subprocess.run(self.command(arguments), input=text, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ClusterError(f"{' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread, with the threads and processes that it starts, into the cluster's network."""
        with Path("/proc/thread-self/ns/net").open() as home, Path(f"/proc/{self.pid}/ns/net").open() as network:
            _setns(network.fileno())
            try:
                yield
            finally:
                _setns(home.fileno())

    def end(self, seconds: float = 10) -> None:
        """End every process inside; the kernel does so when the init ends."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                raise ClusterError(f"the processes of the cluster do not end, see process {self.pid}")
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        if self.outer is not None:
            self.outer.wait()

    def _mount(self, folder: Path) -> None:
        settings = folder / "kernel"
        settings.mkdir()
        script = [MOUNTS]
        for number, (setting, value) in enumerate(KERNEL_SETTINGS.items()):
            (settings / str(number)).write_text(f"{value}\n")
            script.append(f"mount --bind {settings / str(number)} /proc/sys/{setting}")
        self.run("sh", "-euc", "\n".join(script))


def children(pid: int) -> list[int]:
    """Processes that this one has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()]


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended."""
    try:
        # The name, in parentheses, may hold spaces. Of what follows, state is the first and the start the twentieth.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _setns(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise ClusterError(f"the cluster's network cannot be entered: {os.strerror(ctypes.get_errno())}")
