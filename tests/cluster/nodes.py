"""Nodes: each a kubelet with its own containerd, all on one machine, and the reason for each setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.addresses import Addresses
from tests.cluster.control_plane import DNS_DOMAIN, ControlPlane
from tests.cluster.daemons import Daemon, Daemons
from tests.cluster.images import IMAGE
from tests.cluster.sandbox import Sandbox

BRIDGE = "heterps0"
FIRST_KUBELET_PORT = 10300  # kube-proxy, controller manager and scheduler listen from 10256 on

CONTAINERD = """\
version = 2
root = "{home}/containerd"
state = "{home}/state"
# Nothing but what kubelets use: the others want kernel modules or folders of the machine.
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # The machine may be a container that must not lower its own score.
  restrict_oom_score_adj = true
  sandbox_image = "{image}"
  # Without it, two nodes would look for pods' network namespaces in one folder.
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{folder}/cni"
"""

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    # The machine need not run systemd. Each kubelet has its own control group as the root of its pods', created by
    # `make_cgroups`; system reservations are not enforced, as the machine's own programs are not in there.
    "cgroupDriver": "cgroupfs",
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "failCgroupV1": False,
    # The tests do not own the machine's disk: no eviction and no image garbage collection when it is full.
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "100Mi"},
    "healthzPort": 0,
    "clusterDomain": DNS_DOMAIN,
    # The machine's own name servers are unreachable, and their search domains would only delay answers.
    "resolvConf": "",
    "authentication": {"anonymous": {"enabled": True}},
    "authorization": {"mode": "AlwaysAllow"},
    "syncFrequency": "5s",
    "nodeStatusUpdateFrequency": "3s",
    # The default is five per second: a test that starts thirty pods would wait for it.
    "eventRecordQPS": 0,
}


@dataclass(frozen=True)
class Node:
    """Properties of a test node for the scheduler."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    extended_resources: Mapping[str, int] = field(default_factory=dict)  # such as {"example.com/accelerator": 2}
    reserved_cpu: str = "0"  # processors of the machine that pods cannot use: creates nodes of different size


@dataclass
class RunningNode:
    """A node's programs. They can be stopped and restarted, as after a power failure."""

    node: Node
    home: Path
    port: int  # of the kubelet
    control_plane: ControlPlane
    daemons: Daemons
    snapshotter: str  # of containerd
    containerd: Daemon | None = None
    kubelet: Daemon | None = None

    @property
    def socket(self) -> Path:
        return self.home / "containerd.sock"

    @property
    def control_group(self) -> str:
        return f"{self.control_plane.folder.name}/{self.node.name}"

    def write_settings(self, cni: Path) -> None:
        self.home.mkdir(parents=True)
        folder = self.control_plane.folder
        (self.home / "containerd.toml").write_text(
            CONTAINERD.format(
                home=self.home, socket=self.socket, image=IMAGE, cni=cni, folder=folder, snapshotter=self.snapshotter
            )
        )
        settings = {
            **KUBELET,
            "address": self.control_plane.addresses.unspecified,
            "clusterDNS": [self.control_plane.addresses.host],
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "port": self.port,
            "podLogsDir": str(self.home / "pod-logs"),
            "systemReserved": {"cpu": self.node.reserved_cpu},
            "cgroupRoot": f"/{self.control_group}",
        }
        (self.home / "kubelet.json").write_text(json.dumps(settings))

    def start_containerd(self) -> None:
        command: list[str | Path] = ["containerd", "--config", self.home / "containerd.toml", "--log-level", "warn"]
        self.containerd = self.daemons.start(f"containerd-{self.node.name}", command)

    def import_image(self, sandbox: Sandbox, archive: Path) -> None:
        """Import the image into the node, once its containerd answers (it listens before it is ready)."""
        self.daemons.wait_for(f"containerd of {self.node.name} listens", self.socket.exists)
        sandbox.run("ctr", "--address", str(self.socket), "--connect-timeout", "20s", "--namespace", "k8s.io",
                    "images", "import", "--snapshotter", self.snapshotter, str(archive))  # fmt: skip

    def start_kubelet(self) -> None:
        name = self.node.name
        labels = ",".join(f"{key}={value}" for key, value in self.node.labels.items())
        self.kubelet = self.daemons.start(f"kubelet-{name}", [
            self.control_plane.programs["kubelet"],
            f"--config={self.home / 'kubelet.json'}",
            f"--kubeconfig={self.control_plane.kubeconfig(f'node-{name}')}",
            f"--hostname-override={name}",
            f"--node-ip={self.control_plane.addresses.hosts}",
            f"--node-labels={labels}",
            f"--root-dir={self.home / 'kubelet'}",
            f"--cert-dir={self.home / 'pki'}",
        ])  # fmt: skip


def write_network(folder: Path, addresses: Addresses) -> None:
    """Write the CNI configuration: all nodes' pods on one bridge, with addresses from one range of each family."""
    (folder / "cni").mkdir()
    ranges = {"type": "host-local", "dataDir": str(folder / "addresses"),
              "ranges": [[{"subnet": family.pods}] for family in addresses.families],
              "routes": [{"dst": family.everywhere} for family in addresses.families]}  # fmt: skip
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": ranges,
    }
    plugins = {"cniVersion": "0.4.0", "name": "heterps", "plugins": [bridge, {"type": "loopback"}]}
    (folder / "cni" / "10-heterps.conflist").write_text(json.dumps(plugins))


def make_bridge(sandbox: Sandbox, addresses: Addresses) -> None:
    """Create the bridge, with a default route: programs need one to start, although it leads nowhere."""
    sandbox.run("sh", "-euc", f"""
        ip link set lo up
        ip link add {BRIDGE} type bridge
        ip link set {BRIDGE} up
    """)  # fmt: skip
    for family in addresses.families:
        # Nothing else has these addresses: looking for duplicates would take a second.
        options = "nodad" if family.is_ipv6 else ""
        forwarding = "net.ipv6.conf.all.forwarding" if family.is_ipv6 else "net.ipv4.ip_forward"
        sandbox.run("sh", "-euc", f"""
            ip address add {family.interface} dev {BRIDGE} {options}
            ip route add {family.everywhere} dev {BRIDGE}
            sysctl -qw {forwarding}=1
        """)  # fmt: skip
