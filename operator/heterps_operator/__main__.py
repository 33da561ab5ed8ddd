"""The `heterps` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from heterps_runtime.contract import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from heterps_operator.cli.session import Programs

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, programs: Programs | None = None) -> int:
    """Run a command line; arguments and result as those of `run_command`."""
    try:
        from heterps_operator.cli.command import run_command
    except KeyboardInterrupt:  # the import takes longer than many a command
        return EXIT_INTERRUPTED
    return run_command(arguments, programs)


if __name__ == "__main__":
    sys.exit(main())
