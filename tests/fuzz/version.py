"""The version of the code that a target runs: inputs given to an earlier version prove nothing about this one."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.fuzz.target import Target

__all__ = ["SOURCES", "imports_of", "version_of"]

_ROOT = Path(__file__).parents[2]
SOURCES = (_ROOT / "operator", _ROOT / "runtime", _ROOT)  # folders that modules of the repository are imported from


def version_of(target: Target) -> str:
    """Return a digest of the target's module, and of all modules of the repository that it imports."""
    return _digest_of(f"tests.fuzz.targets.{target.name.partition('.')[0]}")


def imports_of(module: str, sources: Sequence[Path] = SOURCES) -> dict[str, Path]:
    """Return the modules that a module imports, also indirectly, with their files; itself included.

    Args:
        module: its full name.
        sources: folders to look in. Modules that are in none of them are left out.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _find(name, tuple(sources))
        if name in found or file is None:
            continue
        found[name] = file
        waiting += _imports(file)
        waiting += [name.rpartition(".")[0]]  # the package's own module is executed first
    return found


@cache
def _digest_of(module: str) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(imports_of(module).items()):
        digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _find(name: str, sources: tuple[Path, ...]) -> Path | None:
    if not name:
        return None
    for source in sources:
        place = source / name.replace(".", "/")
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _imports(file: Path) -> tuple[str, ...]:
    return tuple(_names(ast.parse(file.read_bytes())))


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that may be a module: `from a import b` names `a`, and perhaps a module `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
