"""Isolates a campaign from the machine, so that nothing of it is left behind.

The campaign has its own network, mount, process and IPC namespaces. When it ends, for any reason, the kernel kills
every process in them, and interfaces, firewall rules and mounts disappear.

Inside, each connection of the job from 127.0.0.1 to 127.0.0.1 is redirected to the campaign's proxy. The campaign's own
connections come from 127.0.0.2, and are not redirected.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["OUR_ADDRESS", "PROXY_PORT", "obstacles", "run_isolated"]

OUR_ADDRESS = "127.0.0.2"
PROXY_PORT = 4000
_COMMANDS = ("unshare", "setpriv", "ip", "iptables", "iptables-restore", "mount")
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
_REDIRECT = f"iptables -t nat -A OUTPUT -p tcp -s 127.0.0.1 -d 127.0.0.1 -j REDIRECT --to-ports {PROXY_PORT}".split()


def obstacles() -> list[str]:
    """Return why a campaign cannot run on this machine, one reason per line; empty if it can."""
    if os.geteuid() != 0:
        return ["not root: namespaces, redirected connections and mounts need it"]
    reasons = [f"no command {command}" for command in _COMMANDS if shutil.which(command) is None]
    if not Path("/dev/fuse").exists():
        reasons.append("no /dev/fuse")
    if reasons:
        return reasons
    tried = subprocess.run([*_UNSHARE, *_REDIRECT], capture_output=True, text=True, check=False)
    if tried.returncode:
        reasons.append(f"no namespaces with redirected connections: {tried.stderr.strip()}")
    return reasons


def run_isolated(module: str, arguments: Sequence[str]) -> int:
    """Call `module.isolated(folder, arguments)` in new namespaces, and return its result.

    Args:
        module: name of a module.
        arguments: passed on.

    Returns:
        The exit code. `folder` is an empty temporary folder, a tmpfs in the namespaces.
    """
    with tempfile.TemporaryDirectory(prefix="heterps-chaos-") as folder:
        inside = [sys.executable, "-m", "tests.chaos.namespaces", module, folder, *arguments]
        return subprocess.run(["setpriv", "--pdeathsig", "KILL", *_UNSHARE, *inside], check=False).returncode


def _enter(module: str, folder: str, arguments: Sequence[str]) -> int:
    """Set up the namespaces, as their first process, and run the campaign in a child."""
    temporary = Path(folder) / "tmp"
    for command in (
        ["ip", "link", "set", "lo", "up"],
        _REDIRECT,
        ["mount", "-t", "tmpfs", "-o", "size=1g", "chaos", folder],
        ["mount", "-t", "tmpfs", "-o", "size=256m", "chaos", "/dev/shm"],
    ):
        subprocess.run(command, check=True)
    temporary.mkdir()
    os.environ["TMPDIR"] = str(temporary)
    for library in ("OMP", "OPENBLAS", "MKL"):  # a campaign is about order, not about speed
        os.environ[f"{library}_NUM_THREADS"] = "1"
    child = os.fork()
    if child == 0:
        code: int = importlib.import_module(module).isolated(Path(folder), arguments)
        sys.stdout.flush()
        os._exit(code)
    while True:  # the first process of a process namespace has to reap orphans
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(_enter(sys.argv[1], sys.argv[2], sys.argv[3:]))
