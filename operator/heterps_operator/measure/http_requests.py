"""HTTP requests with bounded time and size, to coordinators and Prometheus servers.

The API server has its own client (`kubernetes.api`). This one uses the standard library only, so that commands that do
without a cluster start quickly.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

__all__ = ["HttpResponse", "NoResponseError", "send_request"]

_PIECE_BYTES = 65_536
_MOST_BYTES = 16 * 1024 * 1024  # the metrics of ten thousand workers


class NoResponseError(Exception):
    """There was no complete response in time."""


@dataclass(frozen=True)
class HttpResponse:
    """A complete response, whatever its status."""

    status: int
    reason: str
    text: str  # the body; bytes that are not UTF-8 are replaced


def send_request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout: float,
    body: str | None = None,
    context: ssl.SSLContext | None = None,
) -> HttpResponse:
    """Send one request over a new connection; redirects are not followed.

    Args:
        method: HTTP method.
        url: `http://` or, with a context, `https://`.
        headers: headers of the request.
        timeout: seconds for connecting, for each read, and for the whole body.
        body: body of the request.
        context: TLS settings; None: plain HTTP.

    Raises:
        NoResponseError: the server does not answer, is too slow, or sends too much.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        if context is None
        else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    )
    deadline = time.monotonic() + timeout
    received = bytearray()
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, body, dict(headers))
        response = connection.getresponse()
        while piece := response.read1(_PIECE_BYTES):
            received += piece
            if time.monotonic() > deadline:
                raise NoResponseError(f"no complete response within {timeout:g} s")
            if len(received) > _MOST_BYTES:
                raise NoResponseError(f"the response is larger than {_MOST_BYTES} bytes")
    except (OSError, http.client.HTTPException) as error:
        raise NoResponseError(f"does not answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    return HttpResponse(response.status, response.reason, received.decode("utf-8", "replace"))
