"""What a test cluster needs of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster import building

# Where distributions put the CNI plug-ins: Debian, Fedora, and what Kubernetes' own packages do.
CNI_FOLDERS = ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")
CNI_PLUGINS = ("bridge", "host-local", "loopback")
COMMANDS = {
    "kubectl": "kubectl",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "busybox": "busybox-static",
}


def cni_folder() -> Path | None:
    """The folder with the CNI plug-ins, if they are installed."""
    folders = (Path(folder) for folder in CNI_FOLDERS)
    return next((f for f in folders if all((f / plugin).exists() for plugin in CNI_PLUGINS)), None)


def reasons_against() -> list[str]:
    """Why a cluster cannot run here, one reason a line; empty if it can."""
    reasons = []
    if os.geteuid() != 0:
        reasons.append("not root: kubelet and containerd need to be")
    packages = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if cni_folder() is None:
        packages.add("containernetworking-plugins")
    if packages:
        reasons.append(f"not installed (names of Debian's packages): {', '.join(sorted(packages))}")
    if programs := building.missing():
        fix = (
            "make cluster-build" if shutil.which("go") else f"install Go {building.GO_VERSION}, then make cluster-build"
        )
        reasons.append(f"{len(programs)} of its programs are not built: {fix}")
    if shutil.which("unshare") is not None:
        tried = subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            reasons.append(f"no namespaces of its own: {tried.stderr.strip()}")
    if not os.access("/sys/fs/cgroup", os.W_OK):
        reasons.append("no control groups of its own: /sys/fs/cgroup cannot be written")
    return reasons
