"""`make demo-cluster ARGUMENTS=--from-images`: the chart and the flights example as users install them.

Nothing of this machine is in the pods but a folder, which a PersistentVolume offers as storage.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from images.building import Builder, BuildError, archive_of, is_current

from tests.cluster.building import ROOT
from tests.cluster.cluster import FOLDERS, NODES, Cluster
from tests.cluster.demo_output import print_result, print_text, say, watch
from tests.cluster.errors import ClusterError
from tests.cluster.helm import CHART, Helm
from tests.cluster.kubectl import Kubectl

__all__ = ["show_from_images"]

_MANIFEST = ROOT / "examples" / "flights" / "cluster.yaml"
_IMAGES = ("operator", "flights")
_NODES = NODES[:2]  # with the cores of one, servers, workers and the coordinator of a job do not fit
_NAMESPACE = "heterps-system"
_BUILD_GB, _RUN_GB = 25, 30
_VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: flights}}
spec:
  accessModes: [ReadWriteMany]
  capacity: {{storage: 2Gi}}
  hostPath: {{path: "{path}", type: Directory}}
"""


def show_from_images(folder: Path) -> int:
    """Run the demonstration; return the exit code.

    Args:
        folder: for the volume.

    Raises:
        ClusterError: the images cannot be built, or the disk is too small.
    """
    _build_images()
    _need_disk(FOLDERS, _RUN_GB, "two nodes with the images")
    shared = folder / "shared"
    shared.mkdir(parents=True)
    shared.chmod(0o777)  # for the image's user
    with Cluster(_NODES, name="demo", say=say, snapshotter=_snapshotter(FOLDERS)) as cluster:
        say("Importing the images into the nodes (a few minutes)")
        for node in cluster.nodes.values():
            for image in _IMAGES:
                node.import_image(cluster.sandbox, archive_of(image))
        with cluster.entered():
            return _install_and_train(cluster.kubectl, Helm(folder / "helm"), shared)


def _build_images() -> None:
    if all(is_current(image) for image in _IMAGES):
        return
    say("Building the images: eight minutes on two cores, once")
    _need_disk(ROOT, _BUILD_GB, "the images")
    try:
        builder = Builder(say)
        base = builder.default_base()
        for image in _IMAGES:
            if not is_current(image):
                builder.build(image, base)
    except BuildError as error:
        raise ClusterError(str(error)) from None


def _snapshotter(folder: Path) -> str:
    """Return containerd's snapshotter for a folder: without overlays, each container gets a copy of its image."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        names = [Path(place, name) for name in ("lower", "upper", "work", "merged")]
        for name in names:
            name.mkdir()
        lower, upper, work, merged = map(str, names)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mounted = subprocess.run(
            ["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
        )
        if mounted.returncode:
            say(f"{folder} cannot hold overlays: each container copies its image, which takes long and 6 GB")
            return "native"
        subprocess.run(["umount", merged], check=True)
        return "overlayfs"


def _need_disk(folder: Path, gigabytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise ClusterError(f"{folder} has {free:.0f} GB free; {what} need about {gigabytes} GB")


def _install_and_train(kubectl: Kubectl, helm: Helm, shared: Path) -> int:
    kubectl("apply", "--filename=-", text=_VOLUME.format(path=shared))  # which a storage class would make
    install = ("install", "heterps", str(CHART), f"--namespace={_NAMESPACE}", "--create-namespace")
    say(f"helm install heterps helm/heterps --namespace {_NAMESPACE} --create-namespace --wait")
    installed = helm(*install, "--wait", "--timeout=300s", kubeconfig=kubectl.kubeconfig)
    if installed.code:
        raise ClusterError(installed.errors)
    say("kubectl apply -f examples/flights/cluster.yaml")
    print_text(kubectl("apply", f"--filename={_MANIFEST}"))
    say("kubectl get hpsj flights --watch")
    phase = watch(kubectl, "flights")
    say("kubectl get pods,devicepools")
    print_text(kubectl("get", "pods", "--output=wide"))
    print_text(kubectl("get", "devicepools"))
    say("kubectl describe hpsj flights")
    print_text(kubectl("describe", "heterpsjob", "flights"))
    print_result(kubectl, "flights", shared)
    return 0 if phase == "Succeeded" else 1
