"""The programs of a cluster, built from Go modules of pinned versions.

Each folder of `binaries/` is a Go module: its `go.mod` and `go.sum` pin every version and hash. They are several, not
one, so that each program is built with the versions of its libraries that its authors released it with. Programs lie in
`.cache/cluster/bin`, under a name made from what they were built from: another version is another file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "binaries"
CACHE = ROOT / ".cache" / "cluster"

# What the newest of the modules asks for.
GO_VERSION = "1.26 or later"
# Without the C library: programs that run on any machine. Without symbols: half the size.
LINKER_FLAGS = "-s -w"


@dataclass(frozen=True)
class Program:
    """A program, the module that it is built in, its Go package, and how long that takes one core from nothing (s)."""

    name: str
    module: str
    package: str
    cpu_seconds: int


def of_kubernetes(name: str, cpu_seconds: int) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", cpu_seconds)


KUBECTL = Program("kubectl", "kubectl", ".", 160)
# In this order: each one uses what those before it have compiled.
CLUSTER = (
    of_kubernetes("kube-apiserver", 640),
    of_kubernetes("kubelet", 135),
    of_kubernetes("kube-controller-manager", 80),
    of_kubernetes("kube-scheduler", 10),
    of_kubernetes("kube-proxy", 20),
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3", 15),
    Program("coredns", "coredns", ".", 190),
    KUBECTL,
)
HELM = Program("helm", "helm", "helm.sh/helm/v4/cmd/helm", 150)
CONTROLLER_GEN = Program("controller-gen", "schemas", "sigs.k8s.io/controller-tools/cmd/controller-gen", 60)
# Nodes and pods that only pretend to run, for the benchmark of the operator.
KWOK = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", 120)
FOR_TESTS = (*CLUSTER, HELM, CONTROLLER_GEN)


def kubernetes_version() -> str:
    """The version of Kubernetes that `go.mod` pins, such as v1.34.4."""
    match = re.search(
        r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes" / "go.mod").read_text(), re.M
    )
    assert match
    return match[1]


def linker_flags(program: Program) -> str:
    """Flags for the linker: programs of Kubernetes learn their version from it, clients behave by that."""
    if program.module not in ("kubernetes", "kubectl") or program.name == "etcd":
        return LINKER_FLAGS
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join([LINKER_FLAGS, *(f"-X {package}.{key}={value}" for key, value in stamps.items())])


def path_of(program: Program) -> Path:
    """Where a program lies once it is built from its module as it is now."""
    digest = hashlib.sha256(linker_flags(program).encode())
    for source in sorted((MODULES / program.module).iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return CACHE / "bin" / f"{program.module}-{digest.hexdigest()[:12]}" / program.name


def missing(programs: Sequence[Program] = CLUSTER) -> list[Program]:
    """Those that are not built yet."""
    return [program for program in programs if not path_of(program).exists()]


def build(programs: Sequence[Program], say: Callable[[str], None]) -> dict[str, Path]:
    """Build what is missing, and return where each program lies.

    Raises:
        ClusterError: there is no Go, or it fails.
    """
    if missing(programs):
        if shutil.which("go") is None:
            raise ClusterError(f"go is not installed: Go {GO_VERSION} builds the test cluster's programs")
        with _one_at_a_time(say):
            todo = missing(programs)
            minutes = sum(program.cpu_seconds for program in todo) / 60
            say(f"Building {len(todo)} programs: about {minutes:.0f} minutes of one core, once")
            for number, program in enumerate(todo, 1):
                say(f"  {program.name} ({number} of {len(todo)}, about {program.cpu_seconds} s of one core)")
                started = time.monotonic()
                _build_one(program)
                say(f"  {program.name} took {time.monotonic() - started:.0f} s")
    return {program.name: path_of(program) for program in programs}


def update(say: Callable[[str], None]) -> None:
    """Write `go.mod` and `go.sum` anew after a version in a `go.mod` was changed by hand.

    With a new Kubernetes, change the versions of its `replace` lines as well: v1.34.4 goes with v0.34.4.
    """
    for module in sorted(MODULES.iterdir()):
        say(f"go mod tidy in {module.relative_to(ROOT)}")
        _go(["mod", "tidy"], module, GOFLAGS="-mod=mod")


def _build_one(program: Program) -> None:
    target = path_of(program)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    arguments = ["build", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags(program), "-o", str(unfinished)]
    _go([*arguments, program.package], MODULES / program.module, GOFLAGS="")
    unfinished.replace(target)


def _go(arguments: Sequence[str], folder: Path, **environment: str) -> None:
    settings = {"CGO_ENABLED": "0", "GOCACHE": str(CACHE / "go-build"), "GOWORK": "off", **environment}
    ran = subprocess.run(["go", *arguments], cwd=folder, env={**os.environ, **settings}, stdout=sys.stderr, check=False)
    if ran.returncode:
        raise ClusterError(f"go {arguments[0]} failed in {folder.relative_to(ROOT)} with exit code {ran.returncode}")


@contextmanager
def _one_at_a_time(say: Callable[[str], None]) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "building.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another build is running: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
