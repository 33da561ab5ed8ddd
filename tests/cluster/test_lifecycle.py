"""Clusters start and stop as documented, and leave nothing."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cluster import building
from tests.cluster.cluster import Cluster, Place, cgroup_hierarchies, remove_leftovers
from tests.cluster.errors import ClusterError
from tests.cluster.images import IMAGE, write_image
from tests.cluster.kubectl import check_test_context, current_context, wait_until
from tests.cluster.nodes import Node
from tests.cluster.pods import python_folders, shell_pod


def names(place: Place) -> list[str]:
    """Return processes and control groups with a cluster's name."""
    found = [str(top / place.folder.name) for top in cgroup_hierarchies() if (top / place.folder.name).exists()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{place.folder}/" in command:
            found.append(command)
    return found


def test_a_second_cluster_runs_beside_the_first_and_leaves_nothing(own_cluster: Cluster) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    cluster = Cluster([Node("alone")], name="second")

    def use_and_fail() -> None:
        with cluster, cluster.entered():
            assert names(cluster.place)
            cluster.kubectl.apply(shell_pod("left", "sleep 600"))
            cluster.kubectl.wait_for_phase("left", "Running")
            assert [node["metadata"]["name"] for node in cluster.kubectl.items("nodes")] == ["alone"]
            raise RuntimeError("a test fails")

    with pytest.raises(RuntimeError, match="a test fails"):
        use_and_fail()
    assert len(own_cluster.kubectl.items("nodes")) == len(own_cluster.nodes)
    kept = building.CACHE / "logs" / "second"
    assert "apiserver.log" in {log.name for log in kept.iterdir()}
    shutil.rmtree(kept)
    assert not cluster.place.folder.exists()
    assert names(cluster.place) == []
    assert Path("/proc/self/mounts").read_text() == mounts


def test_a_start_that_fails_says_why_and_leaves_nothing(own_cluster: Cluster) -> None:
    cluster = Cluster([Node("bad name")], name="failing")
    with pytest.raises(ClusterError, match="bad name"):
        cluster.up()
    assert not cluster.place.folder.exists()
    assert names(cluster.place) == []
    shutil.rmtree(building.CACHE / "logs" / "failing")


OWNER = """
import pathlib, sys, time
from tests.cluster.daemons import Daemons
from tests.cluster.sandbox import Sandbox
folder = pathlib.Path(sys.argv[1])
(folder / "logs").mkdir(parents=True)
sandbox = Sandbox.create(folder, outlive_parent=False)
program = "import time; print('up', flush=True); time.sleep(600)"
daemon = Daemons(sandbox, folder / "logs").start("daemon", [sys.executable, "-c", program, f"{folder}/"])
while "up" not in daemon.log.read_text():
    time.sleep(0.01)
print("up", flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_has_started_ends_with_it(own_cluster: Cluster) -> None:
    place = Place("orphan")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place.folder)], stdout=subprocess.PIPE, cwd=building.ROOT
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert place.running
        owner.kill()
    wait_until("its processes have ended", lambda: not place.running and not names(place), 20)
    remove_leftovers()
    assert not place.folder.exists()
    assert own_cluster.place.running


def test_two_clusters_of_one_name_are_refused(own_cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="runs already"):
        Cluster(name=own_cluster.place.name).up()
    assert own_cluster.place.running


@pytest.mark.parametrize(
    "context", ["kind-heterps", "minikube", "k3d-a", "heterps-test", "admin@test.example", "ci_tests"]
)
def test_contexts_of_test_clusters_are_taken(context: str) -> None:
    check_test_context(context)


@pytest.mark.parametrize("context", ["production", "gke_company_europe_ctr", "latest", "attestation", "contest-1"])
def test_other_contexts_are_refused(context: str) -> None:
    with pytest.raises(ClusterError, match=f"{context!r} does not look like a test cluster's"):
        check_test_context(context)


def test_a_kubeconfig_must_name_a_context(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with pytest.raises(ClusterError, match="cannot be read"):
        current_context(file)
    file.write_text("clusters: []")
    with pytest.raises(ClusterError, match="names no current-context"):
        current_context(file)
    file.write_text("current-context: minikube")
    assert current_context(file) == "minikube"


def test_the_image_holds_a_shell(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"program")
    for name in ("one.tar", "other.tar"):
        write_image(busybox, tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as image:
        [manifest] = json.loads(read(image, "manifest.json"))
        assert manifest["RepoTags"] == [IMAGE]
        with tarfile.open(fileobj=io.BytesIO(read(image, *manifest["Layers"]))) as layer:
            assert layer.getmember("bin/busybox").mode == 0o755
            assert layer.getmember("bin/sh").linkname == "busybox"


def test_no_folder_of_a_pod_lies_inside_another() -> None:
    folders = python_folders()
    assert Path("/usr") in folders
    assert any(building.ROOT in (folder, *folder.parents) or folder in building.ROOT.parents for folder in folders)
    assert [(a, b) for a in folders for b in folders if a in b.parents] == []


def test_a_program_of_another_version_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(building.MODULES, tmp_path / "binaries")
    before = {program.name: building.path_of(program) for program in building.FOR_TESTS}
    monkeypatch.setattr(building, "MODULES", tmp_path / "binaries")
    assert {program.name: building.path_of(program) for program in building.FOR_TESTS} == before
    with (tmp_path / "binaries" / "versitygw" / "go.sum").open("a") as file:
        file.write("more\n")
    changed = [program.name for program in building.FOR_TESTS if building.path_of(program) != before[program.name]]
    assert changed == ["versitygw"]
    with (tmp_path / "binaries" / "kubernetes" / "coredns" / "main.go").open("a") as file:
        file.write("// more\n")
    modules = {program.module for program in building.FOR_TESTS if building.path_of(program) != before[program.name]}
    assert modules == {"kubernetes", "versitygw"}


def read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None
    return member.read()
