"""Namespaces that contain a whole cluster, so that nothing of it is left behind.

A cluster's daemons and pods share a network, a mount and a process namespace. The first process of a process namespace
is its init: when it ends, for any reason, the kernel kills every other process in the namespace, and with the last
process the mounts, interfaces, routes and iptables rules disappear. So killing one process ends a cluster, and two
clusters can use the same ports, addresses and paths.
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

# Machine-wide settings that a kubelet writes at startup unless they have the right value: it sees files that say so.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
# Reaps orphans of daemons, as an init must: containerd waits for its shims to disappear. SIGTERM would not reach an
# init without a handler; SIGCHLD has to be awaited in any case.
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
# containerd, CNI and kubelet write below /run and /var whatever their settings are. The cluster has its own /run, and
# sees the machine's /var with its own writes kept in memory.
MOUNTS = """
mount -t tmpfs heterps /run
mkdir -p /run/heterps/var /run/heterps/work /run/netns
mount -t overlay -o lowerdir=/var,upperdir=/run/heterps/var,workdir=/run/heterps/work heterps /var
"""
CLONE_NEWNET = 0x40000000  # from linux/sched.h; os.setns is newer than Python 3.11


@dataclass(frozen=True)
class Sandbox:
    """A set of namespaces, identified by its init process."""

    pid: int  # of the init, as seen from outside
    started: int  # its start in clock ticks since boot, as pids are reused
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
        """Load the sandbox whose init is recorded in this folder, if any."""
        try:
            return cls(**json.loads((folder / "sandbox.json").read_text()))
        except FileNotFoundError:
            return None

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a command inside."""
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--", *arguments]

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Run a command inside, and return its output."""
        ran = subprocess.run(self.command(arguments), input=text, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ClusterError(f"{' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread, and the threads and processes that it starts, into the cluster's network."""
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
    """Return the children of this process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()]


def start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it has ended."""
    try:
        # The name, in parentheses, may contain spaces. After it, state is the first field and the start the twentieth.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _setns(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise ClusterError(f"the cluster's network cannot be entered: {os.strerror(ctypes.get_errno())}")
