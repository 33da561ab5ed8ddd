"""Build images with buildah, which needs no daemon and no container runtime."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["IMAGES", "BuildError", "Builder", "Image", "archive_of", "is_current", "missing_programs", "name_of"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "images"
_REGISTRY = "ghcr.io/heterps"  # where the chart looks by default
_PYTHON = "docker.io/library/python:3.11-slim-bookworm"
_DEBIAN = "localhost/heterps/base:bookworm"
# What all images need of Debian; a python image has the same.
_DEBIAN_PACKAGES = ("ca-certificates", "python3", "python3-venv", "tzdata")
_WITHOUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d/debian.sources"))
_PIP = ("PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")
_CERTIFICATES = Path("/etc/ssl/certs")
_CODE = ("LICENSE", "README.md", "crds", "images", "operator", "pyproject.toml", "runtime")
_FLIGHTS = "examples/flights"


@dataclass(frozen=True)
class Image:
    """An image that can be built.

    Attributes:
        dockerfile: beside an ignore file of the same name.
        made_from: files and folders that go into it.
        holds: what its last layer holds, for people.
        disk: free disk space that a build takes (GB), of which a third stays: vfs copies every layer.
        parent: image that it is built on; None: the base alone.
    """

    dockerfile: str
    made_from: tuple[str, ...]
    holds: str
    disk: int
    parent: str | None = None


IMAGES = {
    "operator": Image("images/Dockerfile", _CODE, "HeterPS and the packages of images/operator.lock", 4),
    "runtime": Image("images/Dockerfile", _CODE, "HeterPS, the packages of images/runtime.lock, and git", 25),
    "flights": Image(
        f"{_FLIGHTS}/Dockerfile",
        (f"{_FLIGHTS}/Dockerfile", f"{_FLIGHTS}/flights", f"{_FLIGHTS}/prepare.py", "requirements.lock"),
        "the model, and the package with the data",
        12,
        parent="runtime",
    ),
}


class BuildError(Exception):
    """An image cannot be built; says what to do."""


def missing_programs() -> list[str]:
    """Return the programs that a build needs and this machine lacks; their Debian packages have the same names."""
    return [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]


def name_of(image: str) -> str:
    """Return the name and tag of an image, which the chart and the examples use by default."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"{_REGISTRY}/{image}:{project['version']}"


def archive_of(image: str) -> Path:
    """Return where the archive of an image lies once it is built."""
    return FOLDER / f"{image}.tar"


def is_current(image: str) -> bool:
    """Whether an image is built from the files that are here now."""
    made_from = _made_from(image)
    return archive_of(image).exists() and made_from.exists() and made_from.read_text() == _fingerprint(image)


class Builder:
    """Builds images into `.cache/images`.

    Args:
        say: is told what happens.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._temporary = FOLDER / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        # vfs works on every file system, also inside a container.
        self._buildah = ["buildah", "--storage-driver=vfs", f"--root={FOLDER}/storage", f"--runroot={FOLDER}/run"]

    def pull(self, base: str) -> None:
        """Fetch a base image.

        Raises:
            BuildError: its registry cannot be reached, or does not have it.
        """
        self._run([*self._buildah, "pull", "--quiet", base])

    def default_base(self) -> str:
        """Return Python's slim image or, where that cannot be pulled, one of Debian's packages.

        Raises:
            BuildError: a program fails; with its last output.
        """
        try:
            self.pull(_PYTHON)
            return _PYTHON
        except BuildError:
            self._say(f"{_PYTHON} cannot be pulled here")
        found = subprocess.run([*self._buildah, "inspect", "--type=image", _DEBIAN], capture_output=True, check=False)
        if found.returncode:
            self._make_base()
        return _DEBIAN

    def build(self, image: str, base: str) -> None:
        """Build an image, its parent first, and its archive for `docker load` and `ctr images import`.

        Args:
            image: one of `IMAGES`.
            base: image that has been pulled or made.

        Raises:
            BuildError: the disk has too little room, or a program fails; with its last output.
        """
        wanted = IMAGES[image]
        if wanted.parent is not None and not is_current(wanted.parent):
            self.build(wanted.parent, base)
        _check_disk(image)
        name, archive, fingerprint = name_of(image), archive_of(image), _fingerprint(image)
        arguments = {"BASE": base, "ROLE": image, "VERSION": name.rpartition(":")[2]}
        if wanted.parent is not None:
            arguments["PARENT"] = name_of(wanted.parent)
        arguments |= {setting: os.environ.get(setting, "") for setting in _PIP}
        # Mirrors may have certificates that only this machine trusts.
        trusted = [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.is_dir() else []
        self._say(f"building {name}")
        for old in (archive, _made_from(image)):
            old.unlink(missing_ok=True)
        self._run([
            *self._buildah, "bud", "--quiet", "--isolation=chroot", "--pull-never", *trusted,
            *(f"--build-arg={key}={value}" for key, value in arguments.items() if value),
            f"--ignorefile={ROOT}/{wanted.dockerfile}.dockerignore", f"--file={ROOT}/{wanted.dockerfile}",
            f"--tag={name}", str(ROOT),
        ])  # fmt: skip
        self._run([*self._buildah, "push", "--quiet", name, f"docker-archive:{archive}:{name}"])
        self._run([*self._buildah, "rmi", "--prune"])  # the image that this one replaces
        _made_from(image).write_text(fingerprint)

    def _make_base(self) -> None:
        self._say("making a base image of Debian's packages (about a minute, once)")
        context = FOLDER / "base"
        context.mkdir(exist_ok=True)
        # This machine's mirrors, if it runs the same Debian.
        same = platform.freedesktop_os_release().get("VERSION_CODENAME") == "bookworm"
        sources = [str(path) for path in _SOURCES if path.exists()] if same else []
        self._run([
            "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(_DEBIAN_PACKAGES)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT),
            "bookworm", str(context / "base.tar"), *sources,
        ])  # fmt: skip
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        self._run([*self._buildah, "bud", "--quiet", f"--tag={_DEBIAN}", str(context)])
        shutil.rmtree(context)

    def _run(self, command: Sequence[str]) -> None:
        # buildah writes a layer to a temporary file first. In /var/tmp, it may fill another disk.
        environment = {**os.environ, "TMPDIR": str(self._temporary)}
        ran = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if ran.returncode:
            words = "\n".join(ran.stdout.splitlines()[-10:])
            raise BuildError(f"{command[0]} failed:\n{words}")


def _check_disk(image: str) -> None:
    """Refuse a build that would fill the disk: buildah then says no more than "read/write on closed pipe"."""
    free, needed = shutil.disk_usage(FOLDER).free, IMAGES[image].disk
    if free < needed * 1e9:
        raise BuildError(
            f"building {name_of(image)} takes {needed} GB of disk, "
            f"and {free / 1e9:.1f} GB are free at {FOLDER}: make room"
        )


def _made_from(image: str) -> Path:
    return FOLDER / f"{image}.made-from"


def _fingerprint(image: str) -> str:
    """Return a hash of all files that go into an image."""
    digest = hashlib.sha256()
    wanted = IMAGES[image]
    if wanted.parent is not None:
        digest.update(_fingerprint(wanted.parent).encode())
    for top in (ROOT / name for name in wanted.made_from):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()
