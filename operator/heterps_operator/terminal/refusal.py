"""JSON output of a command that ends before it has a report, a plan or a problem to print."""

from __future__ import annotations

import json
import sys

from heterps_operator.documents import Json

__all__ = ["write_refusal"]


def write_refusal(failure: Json, code: int) -> None:
    """Print the JSON document of a command that failed.

    Args:
        failure: as in a report (docs/cli.md).
        code: the exit code.
    """
    document = {"version": 1, "phase": "Failed", "exitCode": code, "failure": dict(failure)}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
