"""Documents of an object in one compressed text, for jobs whose state would exceed what the API server stores. Pure.

An object with all its metadata has 1.5 MiB at most (etcd's `--max-request-bytes`). Records of thousands of processes
differ in few digits, so gzip makes them ten times shorter. One text in one object keeps a write atomic: a crash leaves
the old state or the new one, never parts of both, as several objects could.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping

__all__ = ["pack", "unpack"]

_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS  # a gzip header without a time: the same documents give the same text
_MOST_BYTES = 64 << 20  # unpacked: 100,000 processes; a small text may claim to hold any number


def pack(documents: Mapping[str, str]) -> str:
    """Return documents as one text: base64 of the gzip of a JSON object.

    Args:
        documents: texts by name.
    """
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    text = json.dumps(dict(documents), separators=(",", ":")).encode()
    return base64.b64encode(compressor.compress(text) + compressor.flush()).decode()


def unpack(text: str) -> dict[str, str]:
    """Return the documents that `pack` was given.

    Raises:
        ValueError: the text is not the result of `pack`, or holds more than 64 MiB.
    """
    try:
        decompressor = zlib.decompressobj(_GZIP)
        content = decompressor.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not decompressor.eof:
            raise ValueError(f"packed: cut off, or more than {_MOST_BYTES >> 20} MiB")
        documents = json.loads(content)
    except (binascii.Error, RecursionError, TypeError, zlib.error) as error:
        raise ValueError(f"packed: malformed, {error}") from error
    if not isinstance(documents, dict) or not all(isinstance(value, str) for value in documents.values()):
        raise ValueError("packed: must be a JSON object of texts")
    return documents
