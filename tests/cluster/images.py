"""The image of the test cluster, created without a registry or a builder."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "heterps.test/base:1"
COMMANDS = ("cat", "date", "echo", "hostname", "id", "ls", "nc", "nslookup", "sh", "sleep", "true", "wget")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(busybox: Path, target: Path) -> None:
    """Write an archive for `ctr images import`: a static busybox under its most used names.

    It is every pod's base and the pause container. Pods mount everything else from the machine (`pods.py`). The bytes
    depend only on the busybox.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        _add(archive, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for command in COMMANDS:
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    configuration = json.dumps({
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"]},
        "history": [{}],
    }).encode()  # fmt: skip
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as archive:
        _add(archive, name, configuration)
        _add(archive, "manifest.json", manifest)
        _add(archive, "layer.tar", layer.getvalue())


def _add(archive: tarfile.TarFile, name: str, contents: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(contents), mode
    archive.addfile(info, io.BytesIO(contents))
