"""Requirements of a test cluster on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tests.cluster import building
from tests.cluster.building import Program
from tests.cluster.errors import ClusterError
from tests.cluster.golang import go_problem

# Usual locations of the CNI plugins: Debian, Fedora, and Kubernetes' own packages.
CNI_FOLDERS = ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")
CNI_PLUGINS = ("bridge", "host-local", "loopback")
COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "busybox": "busybox-static",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}


def cni_folder() -> Path | None:
    """Return the folder of the CNI plugins, if they are installed."""
    folders = (Path(folder) for folder in CNI_FOLDERS)
    return next((f for f in folders if all((f / plugin).exists() for plugin in CNI_PLUGINS)), None)


def missing_packages() -> list[str]:
    """Return the missing packages, by their names in Debian."""
    packages = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if cni_folder() is None:
        packages.add("containernetworking-plugins")
    return sorted(packages)


def can_install_packages() -> bool:
    """Whether `install_packages` has any effect here."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_packages(say: Callable[[str], None], of: Collection[str] | None = None) -> None:
    """Install missing packages, if apt suffices.

    Args:
        say: is told which.
        of: which of them may be installed; None: all.

    Raises:
        ClusterError: apt fails; with its last output.
    """
    packages = [name for name in missing_packages() if of is None or name in of]
    if not packages or not can_install_packages():
        return
    say(f"Installing Debian's packages: {', '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A containerd from another source (Docker's, say) would be replaced: the user must decide that.
    install = ["apt-get", "install", "--yes", "--no-install-recommends", "--no-remove", *packages]
    for command in (["apt-get", "update"], install):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            words = "\n".join((ran.stdout + ran.stderr).splitlines()[-5:])
            raise ClusterError(f"{' '.join(command)} failed:\n{words}")


def obstacles(programs: Sequence[Program] = building.FOR_TESTS) -> list[str]:
    """Return why a cluster with these programs can neither run here nor be prepared; one reason per line, or none."""
    reasons = []
    if os.geteuid() != 0:
        reasons.append("not root: kubelet and containerd need to be")
    if (packages := missing_packages()) and not can_install_packages():
        reasons.append(f"not installed (names of Debian's packages): {', '.join(packages)}")
    if building.missing(programs) and (problem := go_problem()):
        reasons.append(problem)
    if shutil.which("unshare") is not None:
        tried = subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            reasons.append(f"no namespaces of its own: {tried.stderr.strip()}")
    if not os.access("/sys/fs/cgroup", os.W_OK):
        reasons.append("no control groups of its own: /sys/fs/cgroup cannot be written")
    return reasons


def reasons_against() -> list[str]:
    """Return why a cluster cannot run here now, one reason per line; empty if it can."""
    reasons = obstacles(building.CLUSTER)
    if reasons:
        return reasons
    if packages := missing_packages():
        reasons.append(f"not installed (names of Debian's packages): {', '.join(packages)}: make cluster-build")
    if programs := building.missing():
        reasons.append(f"{len(programs)} of its programs are not built: make cluster-build")
    return reasons
