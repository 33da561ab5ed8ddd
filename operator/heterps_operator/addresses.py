"""Addresses of data and checkpoints, such as `s3://bucket/folder?region=eu-central-1`. Pure."""

from __future__ import annotations

import re

__all__ = ["below", "is_uri", "redacted"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OPTIONS = re.compile(r"[?#]")
# What precedes an @ within a word: a user with a password, which may have slashes, or any user of S3. Messages may be
# long, so no character is read more than twice.
_CREDENTIALS = re.compile(r"(?<=[A-Za-z0-9+.-]://)[^/?#:]*+:.*|(?<=[sS]3://)[^/?#]*+\Z")
_WORD = re.compile(r"\S+")
_SECRET_OPTION = re.compile(r"(?<=[?&])(sig|sas_token|account_key|client_secret)=[^&#\s\"')]+")


def is_uri(text: str) -> bool:
    """Whether a text is an address such as `s3://bucket/folder`, and not a path."""
    return _URI.match(text) is not None


def below(folder: str, name: str) -> str:
    """Return the path or address of something in a folder; the query of an address stays at its end."""
    place = folder.index("://") + len("://") if is_uri(folder) else 0
    options = _OPTIONS.search(folder, place) if place else None
    end = len(folder) if options is None else options.start()
    return f"{folder[:place]}{folder[place:end].rstrip('/')}/{name}{folder[end:]}"


def redacted(text: str) -> str:
    """Return a message without the credentials of addresses in it.

    Such addresses are refused, but the refusal itself, and messages of other programs, may quote them.
    """
    text = _SECRET_OPTION.sub(r"\1=***", text)
    return _WORD.sub(lambda word: _redacted_word(word[0]), text) if "@" in text else text


def _redacted_word(word: str) -> str:
    *users, rest = word.split("@")
    return "@".join([*(_CREDENTIALS.sub("***", user) for user in users), rest])
