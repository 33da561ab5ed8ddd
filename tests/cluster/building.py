"""Programs and schemas for the tests of a cluster, built from Go modules of pinned versions.

Each folder of `binaries/` is a Go module: its `go.mod` and `go.sum` pin every version and hash. Programs of one module
are built with the same versions of libraries, which are compiled once for all of them. Products are stored in
`.cache/cluster/bin`, under a name derived from their inputs: another version is another file. Tests only use them:
their network leads nowhere, and the machine need not have Go's sources by then.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.golang import COMPILED, go, go_problem

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "binaries"
CACHE = ROOT / ".cache" / "cluster"

# Without the C library: programs run on any machine. Without symbols: half the size.
LINKER_FLAGS = "-s -w"
# The linker omits debug information: compiling without it takes a sixth less time and a quarter less disk.
COMPILER_FLAGS = "all=-dwarf=false"
# Build time of each module from scratch on one core (s).
CPU_SECONDS = {
    "kubernetes": 1100,
    "schemas": 60,
    "kwok": 120,
    "versitygw": 90,
    "fake-gcs-server": 95,
    "kubernetes-oldest": 500,
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """A program, the module that it is built in, and its Go package."""

    name: str
    module: str
    package: str

    @property
    def output(self) -> str:
        """Go's name for it: the last word of its package that is not a version."""
        return re.sub(r"/v\d+$", "", self.package).rpartition("/")[2]


def of_kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


KUBECTL = of_kubernetes("kubectl")
# Programs of one module are adjacent, as they are built at once.
CLUSTER = (
    of_kubernetes("kube-apiserver"),
    of_kubernetes("kubelet"),
    of_kubernetes("kube-controller-manager"),
    of_kubernetes("kube-scheduler"),
    of_kubernetes("kube-proxy"),
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Program("coredns", "kubernetes", "./coredns"),
    KUBECTL,
)
# A control plane of the oldest supported Kubernetes, by the names of what it replaces: `test_oldest.py`. Its kubelet
# would add minutes to the build.
OLDEST = {
    name: Program(f"{name}-oldest", "kubernetes-oldest", f"k8s.io/kubernetes/cmd/{name}")
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
}
HELM = Program("helm", "kubernetes", "helm.sh/helm/v4/cmd/helm")
# The queue of jobs in tests of quota: `kueue.py`.
KUEUE = Program("kueue", "kubernetes", "sigs.k8s.io/kueue/cmd/kueue")
# Generates the schemas of other projects' resources: `schemas.py`.
CONTROLLER_GEN = Program("controller-gen", "schemas", "sigs.k8s.io/controller-tools/cmd/controller-gen")
# An object store with the interface of S3: `object_store.py`.
VERSITYGW = Program("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw")
# A store with the interface of Google Cloud Storage: `stores.py`.
FAKE_GCS = Program("fake-gcs-server", "fake-gcs-server", "github.com/fsouza/fake-gcs-server")
FOR_TESTS = (*CLUSTER, HELM, KUEUE, CONTROLLER_GEN, VERSITYGW, FAKE_GCS, *OLDEST.values())
# Fake nodes and pods for the benchmark of the operator.
KWOK = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok")


def kubernetes_version(module: str = "kubernetes") -> str:
    """The Kubernetes version that a `go.mod` pins, such as v1.34.4."""
    match = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", (MODULES / module / "go.mod").read_text(), re.M)
    assert match
    return match[1]


def linker_flags(module: str) -> str:
    """Return linker flags: programs of Kubernetes read their version from them, and clients adapt to it.

    Helm reads the version there for which it renders charts without a cluster.
    """
    if module not in ("kubernetes", "kubernetes-oldest"):
        return LINKER_FLAGS
    version = kubernetes_version(module)
    major, minor, _ = version.removeprefix("v").split(".")
    kubernetes, helm = "k8s.io/component-base/version", "helm.sh/helm/v4/pkg/chart/common"
    stamps = {
        f"{kubernetes}.gitVersion": version,
        f"{kubernetes}.gitMajor": major,
        f"{kubernetes}.gitMinor": minor,
        f"{helm}.k8sVersionMajor": major,
        f"{helm}.k8sVersionMinor": minor,
    }
    return " ".join([LINKER_FLAGS, *(f"-X {name}={value}" for name, value in stamps.items())])


