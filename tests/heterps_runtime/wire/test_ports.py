"""Ports that a controller fixes: read, listened on, free again for a successor, and named when they are taken."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

import pytest
import zmq
from prometheus_client import CollectorRegistry
from torch._C._distributed_c10d import TCPStore

from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.processes.metrics import MetricsServer
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import TokenAuthority, listen_socket
from heterps_runtime.worker.exchange.collectives import Collectives

SECURITY = LinkSecurity("a token of the tests", encrypted=False)


def test_ports_come_from_the_environment() -> None:
    assert Ports.from_environment({}) == FREE_PORTS == Ports(0, 0, 0)
    variables = {"HETERPS_MESSAGE_PORT": "7402", "HETERPS_RENDEZVOUS_PORT": "7403", "HETERPS_METRICS_PORT": "7401"}
    assert Ports.from_environment(variables) == Ports(messages=7402, rendezvous=7403, metrics=7401)


@pytest.mark.parametrize("text", ["", "-1", "65536", "7402.0", "http", "٣", "9" * 5000])
def test_what_is_no_port_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"^HETERPS_METRICS_PORT: must be a port, 0 to 65535, is "):
        Ports.from_environment({"HETERPS_METRICS_PORT": text})


@contextmanager
def messages(host: str, port: int) -> Iterator[int]:
    """Listen for messages, and close all connections at the end."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        TokenAuthority(context, SECURITY)
        listener, address = listen_socket(context, host, SECURITY, port)
        yield int(address.rpartition(":")[2])
        listener.close(linger=0)
    finally:
        context.term()


@contextmanager
def metrics(host: str, port: int) -> Iterator[int]:
    """Serve metrics."""
    server = MetricsServer(CollectorRegistry(), host, port)
    yield server.port
    server.close()


@contextmanager
def rendezvous(host: str, port: int) -> Iterator[int]:
    """Offer a rendezvous."""
    collectives = Collectives(host, 5.0, port)
    yield int(collectives.store_address.rpartition(":")[2])
    del collectives._store


def greeted(host: str, port: int) -> Callable[[], None]:
    """Connect to a ZeroMQ socket until it answers; returns a function that closes this end."""
    connected = socket.create_connection((host, port), timeout=10)
    assert connected.recv(1)

    def close() -> None:
        while connected.recv(4096):
            pass
        connected.close()

    return close


def scraped(host: str, port: int) -> Callable[[], None]:
    """Read metrics until the server closes the connection; returns a function that closes this end."""
    connected = socket.create_connection((host, port), timeout=10)
    connected.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    while connected.recv(4096):
        pass
    return connected.close


def stored(host: str, port: int) -> Callable[[], None]:
    """Use a rendezvous; returns a function that closes this end."""
    clients = [TCPStore(host, port, is_master=False, timeout=timedelta(seconds=10))]
    clients[0].set("key", "value")
    return clients.clear


Listen = Callable[[str, int], AbstractContextManager[int]]
LISTENERS = {"messages": (messages, greeted), "metrics": (metrics, scraped), "rendezvous": (rendezvous, stored)}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("what", LISTENERS)
def test_connections_of_the_process_before_do_not_keep_a_port(what: str, host: str) -> None:
    listen, connect = LISTENERS[what]
    with listen(host, 0) as port:
        close = connect(host, port)
    close()
    plain = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with plain, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        plain.bind((host, port))  # without SO_REUSEADDR: a connection is in TIME_WAIT
    with listen(host, port) as again:
        assert again == port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("what", LISTENERS)
def test_a_port_that_another_process_has_is_named(what: str, host: str) -> None:
    listen, _ = LISTENERS[what]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(TransientError) as caught, listen(host, port):
            pass
    for part in (host, str(port), what, os.strerror(errno.EADDRINUSE)):
        assert part in str(caught.value)
