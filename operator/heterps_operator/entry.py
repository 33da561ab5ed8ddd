"""The start of the `heterps` command: Ctrl-C ends it in order also while its modules are imported."""

from __future__ import annotations

__all__ = ["entry"]

_INTERRUPTED = 130  # as `contract.EXIT_INTERRUPTED`, which is one of the modules to import


def entry() -> int:
    """Run the command line of this process; returns the exit code."""
    try:
        from heterps_operator.__main__ import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED
