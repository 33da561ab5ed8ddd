"""Building and fetching the test cluster's programs, with a fake Go."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests import __main__ as runs
from tests.cluster import building, debian, fetching
from tests.cluster.building import CLUSTER, CONTROLLER_GEN, FOR_TESTS, HELM, Program, build, missing, path_of
from tests.cluster.errors import ClusterError
from tests.cluster.golang import environment, go_problem
from tests.cluster.schemas import make_schemas, schema_folder

# Writes its arguments to `asked`, and a program for each package, unless a file `broken` names the module. The program
# acts as controller-gen: it writes a schema for each package that it is given.
GO = """\
#!/bin/sh
echo "$(basename "$PWD") $1" >> "$HERE/asked"
if [ "$1" = env ]; then cat "$HERE/version"; [ -s "$HERE/version" ] || echo "i/o timeout" >&2; exit; fi
if [ "$1" = build ] && grep -qsx "$(basename "$PWD")" "$HERE/broken"; then echo "does not compile" >&2; exit 1; fi
if [ "$1" = list ] && [ -e "$HERE/unreachable" ]; then echo "i/o timeout" >&2; exit 1; fi
[ "$1" = build ] || exit 0
while [ "$1" != -o ]; do shift; done
out=$2; shift 2
for package; do
    case $package in */v3) name=server;; *) name=${package##*/};; esac
    printf '%s\\n' "#!/bin/sh" 'for a; do case $a in output:*) out=${a#output:crd:dir=};; esac; done' 'mkdir "$out"' \\
        'for a; do case $a in paths=*) echo "$a" > "$out/$(basename "$a")";; esac; done' > "$out$name"
    chmod +x "$out$name"
done
"""


class Machine:
    """A machine with the fake Go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        (folder / "bin").mkdir()
        (folder / "bin" / "go").write_text(GO)
        (folder / "bin" / "go").chmod(0o755)
        self.set("version", "go1.26.8\n")

    def set(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text)

    def asked(self, verb: str) -> list[str]:
        """Return the modules for which Go was called, in order."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[0] for line in lines if line.split()[1] == verb]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Machine(tmp_path)


def test_each_module_is_built_at_once_and_only_once(machine: Machine) -> None:
    paths = build(FOR_TESTS, machine.said.append)
    assert list(paths) == [program.name for program in FOR_TESTS]
    assert all(path.exists() for path in paths.values())
    modules = ["kubernetes", "schemas", "versitygw", "fake-gcs-server", "kubernetes-oldest"]
    assert machine.asked("build") == machine.asked("list") == modules
    build(FOR_TESTS, machine.said.append)
    assert machine.asked("build") == modules


def test_only_what_is_missing_is_built(machine: Machine) -> None:
    build(CLUSTER, machine.said.append)
    path_of(CLUSTER[0]).unlink()
    build((*CLUSTER, CONTROLLER_GEN), machine.said.append)
    assert machine.asked("build") == ["kubernetes", "kubernetes", "schemas"]


def test_a_program_has_the_name_that_go_gives_it() -> None:
    assert [Program("x", "kubernetes", package).output for package in ("./b", "a.b/c/d", "a.b/c/v3")] == ["b", "d", "c"]


def test_every_module_of_programs_has_its_time() -> None:
    assert set(building.CPU_SECONDS) == {path.name for path in building.MODULES.iterdir()}


def test_a_build_that_fails_leaves_what_was_built_before_and_nothing_half_done(machine: Machine) -> None:
    machine.set("broken", "schemas\n")
    with pytest.raises(ClusterError, match=r"^go build ended with exit code 1 in schemas:\ndoes not compile$"):
        build(FOR_TESTS, machine.said.append)
    assert {program.module for program in missing(FOR_TESTS)} == {
        "schemas", "versitygw", "fake-gcs-server", "kubernetes-oldest"
    }  # fmt: skip
    (machine.folder / "broken").unlink()
    build(FOR_TESTS, machine.said.append)
    assert missing(FOR_TESTS) == []


def test_sources_that_cannot_be_fetched_fail_the_build(machine: Machine) -> None:
    machine.set("unreachable", "")
    with pytest.raises(ClusterError, match="go list ended with exit code 1 in kubernetes:\ni/o timeout"):
        build([HELM], machine.said.append)


def test_schemas_are_a_product_of_the_build(machine: Machine) -> None:
    make_schemas(machine.said.append)
    assert {file.name for file in schema_folder().iterdir()} == {"v1", "v1alpha1", "v1beta1"}
    assert schema_folder().parent == path_of(CONTROLLER_GEN).parent
    # Everything exists: neither Go nor its sources are requested again.
    shutil.rmtree(machine.folder / "bin")
    make_schemas(machine.said.append)


def test_schemas_are_made_in_full_or_not_at_all(machine: Machine) -> None:
    build([CONTROLLER_GEN], machine.said.append)
    program = path_of(CONTROLLER_GEN)
    works = program.read_text()
    program.write_text(f"{works}echo 'unknown type' >&2; exit 1\n")
    with pytest.raises(ClusterError, match="unknown type"):
        make_schemas(machine.said.append)
    assert not schema_folder().exists()
    program.write_text(works)
    make_schemas(machine.said.append)
    assert len(list(schema_folder().iterdir())) == 3


APT = """\
#!/bin/sh
echo "$1" >> "$HERE/apt"
[ "$1" = update ] && touch "$HERE/lists" && exit
[ -e "$HERE/lists" ] || { echo "Unable to locate package $2" >&2; exit 100; }
touch "$2_1_amd64.deb"
"""
DPKG = """\
#!/bin/sh
[ -e "$HERE/damaged" ] && mkdir -p "$3/usr" && echo "unexpected end of archive" >&2 && exit 2
mkdir -p "$3/usr/bin"
for name in prometheus promtool; do echo "#!/bin/sh" > "$3/usr/bin/$name"; chmod +x "$3/usr/bin/$name"; done
"""


def test_prometheus_is_unpacked_once_and_not_installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"apt-get": APT, "dpkg-deb": DPKG}.items():
        machine.set(f"bin/{name}", text)
        (machine.folder / "bin" / name).chmod(0o755)
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in debian.PROGRAMS else found(name))
    assert debian.missing() == ["prometheus", "promtool"]
    machine.set("damaged", "")
    with pytest.raises(ClusterError, match=r"dpkg-deb --extract .* failed:\nunexpected end of archive"):
        debian.unpack(machine.said.append)
    assert debian.missing() == ["prometheus", "promtool"]
    (machine.folder / "damaged").unlink()
    for _ in range(2):
        debian.unpack(machine.said.append)
    assert debian.missing() == []
    assert (machine.folder / "apt").read_text().split() == ["download", "update", "download", "download"]
    assert {path.name for path in building.CACHE.iterdir()} == {"building.lock", "debian"}


def test_an_installed_prometheus_is_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in debian.PROGRAMS:
        machine.set(f"bin/{name}", "#!/bin/sh\n")
        (machine.folder / "bin" / name).chmod(0o755)
    debian.unpack(machine.said.append)
    assert machine.said == []
    assert debian.program("promtool") == machine.folder / "bin" / "promtool"


MVN = """\
#!/bin/sh
echo fetched >> "$HERE/mvn"
[ -e "$HERE/unreachable" ] && echo "Could not transfer artifact" && exit 1
mkdir jars && cat "$HERE/jar" > jars/server.jar
"""


def test_a_server_is_fetched_once_and_only_as_it_was_pinned(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mvn", "java"):
        machine.set(f"bin/{name}", MVN)
        (machine.folder / "bin" / name).chmod(0o755)
    packages = machine.folder / "packages" / "hdfs"
    packages.mkdir(parents=True)
    (packages / "jars.sha256").write_text(f"{hashlib.sha256(b'right').hexdigest()}  server.jar\n")
    monkeypatch.setattr(fetching, "PACKAGES", packages.parent)
    monkeypatch.setattr(fetching, "FETCHED", (fetching.HADOOP,))
    machine.set("unreachable", "")
    with pytest.raises(ClusterError, match="mvn failed in hdfs:\nCould not transfer artifact"):
        fetching.fetch(machine.said.append)
    (machine.folder / "unreachable").unlink()
    machine.set("jar", "wrong")
    with pytest.raises(ClusterError, match=r"server\.jar: not the files of jars\.sha256"):
        fetching.fetch(machine.said.append)
    assert not fetching.HADOOP.path().exists()
    machine.set("jar", "right")
    for _ in range(2):
        fetching.fetch(machine.said.append)
    assert [path.name for path in fetching.HADOOP.path().iterdir()] == ["server.jar"]
    assert (machine.folder / "mvn").read_text().split() == ["fetched"] * 3


def test_what_cannot_run_here_is_not_fetched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    fetching.fetch(machine.said.append)
    assert machine.said == []
    assert [server.missing() for server in fetching.FETCHED] == [
        "not installed (names of Debian's packages): nodejs, npm",
        "not installed (names of Debian's packages): default-jre-headless, maven",
    ]


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("go1.26.0", None),
        ("go1.27rc1", None),
        ("go2.0", None),
        ("go1.25.9", "go1.25.9 is installed: Go 1.26 or later builds the test cluster's programs"),
        ("", "go env GOVERSION says: i/o timeout: Go 1.26 or later builds the test cluster's programs"),
    ],
)
def test_a_go_that_is_too_old_is_told(machine: Machine, version: str, problem: str | None) -> None:
    machine.set("version", version)
    assert go_problem() == problem


def test_where_nothing_can_be_built_the_tests_say_so_themselves(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a build failure: nothing was tried."""
    monkeypatch.setattr(runs, "prepare_tests", lambda say: build(FOR_TESTS, say))
    for obstacle, told in [("go", "go is not installed"), ("root", "not root")]:
        with monkeypatch.context() as patch:
            if obstacle == "go":
                patch.setattr(shutil, "which", lambda name: None if name == "go" else f"/bin/{name}")
            else:
                patch.setattr(os, "geteuid", lambda: 1000)
            runs.prepare_cluster()
        assert told in capsys.readouterr().err
    assert machine.asked("build") == []


def test_where_it_can_be_built_a_failure_is_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "obstacles", list)
    monkeypatch.setattr(runs, "prepare_tests", lambda say: build(FOR_TESTS, say))
    machine.set("broken", "kubernetes\n")
    with pytest.raises(ClusterError, match="go build ended with exit code 1 in kubernetes"):
        runs.prepare_cluster()


def test_what_go_writes_can_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    assert environment()["GOFLAGS"] == "-modcacherw"
    assert environment("-mod=mod")["GOFLAGS"] == "-modcacherw -mod=mod"
