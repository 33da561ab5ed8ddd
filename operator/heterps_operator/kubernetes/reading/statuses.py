"""Values of statuses that several readers need. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from heterps_operator.documents import Json

__all__ = ["find_condition", "unix_seconds"]


def find_condition(status: Json, kind: str) -> Json:
    """Return the condition of a type; empty if there is none."""
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def unix_seconds(timestamp: Any) -> float | None:
    """Parse a timestamp of the API; None for none, and for the year 1, which means none."""
    if not timestamp:
        return None
    seconds = datetime.fromisoformat(str(timestamp)).timestamp()
    return seconds if seconds > 0 else None
