"""A cluster: startup order and shutdown."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.cluster import building
from tests.cluster.addresses import IPV4, Addresses
from tests.cluster.control_plane import ControlPlane
from tests.cluster.daemons import Daemons
from tests.cluster.errors import ClusterError
from tests.cluster.images import write_image
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.nodes import FIRST_KUBELET_PORT, Node, RunningNode, make_bridge, write_network
from tests.cluster.requirements import cni_folder, reasons_against
from tests.cluster.sandbox import Sandbox

# Not in .cache: the names of Unix sockets below must have fewer than 108 characters.
FOLDERS = Path("/tmp")
PREFIX = "heterps-cluster-"
CGROUPS = Path("/sys/fs/cgroup")
# A folder without a sandbox belongs to a cluster that is just starting, or to a killed start.
STARTING_SECONDS = 60

POOL_LABEL = "heterps.test/pool"
ACCELERATOR = "example.com/accelerator"
# Two kinds of hardware: two CPU nodes, one of them with two accelerators.
NODES = (
    Node("cpu-0", labels={POOL_LABEL: "cpu"}),
    Node("cpu-1", labels={POOL_LABEL: "cpu"}),
    Node("accelerator-0", labels={POOL_LABEL: "accelerator"}, extended_resources={ACCELERATOR: 2}),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """A cluster's folder, and its name in control groups."""

    name: str

    @property
    def folder(self) -> Path:
        return FOLDERS / f"{PREFIX}{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def kubectl_cache(self) -> Path:
        return self.folder / "kubectl"

    @property
    def sandbox(self) -> Sandbox | None:
        return Sandbox.load(self.folder)

    @property
    def running(self) -> bool:
        return self.sandbox is not None and self.sandbox.alive

    def remove(self) -> None:
        """Stop the cluster if it runs, and remove its files and control groups."""
        if self.sandbox is not None:
            self.sandbox.end()
        # A control group can be removed only after the kernel has reaped its last process.
        wait_until(f"control groups of {self.name} are gone", lambda: not remaining_cgroups(self.folder.name), 10)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """A running cluster; as a context manager it runs inside the block and is removed after it.

    Args:
        nodes: Its nodes; none for a control plane alone, or with fake nodes (kwok.py).
        name: Distinguishes clusters that run at the same time.
        outlive_parent: Keep running when this process ends; otherwise the cluster ends with it, even if it is killed.
        say: Called with progress messages, a line at a time.
        node_grace_seconds: Seconds after which a silent node counts as lost.
        addresses: Of the cluster.
        control_plane: Programs of another release, by the names of those that they replace.
        snapshotter: Of the nodes' containerd. `native` copies an image for each container, which is little for the
            tests' own one. `overlayfs` does not, but cannot be used on an overlay, the root of many containers.
    """

    def __init__(
        self,
        nodes: Sequence[Node] = NODES,
        *,
        name: str = "",
        outlive_parent: bool = False,
        say: Say = lambda line: None,
        node_grace_seconds: int = ControlPlane.node_grace_seconds,
        addresses: Addresses = IPV4,
        control_plane: Mapping[str, building.Program] | None = None,
        snapshotter: str = "native",
    ) -> None:
        self.place = Place(name or str(os.getpid()))
        self.nodes: dict[str, RunningNode] = {}
        self.kubectl = Kubectl(self.place.kubeconfig, self.place.kubectl_cache)
        self._wanted = nodes
        self._outlive_parent = outlive_parent
        self._say = say
        self._node_grace_seconds = node_grace_seconds
        self._addresses = addresses
        self._programs = {program.name: program for program in building.CLUSTER} | dict(control_plane or {})
        self._snapshotter = snapshotter
        self._daemons: Daemons | None = None
        self._sandbox: Sandbox | None = None

    @property
    def logs(self) -> Path:
        return self.place.folder / "logs"

    @property
    def sandbox(self) -> Sandbox:
        assert self._sandbox is not None, "the cluster is not up"
        return self._sandbox

    @property
    def daemons(self) -> Daemons:
        assert self._daemons is not None, "the cluster is not up"
        return self._daemons

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.keep_logs()
        self.down()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into the network of the API server and the pods."""
        with self.sandbox.entered():
            yield

    def up(self) -> None:
        """Start everything, and return when pods can be scheduled on every node.

        Raises:
            ClusterError: startup failed; only the logs are left, and the message names their folder.
        """
        if reasons := reasons_against():
            raise ClusterError("; ".join(reasons))
        programs = {name: building.path_of(program) for name, program in self._programs.items()}
        remove_leftovers()
        started = time.monotonic()
        try:
            self.place.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise ClusterError(f"a cluster named {self.place.name} runs already") from None
        try:
            self._start(programs)
        except BaseException as error:
            kept = self.keep_logs()
            self.down()
            if isinstance(error, ClusterError):
                raise ClusterError(f"{error}\nlogs: {kept}") from error
            raise
        self._say(f"A cluster of {len(self.nodes)} nodes is up after {time.monotonic() - started:.1f} s")

    def down(self) -> None:
        """Stop everything and remove all files."""
        if self._sandbox is not None:
            self._sandbox.end()
        if self._daemons is not None:
            self._daemons.reap()
        self.place.remove()

    def keep_logs(self) -> Path:
        """Copy the programs' logs to a permanent folder, and return it."""
        kept = building.CACHE / "logs" / self.place.name
        shutil.rmtree(kept, ignore_errors=True)
        if self.logs.exists():
            shutil.copytree(self.logs, kept)
        return kept

    def _start(self, programs: dict[str, Path]) -> None:
        folder = self.place.folder
        self.logs.mkdir()
        self._sandbox = sandbox = Sandbox.create(folder, outlive_parent=self._outlive_parent)
        self._daemons = daemons = Daemons(sandbox, self.logs)
        make_bridge(sandbox, self._addresses)
        write_network(folder, self._addresses)
        control_plane = ControlPlane(folder, programs, self._node_grace_seconds, self._addresses)
        control_plane.write_credentials([node.name for node in self._wanted])
        control_plane.start_server(daemons)

        # Nodes need the API server only when their kubelets start.
        archive = folder / "image.tar"
        busybox, cni = shutil.which("busybox"), cni_folder()
        assert busybox is not None
        assert cni is not None
        write_image(Path(busybox), archive)
        for number, node in enumerate(self._wanted):
            home = folder / "nodes" / node.name
            port = FIRST_KUBELET_PORT + number
            running = RunningNode(node, home, port, control_plane, daemons, self._snapshotter)
            running.write_settings(cni)
            make_cgroup(running.control_group)
            running.start_containerd()
            self.nodes[node.name] = running
        for running in self.nodes.values():
            running.import_image(sandbox, archive)

        with self.entered():
            daemons.wait_for("the API server is ready", lambda: not self.kubectl.try_to("get", "--raw=/readyz").code)
            control_plane.start_controllers(daemons)
            for running in self.nodes.values():
                running.start_kubelet()
            if self._wanted:
                control_plane.start_proxy(daemons, self._wanted[0].name)
            daemons.wait_for("all nodes are ready", self._nodes_are_ready)
            self.add_extended_resources({node: running.node.extended_resources for node, running in self.nodes.items()})
            daemons.wait_for(
                "pods can be created", lambda: not self.kubectl.try_to("get", "serviceaccount", "default").code
            )

    def _nodes_are_ready(self) -> bool:
        answer = self.kubectl.try_to("get", "nodes", "--output=json")
        if answer.code:
            return False
        ready = [
            node["metadata"]["name"]
            for node in json.loads(answer.output)["items"]
            # A node stays unschedulable for a moment after it becomes ready.
            if not node["spec"].get("taints")
            and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
        ]
        return set(ready) >= set(self.nodes)

    def add_extended_resources(self, resources: Mapping[str, Mapping[str, int]]) -> None:
        """Register devices of nodes as a device plugin would; kubelets keep unknown resources.

        Args:
            resources: number of devices by node and resource.
        """
        for node, counts in resources.items():
            changes = [
                {"op": "add", "path": f"/status/{part}/{resource.replace('/', '~1')}", "value": str(count)}
                for resource, count in counts.items()
                for part in ("capacity", "allocatable")
            ]
            if changes:
                patch = ["patch", "node", node, "--subresource=status", "--type=json"]
                self.kubectl(*patch, f"--patch={json.dumps(changes)}")


def clusters() -> list[Place]:
    """Yield all clusters of this machine that run or have left files."""
    return [Place(folder.name.removeprefix(PREFIX)) for folder in sorted(FOLDERS.glob(f"{PREFIX}*"))]


def remove_leftovers() -> None:
    """Remove what clusters of killed processes have left."""
    for place in clusters():
        if place.running:
            continue
        with suppress(FileNotFoundError):
            if place.sandbox is not None or time.time() - place.folder.stat().st_mtime > STARTING_SECONDS:
                place.remove()


def make_cgroup(name: str) -> None:
    """Create a control group in every hierarchy: kubelets start only if theirs exists."""
    for top in cgroup_hierarchies():
        (top / name).mkdir(parents=True)


def cgroup_hierarchies() -> list[Path]:
    """The hierarchy of version 2, or those of version 1 (names of two controllers are links to one hierarchy)."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def remaining_cgroups(name: str) -> list[Path]:
    """Remove a cluster's control groups, and return those still in use."""
    remaining = []
    for top in cgroup_hierarchies():
        for folder, _, _ in os.walk(top / name, topdown=False):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                remaining.append(Path(folder))
    return remaining
