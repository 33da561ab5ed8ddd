"""The locks of the images: what a role needs in the tested versions, and the operator's without PyTorch."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from images import building
from images.archive import layer_sizes
from images.building import IMAGES, ROOT, Image, archive_of, is_current, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(path: str) -> dict[str, str]:
    """Return the versions that a lock pins, by package; each one has a hash."""
    pins = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:\w+(?: \\)?\n)+)", (ROOT / path).read_text(), re.M)
    assert len(pins) == (ROOT / path).read_text().count("=="), f"{path}: a package has no hash"
    return {name: version for name, version, _ in pins}


def required(role: str) -> set[str]:
    """Return the packages that pyproject.toml names for a role."""
    names: set[str] = set()
    pending = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][role]]
    while pending:
        name, extras = split(pending.pop())
        if name == PROJECT["name"]:
            pending += [item for extra in extras for item in PROJECT["optional-dependencies"][extra]]
        else:
            names.add(name)
    return names


def split(requirement: str) -> tuple[str, list[str]]:
    """Return the package of a requirement, and its extras."""
    found = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    assert found is not None
    return found[1], (found[2] or "").split(",")


@pytest.mark.parametrize("role", ["operator", "runtime"])
def test_an_image_has_what_its_role_needs_in_the_tested_versions(role: str) -> None:
    in_image, tested = locked(f"images/{role}.lock"), locked("requirements.lock")
    assert required(role) <= in_image.keys(), "make lock"
    assert {name: version for name, version in in_image.items() if tested.get(name) != version} == {}, "make lock"


def test_the_operators_image_has_no_pytorch() -> None:
    assert "torch" in locked("images/runtime.lock")
    assert not {"torch", "pyarrow", "numba", "optuna"} & locked("images/operator.lock").keys()


def test_what_an_image_is_built_with_is_pinned() -> None:
    lines = (ROOT / "images" / "build.in").read_text().splitlines()
    wanted = {split(line)[0] for line in lines if line and not line.startswith("#")}
    assert wanted <= locked("images/build.lock").keys()


def test_the_chart_uses_the_operators_image_by_default() -> None:
    chart = ROOT / "helm" / "heterps"
    [repository] = re.findall(r"repository: (\S+)", (chart / "values.yaml").read_text())
    [version] = re.findall(r"appVersion: \"?([\w.]+)", (chart / "Chart.yaml").read_text())
    assert name_of("operator") == f"{repository}:{version}"


def test_an_image_is_current_until_one_of_its_files_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setattr(building, "FOLDER", tmp_path / "built")
    images = {
        "operator": Image("Dockerfile", ("README.md", "operator"), "code", disk=0),
        "example": Image("Dockerfile", ("example",), "model", disk=0, parent="operator"),
    }
    monkeypatch.setattr(building, "IMAGES", images)
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1"\n')
    code = tmp_path / "operator" / "package" / "module.py"
    for folder in (tmp_path / "built", code.parent, code.parent / "__pycache__"):
        folder.mkdir(parents=True)
    code.write_text("one")
    builder = building.Builder(lambda words: None)
    built: list[str] = []

    def run(command: list[str]) -> None:
        if "push" in command:
            archive = Path(command[-1].split(":")[1])
            archive.touch()
            built.append(archive.stem)

    monkeypatch.setattr(builder, "_run", run)
    assert not is_current("operator")
    builder.build("operator", "base")
    assert is_current("operator")
    (code.parent / "__pycache__" / "module.pyc").write_text("compiled")
    assert is_current("operator")
    code.write_text("two")
    assert not is_current("operator")
    builder.build("operator", "base")
    assert is_current("operator")
    archive_of("operator").unlink()
    assert not is_current("operator")

    (tmp_path / "example").write_text("model")
    built.clear()
    builder.build("example", "base")
    assert built == ["operator", "example"], "its parent first"
    (tmp_path / "example").write_text("another model")
    assert (is_current("operator"), is_current("example")) == (True, False)
    builder.build("example", "base")
    assert built == ["operator", "example", "example"]
    code.write_text("three")
    assert not is_current("example"), "its parent has changed"


def test_a_build_that_would_fill_the_disk_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "FOLDER", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3.5e9))
    said: list[str] = []
    with pytest.raises(building.BuildError, match=f"takes 4 GB of disk, and 3.5 GB are free at {tmp_path}: make room"):
        building.Builder(said.append).build("operator", "base")
    assert said == []


def test_an_image_is_made_from_files_that_exist() -> None:
    for image in IMAGES.values():
        paths = [image.dockerfile, f"{image.dockerfile}.dockerignore", *image.made_from]
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_sizes_of_layers(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        manifest = json.dumps([{"Layers": ["base.tar", "own.tar"]}]).encode()
        for name, contents in (("own.tar", b"12345"), ("base.tar", b"123"), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))
    assert layer_sizes(tmp_path / "image.tar") == [3, 5]
