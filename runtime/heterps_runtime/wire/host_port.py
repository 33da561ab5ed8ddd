"""Hosts and ports as one text, `host:port`, with an IPv6 address in brackets (RFC 3986, 3.2.2)."""

from __future__ import annotations

__all__ = ["is_ipv6", "join_host_port", "split_host_port"]

_MOST_PORT = 65535


def is_ipv6(host: str) -> bool:
    """Whether a host is an IPv6 address, rather than an IPv4 address or a name."""
    return ":" in host


def join_host_port(host: str, port: int | str) -> str:
    """`host:port`, or `[host]:port` for an IPv6 address; a port may be ZeroMQ's `*`."""
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """Host, without brackets, and port.

    Raises:
        ValueError: the text is not `host:port` or `[host]:port`.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= len(str(_MOST_PORT)) else -1
    if not colon or not bare or set(bare) & set("[]/") or bracketed != is_ipv6(bare) or not 0 <= number <= _MOST_PORT:
        raise ValueError(f"must be HOST:PORT, or [HOST]:PORT with an IPv6 address, is {text!r}")
    return bare, number
