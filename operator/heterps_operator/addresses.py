"""Addresses of data and checkpoints, such as `s3://bucket/folder?region=eu-central-1`. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

__all__ = ["below", "is_uri", "redacted"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# A user with a password, which may have slashes, or any user of S3.
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s@/?#]*:[^\s@]*@|([sS]3://)[^\s@/?#]*@")


def is_uri(text: str) -> bool:
    """Whether a text is an address such as `s3://bucket/folder`, and not a path."""
    return _URI.match(text) is not None


def below(folder: str, name: str) -> str:
    """Return the path or address of something in a folder; the query of an address stays at its end."""
    if not is_uri(folder):
        return f"{folder.rstrip('/')}/{name}"
    parts = urlsplit(folder)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def redacted(text: str) -> str:
    """Return a message without the credentials of addresses in it.

    Such addresses are refused, but the refusal itself, and messages of other programs, may quote them.
    """
    return _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***@", text) if "@" in text else text
