"""Build images with buildah, which needs no daemon and no container runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["ROLES", "BuildError", "Builder", "archive_of", "missing_programs", "name_of"]

ROOT = Path(__file__).parent.parent
ROLES = ("operator", "runtime")
FOLDER = ROOT / ".cache" / "images"
_REGISTRY = "ghcr.io/heterps"  # where the chart looks by default
DEBIAN = "localhost/heterps/base:bookworm"
# What both roles need of Debian; a python image has the same.
_DEBIAN_PACKAGES = ("ca-certificates", "python3", "python3-venv", "tzdata")
_WITHOUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d/debian.sources"))
_PIP = ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")
_CERTIFICATES = Path("/etc/ssl/certs")


class BuildError(Exception):
    """An image cannot be built; says what to do."""


def missing_programs(base: str | None) -> list[str]:
    """Return the programs that a build needs and this machine lacks; their Debian packages have the same names."""
    return [name for name in ("buildah", *(("mmdebstrap",) if base is None else ())) if shutil.which(name) is None]


def name_of(role: str) -> str:
    """Return the name and tag of a role's image, which the chart uses by default."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"{_REGISTRY}/{role}:{project['version']}"


def archive_of(role: str) -> Path:
    """Return where the archive of a role's image lies once it is built."""
    return FOLDER / f"{role}.tar"


class Builder:
    """Builds images into `.cache/images`.

    Args:
        say: is told what happens.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        FOLDER.mkdir(parents=True, exist_ok=True)
        # vfs works on every file system, also inside a container.
        self._buildah = ["buildah", "--storage-driver=vfs", f"--root={FOLDER}/storage", f"--runroot={FOLDER}/run"]

    def pull(self, base: str) -> None:
        """Fetch a base image.

        Raises:
            BuildError: its registry cannot be reached, or does not have it.
        """
        self._run([*self._buildah, "pull", "--quiet", base])

    def make_base(self) -> str:
        """Make a base image of Debian's packages, unless there is one; returns its name.

        Raises:
            BuildError: a program fails; with its last output.
        """
        found = subprocess.run([*self._buildah, "inspect", "--type=image", DEBIAN], capture_output=True, check=False)
        if found.returncode == 0:
            return DEBIAN
        self._say("making a base image of Debian's packages (about a minute, once)")
        context = FOLDER / "base"
        context.mkdir(exist_ok=True)
        self._run([
            "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(_DEBIAN_PACKAGES)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT),
            "bookworm", str(context / "base.tar"), *(str(path) for path in _SOURCES if path.exists()),
        ])  # fmt: skip
        (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        self._run([*self._buildah, "bud", "--quiet", f"--tag={DEBIAN}", str(context)])
        return DEBIAN

    def build(self, role: str, base: str) -> None:
        """Build the image of a role, and its archive for `docker load` and `ctr images import`.

        Args:
            role: one of `ROLES`.
            base: image that has been pulled or made.

        Raises:
            BuildError: a program fails; with its last output.
        """
        name, archive = name_of(role), archive_of(role)
        arguments = {"BASE": base, "ROLE": role, "VERSION": name.rpartition(":")[2]}
        arguments |= {setting: os.environ.get(setting, "") for setting in _PIP}
        # Mirrors may have certificates that only this machine trusts.
        trusted = [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.is_dir() else []
        self._say(f"building {name}")
        self._run([
            *self._buildah, "bud", "--quiet", "--isolation=chroot", "--pull-never", *trusted,
            *(f"--build-arg={key}={value}" for key, value in arguments.items() if value),
            f"--ignorefile={ROOT}/images/Dockerfile.dockerignore", f"--file={ROOT}/images/Dockerfile",
            f"--tag={name}", str(ROOT),
        ])  # fmt: skip
        archive.unlink(missing_ok=True)
        self._run([*self._buildah, "push", "--quiet", name, f"docker-archive:{archive}:{name}"])

    def _run(self, command: Sequence[str]) -> None:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode:
            words = "\n".join(ran.stdout.splitlines()[-10:])
            program = next(word for word in command[1:] if not word.startswith("-"))
            raise BuildError(f"{command[0]} {program} failed:\n{words}")
