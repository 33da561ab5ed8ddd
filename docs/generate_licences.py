# ruff: noqa: INP001  # a script beside what it writes, not a package
"""Write docs/licences.md: the licences of all packages that an installation of HeterPS brings.

    python docs/generate_licences.py

The licences are those that the installed packages' metadata name.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["PERMITTED", "installed", "licence_of", "refused", "render"]

PAGE = Path(__file__).parent / "licences.md"

# SPDX identifiers, and why a package under the licence may be required.
_PERMISSIVE = "permissive: keep the notice"
_NVIDIA = "NVIDIA's terms for CUDA; PyTorch's package for Linux requires them, HeterPS contains none of them"
PERMITTED = {
    **dict.fromkeys(
        (
            "0BSD",
            "Apache-2.0",
            "BSD",
            "BSD-2-Clause",
            "BSD-3-Clause",
            "BSL-1.0",
            "CC0-1.0",
            "ISC",
            "MIT",
            "MIT-0",
            "MIT-CMU",
        ),
        _PERMISSIVE,
    ),
    **dict.fromkeys(("PSF-2.0", "Zlib", "LLVM-exception"), _PERMISSIVE),
    "MPL-2.0": "copyleft for its own files only; used unchanged",
    "LicenseRef-NVIDIA-Proprietary": _NVIDIA,
}
# What metadata say instead of an identifier.
_IDENTIFIERS = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
# Packages whose metadata name no licence, and where it stands.
_ELSEWHERE = {
    "cel-python": ("Apache-2.0", "says so in its file LICENSE"),
    "hdfs-native": ("Apache-2.0", "says so in its bill of materials"),
    "cuda-toolkit": ("LicenseRef-NVIDIA-Proprietary", "has no files, only requires NVIDIA's others"),
}
_LONGEST = 60  # characters of a name; longer values are the text of a licence


def installed(package: str = "heterps", extras: tuple[str, ...] = ("all",)) -> dict[str, Distribution]:
    """Return a package's dependencies, by normalised name, with theirs; those for other platforms are left out."""
    found: dict[str, Distribution] = {}
    visited: set[tuple[str, str]] = set()
    waiting = [(package, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in visited:
            continue
        visited.add((name, extra))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # the lock has no such package: its marker depends on something else
        for text in found[name].requires or ():
            required = Requirement(text)
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                waiting += [(_normalised(required.name), other) for other in ("", *required.extras)]
    del found[package]
    return dict(sorted(found.items()))


def licence_of(package: Distribution) -> str:
    """Return the SPDX expression of a package's licence; empty if its metadata name none."""
    metadata = package.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    given = metadata["License"] or ""
    plain = given if len(given) <= _LONGEST and "\n" not in given else ""
    name = metadata["License-Expression"] or plain or next(iter(classifiers), "")
    known = _ELSEWHERE.get(_normalised(metadata["Name"]), (name, ""))[0]
    return _IDENTIFIERS.get(name or known, name or known)


def refused(expression: str) -> list[str]:
    """Return the parts of an SPDX expression that are not permitted; without an expression, that there is none."""
    parts = [part for part in re.split(r" (?:AND|OR|WITH) |[()]", expression) if part]
    return [part for part in parts if part not in PERMITTED] if parts else ["no licence"]


def render() -> str:
    """Return the page."""
    lines = [
        "# Licences",
        "",
        "HeterPS has the Apache License 2.0. Installed with all extras, on Linux, it brings the packages below.",
        "`python docs/generate_licences.py` writes this page from the metadata of the packages in `requirements.lock`.",
        "A test fails if the page is out of date, or if a package has no licence or one that is not permitted.",
        "Tools for development and tests are not part of an installation, nor are the Go programs of the test cluster",
        "(Kubernetes, etcd, CoreDNS, Helm, Kueue, kwok, versitygw: Apache-2.0; fake-gcs-server: BSD-2-Clause), which",
        "tests build from source, nor Azurite (MIT) and Hadoop (Apache-2.0), which tests fetch.",
        "",
        "| licence | permitted because |",
        "|---|---|",
        *(f"| {name} | {reason} |" for name, reason in sorted(PERMITTED.items())),
        "",
        "`BSD` means that the metadata do not say which of the BSD licences it is. Packages that name no licence: "
        + "; ".join(f"{name} ({where})" for name, (_, where) in _ELSEWHERE.items())
        + ".",
        "",
        "| package | licence |",
        "|---|---|",
        *(f"| {name} | {licence_of(package)} |" for name, package in installed().items()),
    ]
    return "\n".join(lines) + "\n"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    PAGE.write_text(render())
