"""What members say of themselves, in a form that the status document and events may have.

Reasons are names of exceptions, and messages quote what users have named: a file, for example, whose name is no
Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["as_reason", "as_text", "take_figures"]

_MOST_CHARACTERS = 128  # of a reason, as of an event of Kubernetes
_MOST_FIGURES = 64  # names that are kept of a member
_LARGEST = 1e12  # of figures that the controller reads, such as seconds


def as_reason(text: str) -> str:
    """A reason in CamelCase: letters, digits and underscores of a text, from its first letter on."""
    kept = re.sub(r"[^A-Za-z0-9_]+", "", text).lstrip("0123456789_")
    return kept[:_MOST_CHARACTERS].rstrip("_") or "Error"


def as_text(text: str) -> str:
    """A text that can be sent: halves of surrogate pairs become question marks."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def take_figures(kept: dict[str, float], given: Mapping[str, float], largest: float = _LARGEST) -> dict[str, float]:
    """The figures that a member may report: not negative, finite, of ASCII names, of which only so many are kept.

    Args:
        kept: what is known of the member.
        given: what it reports.
        largest: value of a figure.
    """
    free = _MOST_FIGURES - len(kept)
    taken = {}
    for name, value in given.items():
        if 0.0 <= value <= largest and name.isascii() and (name in kept or free > 0):
            taken[name] = value
            free -= name not in kept
    return taken
