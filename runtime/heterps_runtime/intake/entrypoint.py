"""Import of entry points of the manifest, `module:callable`: the model and the loss.

An error shows the user's own exception and line.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

from heterps_runtime.intake.errors import EntrypointError
from heterps_runtime.intake.location import error_location

__all__ = ["resolve_entrypoint"]


def resolve_entrypoint(entrypoint: str, field: str) -> Any:
    """Import the object `module:name` (or `module:Class.method`).

    Args:
        entrypoint: the text in the manifest.
        field: of the manifest, for messages.

    Raises:
        EntrypointError: the text is malformed, the module cannot be imported, or it has no such name.
    """
    module_name, separator, attribute = entrypoint.partition(":")
    if not separator or not module_name or not all(part.isidentifier() for part in attribute.split(".")):
        raise EntrypointError(
            f"{field}: {entrypoint!r} is not of the form module:callable.",
            fix="write, say, flights.model:build for the function build in flights/model.py.",
        )
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise _import_failed(error, module_name, entrypoint, field) from error
    seen = module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=1)
            raise EntrypointError(
                f"{field}: {entrypoint!r}: {seen} ({_file_of(module_name)}) has no {part!r}"
                + (f"; did you mean {near[0]!r}?" if near else "."),
                fix="name a function or class that this module defines.",
            )
        found = getattr(found, part)
        seen = f"{seen}.{part}"
    return found


def _import_failed(error: Exception, module_name: str, entrypoint: str, field: str) -> EntrypointError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module_name == missing or module_name.startswith(missing + ".")):
        return EntrypointError(
            f"{field}: {entrypoint!r}: there is no module {missing!r} to import.",
            fix="put the file beside the manifest (its folder is searched first; on a cluster that of heterps submit "
            "--code) or install the package; "
            f"searched: {', '.join(path for path in sys.path[:4] if path)}, ...",
        )
    return EntrypointError(
        f"{field}: {entrypoint!r}: importing {module_name} raised {type(error).__name__}: {error}.",
        fix="make `python -c 'import " + module_name + "'` work in the manifest's folder.",
        where=error_location(error),
    )


def _file_of(module_name: str) -> str:
    return getattr(sys.modules[module_name], "__file__", None) or "built in"
