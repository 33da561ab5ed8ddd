"""Semantic versions (https://semver.org), ordered by precedence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

__all__ = ["Version"]

_NUMBER = r"(0|[1-9][0-9]*)"
_WORDS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORDS}))?(?:\+{_WORDS})?")


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version without its build metadata, which precedence ignores."""

    release: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version such as 1.2.3-rc.1.

        Raises:
            ValueError: it is none.
        """
        found = _VERSION.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no semantic version, such as 1.2.3")
        major, minor, patch, words = found.groups()
        return cls((int(major), int(minor), int(patch)), tuple(words.split(".")) if words else ())

    def __lt__(self, other: Version) -> bool:
        """Whether this version precedes another one."""
        return self._order() < other._order()

    def _order(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        # A prerelease comes before its release, and a number in it before a word.
        words = ((not w.isdecimal(), int(w) if w.isdecimal() else 0, w) for w in self.prerelease)
        return self.release, not self.prerelease, tuple(words)
