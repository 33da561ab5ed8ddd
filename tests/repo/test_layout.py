"""Guards of the repository's layout."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_source_roots_are_not_packages() -> None:
    """`operator/__init__.py` would shadow the standard library for `python -m` in the root."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "runtime" / "__init__.py").exists()


def test_no_test_package_is_named_like_a_stdlib_module() -> None:
    packages = {path.parent.name for path in (ROOT / "tests").rglob("__init__.py")}
    assert "repo" in packages
    assert not packages & sys.stdlib_module_names


def test_every_test_folder_is_a_package() -> None:
    """Without `__init__.py`, two test files of the same name in two folders would collide."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_typed_packages_say_so() -> None:
    packages = [path.parent for root in ("operator", "runtime") for path in (ROOT / root).glob("*/__init__.py")]
    assert len(packages) == 3
    assert [package for package in packages if not (package / "py.typed").exists()] == []


def test_no_module_outgrows_500_lines() -> None:
    modules = [path for root in ("operator", "runtime") for path in (ROOT / root).rglob("*.py")]
    assert len(modules) > 20
    assert [str(path.relative_to(ROOT)) for path in modules if len(path.read_text().splitlines()) > 500] == []
