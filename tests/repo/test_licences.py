"""Every package that an installation brings has a licence that is permitted, and docs/licences.md lists it."""

from __future__ import annotations

from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType

import pytest

from tests.repo.scripts import load_script


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    return load_script("generate_licences")


class Package(Distribution):
    """A package with these metadata."""

    def __init__(self, **fields: str) -> None:
        self._metadata = Message()
        for name, value in {"Name": "x", **fields}.items():
            self._metadata[name.replace("_", "-")] = value

    @property
    def metadata(self) -> Message:  # type: ignore[override]
        return self._metadata

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def test_every_package_has_a_licence_that_is_permitted(licences: ModuleType) -> None:
    packages = licences.installed()
    assert {"numpy", "torch", "kopf", "optuna", "pyzmq"} <= packages.keys()
    assert not {"pytest", "hypothesis", "heterps"} & packages.keys()
    wrong = {name: licences.refused(licences.licence_of(package)) for name, package in packages.items()}
    assert {name: parts for name, parts in wrong.items() if parts} == {}


def test_the_page_is_up_to_date(licences: ModuleType) -> None:
    assert licences.PAGE.read_text() == licences.render(), "run `python docs/generate_licences.py`"


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        (Package(License_Expression="MIT", License="x"), "MIT"),
        (Package(License="Apache 2.0"), "Apache-2.0"),
        (Package(License="text\nof a licence", Classifier="License :: OSI Approved :: BSD License"), "BSD"),
        (Package(Name="Cel_Python"), "Apache-2.0"),
        (Package(), ""),
    ],
)
def test_a_licence_is_found_where_packages_name_it(licences: ModuleType, package: Distribution, expected: str) -> None:
    assert licences.licence_of(package) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT AND (Apache-2.0 WITH LLVM-exception OR BSD-3-Clause)", []),
        ("MIT AND GPL-3.0-only", ["GPL-3.0-only"]),
        ("", ["no licence"]),
    ],
)
def test_a_licence_that_is_not_permitted_is_named(licences: ModuleType, expression: str, expected: list[str]) -> None:
    assert licences.refused(expression) == expected
