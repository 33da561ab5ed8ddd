"""The disk cache of the compiled kernels, in a folder for each version of their sources.

numba looks at the source file of the kernel that it loads, and at no other. But the machine code contains the functions
that the kernel calls, and refers to their modules by name: after an update it would be outdated, or could not be loaded
(`No module named ...`). With a folder for each version, an old cache is not even opened. It may be deleted at any time.

A process that finds its kernels here does not load what numba needs to compile them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.core.runtime.nrt import rtsys

__all__ = ["KernelCache", "digest_of"]

_RUNTIME = Path(__file__).parents[1]


def digest_of(folders: Sequence[Path]) -> str:
    """Return a hash of the Python files of these folders, of their names and contents."""
    found = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            content = file.read_bytes()
            found.update(f"{file.relative_to(folder.parent).as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()[:16]


_VERSION = digest_of([_RUNTIME / "store", _RUNTIME / "partition"])  # all that kernels may call


class _OfThisVersion:
    """Adds the version of the sources to the folder of one of numba's locators."""

    def get_cache_path(self) -> str:
        return str(Path(super().get_cache_path(), _VERSION))  # type: ignore[misc]


class _Provided(_OfThisVersion, UserProvidedCacheLocator):
    """In `$NUMBA_CACHE_DIR`."""


class _InTree(_OfThisVersion, InTreeCacheLocator):
    """Beside the source."""


class _UserWide(_OfThisVersion, UserWideCacheLocator):
    """In the user's cache directory."""


class _Contents(CompileResultCacheImpl):
    _locator_classes = [_Provided, _InTree, _UserWide]  # noqa: RUF012


class KernelCache(FunctionCache):
    """A cache of one kernel.

    Args:
        function: the kernel's Python function.

    Raises:
        RuntimeError: no folder is writable.
    """

    _impl_class = _Contents

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code, if there is some for these types; None: there is none.

        numba would first load all that it needs to compile, scipy included: 0.35 s of a process that only runs machine
        code. Such code needs no more than the memory allocator. The compiler loads the rest itself.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
