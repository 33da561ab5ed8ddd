"""The documents match the repository, and contain nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Split, so that this file does not contain the strings that it searches for.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:" + "|".join(("work/(?:main|shared)", "root/", "home/[a-z]+/")) + ")")
# Package sources depend on the installing machine. Image references in Kubernetes manifests are different: they always
# name a host.
REGISTRIES = re.compile(
    r"\b(?:" + "|".join(f"{a}\\.{b}" for a, b in (
        ("pypi", "org"), ("pythonhosted", "org"), ("download.pytorch", "org"), ("npmjs", "(?:com|org)"),
        ("crates", "io"), ("proxy.golang", "org"),
    )) + r")\b"
)  # fmt: skip


def tracked_texts() -> list[tuple[str, str]]:
    """Return names and contents of all text files in git."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout or there is no git, so there are no tracked files to look at")
    texts = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            contents = path.read_bytes()
            if b"\0" not in contents:
                texts.append((name, contents.decode(errors="replace")))  # inputs of the fuzzer are any bytes
    assert len(texts) > 20
    return texts


def offending(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert offending(MACHINE_PATHS) == []


def test_no_file_names_a_package_registry() -> None:
    assert offending(REGISTRIES) == []


def test_the_guards_see_what_they_look_for() -> None:
    for line in ("cd /" + "root/x", "open('/" + "home/ann/data')", "(/" + "work/main)"):
        assert MACHINE_PATHS.search(line)
    assert not MACHINE_PATHS.search("a/" + "root/b and ./" + "work/main/x")
    assert REGISTRIES.search("https://" + "pypi." + "org/simple")
    assert not REGISTRIES.search("heterps.io")


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0].lower())


def declared_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = [
        *project["project"]["dependencies"],
        *(r for extra in project["project"]["optional-dependencies"].values() for r in extra),
        *project["build-system"]["requires"],
        *(
            line
            for file in ("requirements.in", "tests/fuzz/requirements.txt", "images/build.in")
            for line in (ROOT / file).read_text().splitlines()
            if line and not line.startswith(("#", " "))
        ),
    ]
    return {requirement_name(requirement) for requirement in requirements} - {"heterps"}


def test_every_dependency_has_its_reason_and_every_reason_its_dependency() -> None:
    rows = re.findall(
        r"^\| ([\w.-]+) \| \d+ \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/dependencies.md").read_text(), re.M
    )
    explained = {requirement_name(name) for name, reason in rows if len(reason.split()) >= 3}
    assert explained == declared_dependencies()


def imported(folder: str) -> dict[str, str]:
    """Return imported third-party modules of the code in a folder, each with a file that imports it."""
    ours = {"heterps_planner", "heterps_operator", "heterps_runtime"}
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - ours:
                found.setdefault(name, str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("operator/heterps_planner", ("planner", "bayesian")),
        ("operator/heterps_operator", ("planner", "operator")),
        ("runtime/heterps_runtime", ("runtime",)),
    ],
)
def test_a_package_imports_only_what_its_extra_names(package: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {requirement_name(r) for extra in extras for r in project["optional-dependencies"][extra]}
    allowed |= {requirement_name(r) for r in project["dependencies"]}
    distributions = packages_distributions()
    modules = imported(package)
    assert len(modules) > 1
    for module, where in modules.items():
        names = {requirement_name(name) for name in distributions.get(module, [module])}
        assert names & allowed, f"{where} imports {module}"


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "examples", "experiments", "images"])
def test_what_is_not_shipped_imports_only_what_is_declared(folder: str) -> None:
    distributions = packages_distributions()
    for module, where in imported(folder).items():
        names = {requirement_name(name) for name in distributions.get(module, [])}  # none: our own module
        assert not names or names & declared_dependencies() or "heterps" in names, f"{where} imports {module}"


def test_every_dependency_is_locked_with_hashes() -> None:
    files = ("requirements.lock", "tests/fuzz/requirements.txt", "images/build.lock")
    lock = "\n".join((ROOT / file).read_text() for file in files)
    locked = {requirement_name(name): block for name, block in re.findall(r"^([\w.-]+)==((?:.*\\\n)+.*)$", lock, re.M)}
    missing = {name for name in declared_dependencies() if "--hash=sha256:" not in locked.get(name, "")}
    assert missing == set()


def test_every_installation_compares_hashes() -> None:
    """Also that of the program which installs the others; only this project itself has none."""
    commands = [
        (name, command.split())
        for name, text in tracked_texts()
        if Path(name).name in ("Makefile", "Dockerfile")
        for command in re.split(r"\n|&&|\|\||;", text.replace("\\\n", " "))
        if re.search(r"\bpip\b.* (install|wheel|download)\b", command)
    ]
    assert {name for name, _ in commands} == {"Makefile", "images/Dockerfile", "examples/flights/Dockerfile"}
    without = [(name, words) for name, words in commands if "--require-hashes" not in words]
    wrong = [entry for entry in without if "--no-deps" not in entry[1] or entry[1][-1] not in (".", "wheels/*.whl")]
    assert wrong == []


def test_links_between_documents_lead_somewhere() -> None:
    dead = []
    for name, text in tracked_texts():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith(("#", "mailto:")):
                continue
            if not (ROOT / name).parent.joinpath(target.partition("#")[0]).exists():
                dead.append(f"{name}: {target}")
    assert dead == []


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    explained = re.findall(r"^([a-z-]+):.*## \S", makefile, re.M)
    assert sorted(phony.split()) == sorted(explained)
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[1] for line in shown.splitlines()] == explained