def folder_of(module: str) -> Path:
    """Return the folder of a module's products for its current contents."""
    digest = hashlib.sha256(linker_flags(module).encode())
    for source in sorted(path for path in (MODULES / module).rglob("*") if path.is_file()):
        digest.update(str(source.relative_to(MODULES)).encode() + b"\0" + source.read_bytes())
    return CACHE / "bin" / f"{module}-{digest.hexdigest()[:12]}"


def path_of(program: Program) -> Path:
    """Return the path of a built program."""
    return folder_of(program.module) / program.name


def missing(programs: Sequence[Program] = CLUSTER) -> list[Program]:
    """Return the programs that are not built yet."""
    return [program for program in programs if not path_of(program).exists()]


def build(programs: Sequence[Program], say: Say) -> dict[str, Path]:
    """Build missing programs, and return the path of each program.

    Raises:
        ClusterError: no suitable Go is installed, or the build fails.
    """
    if missing(programs):
        if problem := go_problem():
            raise ClusterError(problem)
        with one_at_a_time(say):
            _build(missing(programs), say)
    return {program.name: path_of(program) for program in programs}


def update(say: Say) -> None:
    """Rewrite `go.mod` and `go.sum` after a version in a `go.mod` was changed by hand.

    With a new Kubernetes, also change the versions of its `replace` lines: v1.34.4 goes with v0.34.4.
    """
    for module in sorted(MODULES.iterdir()):
        say(f"go mod tidy in {module.relative_to(ROOT)}")
        go(["mod", "tidy"], module, "-mod=mod")


@contextmanager
def one_at_a_time(say: Say) -> Iterator[None]:
    """Keep other processes from building inside the block; wait for running builds."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "building.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another build is running: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(programs: Sequence[Program], say: Say) -> None:
    """Build programs, all of a module at once; sources are fetched while earlier modules are compiled."""
    modules = [(module, list(group)) for module, group in groupby(programs, lambda program: program.module)]
    if not modules:
        return
    minutes = sum(CPU_SECONDS[module] for module, _ in modules) / 60
    say(f"Building {', '.join(program.name for program in programs)}: about {minutes:.0f} minutes of one core, once")
    pool = ThreadPoolExecutor(1)
    try:
        sources = [pool.submit(_fetch, module, group) for module, group in modules]
        for (module, group), fetched in zip(modules, sources, strict=True):
            started = time.monotonic()
            fetched.result()
            waited = time.monotonic() - started
            _build_module(module, group)
            names = ", ".join(program.name for program in group)
            say(f"  {names}: {time.monotonic() - started:.0f} s, {waited:.0f} s of it waiting for sources")
        # They would save time only when a version changes, and take more disk than everything else of the cluster.
        # After an interruption they stay: the next build goes on from there.
        shutil.rmtree(COMPILED, ignore_errors=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch(module: str, programs: Sequence[Program]) -> None:
    """Download the sources of programs, and of all their imports, into Go's module cache."""
    go(["list", "-deps", *(program.package for program in programs)], MODULES / module)


def _build_module(module: str, programs: Sequence[Program]) -> None:
    unfinished = CACHE / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    flags = ["-trimpath", "-buildvcs=false", "-gcflags", COMPILER_FLAGS, "-ldflags", linker_flags(module)]
    go(["build", *flags, "-o", f"{unfinished}/", *(program.package for program in programs)], MODULES / module)
    folder_of(module).mkdir(parents=True, exist_ok=True)
    for program in programs:
        (unfinished / program.output).replace(path_of(program))
