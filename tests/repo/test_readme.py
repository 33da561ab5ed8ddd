"""Commands, options and files named in the README and docs/architecture.md exist, and what it quotes is printed."""

from __future__ import annotations

import functools
import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from experiments.headline import screen

from heterps_operator.__main__ import main
from heterps_operator.api.manifest import load_manifest

ROOT = Path(__file__).parents[2]
GUIDES = ("README.md", "docs/tutorial.md", "docs/cli.md", "examples/flights/README.md")


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


@functools.cache
def help_of(verb: str) -> str:
    """Return the output of `heterps VERB --help`; empty if there is no such command."""
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        main([verb, "--help"])
    return shown.getvalue()


@pytest.mark.parametrize("name", GUIDES)
def test_every_command_in_a_guide_exists_with_its_options(name: str) -> None:
    commands = re.findall(r"(?:^|`)heterps ([a-z]+)([^\n`]*)", text_of(name), re.M)
    assert commands
    for verb, rest in commands:
        shown = help_of(verb)
        assert shown, f"heterps {verb} is no command"
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest.partition("#")[0]):
            assert option in shown, f"heterps {verb} has no {option}"


def test_every_make_target_in_the_readme_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text_of("README.md"), re.M))
    assert {"demo", "test"} <= named
    assert named <= set(targets)


def test_the_readme_shows_what_the_demo_ends_with() -> None:
    """A model's block of the last screen, word by word, and the command that prints it."""
    [shown] = [
        block for block in re.findall(r"```\n(.*?)```", text_of("README.md"), re.S) if "cores and cards" in block
    ]
    assert " ".join(shown.split()) in " ".join(screen(80).split())
    assert "-m experiments.headline`" in text_of("README.md")
    demo = text_of("Makefile").partition("\ndemo: ")[2].partition("\n\n")[0]
    assert "-m experiments.headline" in demo


def test_the_map_names_existing_modules() -> None:
    text = text_of("docs/architecture.md")
    roots = [ROOT, *(ROOT / folder for folder in ("operator/heterps_operator", "runtime/heterps_runtime", "operator"))]
    named = re.findall(r"`([\w/]+\.py|[\w/]+/)`", text)
    assert len(named) > 40
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_the_map_covers_every_package() -> None:
    table = text_of("docs/architecture.md").partition("## Packages")[2].partition("\n## ")[0]
    packages = {
        ".".join(path.parent.relative_to(ROOT / root).parts)
        for root in ("operator", "runtime")
        for path in (ROOT / root).rglob("__init__.py")
    }
    roots = {"heterps_operator", "heterps_planner", "heterps_runtime"}
    assert set(re.findall(r"^\| `([\w.]+)` \|", table, re.M)) == packages - roots


def test_every_page_is_in_the_index() -> None:
    index = text_of("docs/README.md")
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert pages
    assert [page for page in pages if f"({page})" not in index] == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_the_job_file_of_a_guide_is_valid(name: str, tmp_path: Path) -> None:
    [manifest] = re.findall(r"```yaml\n(.*?)```", text_of(name), re.S)
    assert [document["kind"] for document in yaml.safe_load_all(manifest)] == ["DevicePool", "HeterPSJob"]
    (tmp_path / "job.yaml").write_text(manifest)
    assert load_manifest(tmp_path / "job.yaml").job["metadata"]["name"] == "ctr"
