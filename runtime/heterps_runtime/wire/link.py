"""A member's line to its coordinator: a socket for messages, and a thread that sends a pulse.

The pulse has its own thread, so that a member is not considered lost during a long step, a compilation or a restore. A
hanging process still pulses; the coordinator detects a hang by the missing progress of the job.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlparse

import zmq

from heterps_runtime.contract import ENV_COORDINATOR, ENV_TOKEN, PATH_ENDPOINT
from heterps_runtime.errors import ProtocolError, TransientError, UserError
from heterps_runtime.wire.host_port import join_host_port
from heterps_runtime.wire.messages import FromCoordinator, FromMember, Join, Pulse, Rejoin
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection

__all__ = ["ControlLink", "Credentials", "member_identity", "pulse_identity", "read_identity"]

PULSE_SECONDS = 1.0
_HTTP_TIMEOUT_SECONDS = 10.0
_START_TIMEOUT_SECONDS = 60.0  # for the coordinator to start
_PULSE_SUFFIX = "#pulse"


def member_identity(name: str, incarnation: str) -> str:
    """The identity of a process's socket for messages; it distinguishes the process from its replacement."""
    return f"{name}/{incarnation}"


def pulse_identity(name: str, incarnation: str) -> str:
    """The identity of a process's socket for pulses."""
    return f"{member_identity(name, incarnation)}{_PULSE_SUFFIX}"


def read_identity(identity: str) -> tuple[str, str, bool]:
    """(name, incarnation, whether it is the socket for pulses) of an identity."""
    name, _, rest = identity.partition("/")
    return name, rest.removesuffix(_PULSE_SUFFIX), rest.endswith(_PULSE_SUFFIX)


class Credentials:
    """The address of the coordinator, and the security of the job's links.

    Raises:
        UserError: the address is not one of HTTPS, though the job encrypts, or the reverse.
    """

    def __init__(self, url: str, security: LinkSecurity) -> None:
        scheme = "https" if security.encrypted else "http"
        try:
            parts = urlparse(url)
            usable = parts.scheme == scheme and parts.hostname and parts.port  # the token must not be sent in clear
        except ValueError:  # an unfinished IPv6 address, or a port that is no number
            usable = False
        if not usable:
            text = f"must be an address {scheme}://HOST:PORT, as spec.encryption says"
            raise UserError(f"{ENV_COORDINATOR}: {text}, is {url!r}")
        self.url = url.rstrip("/")
        self.security = security
        self._context = security.http_client()

    @classmethod
    def from_environment(cls, *, encrypted: bool) -> Credentials:
        """Read `HETERPS_COORDINATOR` and `HETERPS_TOKEN`.

        Args:
            encrypted: whether the job's links are.

        Raises:
            UserError: a variable is not set, or the address does not fit.
        """
        missing = [name for name in (ENV_COORDINATOR, ENV_TOKEN) if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"the environment lacks {', '.join(missing)}; the controller sets them for every process of a job"
            )
        return cls(os.environ[ENV_COORDINATOR], LinkSecurity(os.environ[ENV_TOKEN], encrypted))

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Call the coordinator's HTTP interface; returns the JSON response.

        Raises:
            OSError: there is no answer; as `urllib.error.HTTPError`, with the coordinator's words if it refuses.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.security.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  # our own coordinator
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=_HTTP_TIMEOUT_SECONDS, context=self._context
            ) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error, suppress(ValueError, TypeError, KeyError):  # another server's page
                error.msg = str(json.loads(error.read())["error"])
            raise

    def control_address(self) -> str:
        """Address of the coordinator's control socket; waits while the coordinator starts.

        Raises:
            TransientError: the coordinator does not answer in time, or one of the two does not hold the token.
        """
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            try:
                port = self.request("GET", PATH_ENDPOINT)["port"]
                return f"tcp://{join_host_port(str(urlparse(self.url).hostname), port)}"
            except urllib.error.HTTPError as error:
                raise TransientError(f"the coordinator at {self.url} refuses this process: {error}") from error
            except OSError as error:
                if (cause := _tls_failure(error)) is not None:
                    text = f"{self.url} and this process do not hold the same token, or do not both encrypt: {cause}"
                    raise TransientError(text) from error
                if time.monotonic() > deadline:
                    raise TransientError(f"no coordinator answers at {self.url}: {error}") from error
                time.sleep(0.1)


def _tls_failure(error: OSError) -> ssl.SSLError | None:
    """The failed handshake behind an error, if that is its cause and not a coordinator that starts or ends."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return cause if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError) else None


class ControlLink:
    """The sockets from a member to its coordinator. `pollables` belong to the thread that created the link."""

    def __init__(self, credentials: Credentials, name: str) -> None:
        self.name = name
        self.incarnation = secrets.token_hex(8)
        self._joins = 0
        self._put_back: deque[FromCoordinator] = deque()
        self.status: str | Callable[[], str] = "starting"  # shown to users; a function is called for each pulse
        self.totals: Callable[[], dict[str, float]] = dict  # counters for each pulse; called in its thread
        self._unread = False  # they could not be read once
        # Its own context, so that `close` can wait for the last messages while other sockets are open.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._credentials = credentials
        self._address = credentials.control_address()
        identity = member_identity(name, self.incarnation)
        self._connection = Connection(self._context, self._address, identity, credentials.security)
        self.pollables = self._connection.pollables
        self._stop = threading.Event()
        self._pulse = threading.Thread(target=self._run_pulse, name="pulse", daemon=True)
        self._pulse.start()

    def join(self, words: Join) -> None:
        """Ask to take part; the link counts the joins."""
        self._joins += 1  # before sending: a pulse must not overtake the join with the previous count
        self._connection.renew(self._joins)
        self.status = "waiting for the other members"
        self.send(replace(words, joins=self._joins))

    def must_rejoin(self, order: Rejoin) -> bool:
        """Whether a `rejoin` refers to the last join; one that refers to an earlier join was already followed."""
        return order.joins == self._joins

    def send(self, message: FromMember) -> None:
        """Send a message to the coordinator."""
        self._connection.send(message)

    def broke(self) -> bool:
        """Whether the connection has ended since the last call, so that messages may be lost."""
        return self._connection.broke()

    def probe(self) -> None:
        """Show to the coordinator whether messages to it were lost; call it at least once a second."""
        self._connection.probe()

    def receive(self) -> FromCoordinator | None:
        """The next message of the coordinator, if any.

        Raises:
            ProtocolError: the message is malformed, is not one of a coordinator, or messages before it are lost.
        """
        if self._put_back:
            return self._put_back.popleft()
        message = self._connection.receive()
        if message is not None and not isinstance(message, FromCoordinator):
            raise ProtocolError(f"the coordinator sent an unexpected {message.op!r} message")
        return message

    def put_back(self, messages: Iterable[FromCoordinator]) -> None:
        """Let `receive` return these messages again, before all others."""
        self._put_back.extendleft(reversed(list(messages)))

    def close(self) -> None:
        """End the pulse, and wait at most two seconds for queued messages to be sent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._pulse.join()
        self._connection.close(linger=2000)
        self._context.term()

    def _run_pulse(self) -> None:
        identity = pulse_identity(self.name, self.incarnation)
        connection = Connection(self._context, self._address, identity, self._credentials.security)
        totals: dict[str, float] = {}
        try:
            while not self._stop.wait(PULSE_SECONDS):
                totals = self._read_totals(totals)
                status = self.status
                connection.send(Pulse(self._joins, status if isinstance(status, str) else status(), totals))
                connection.broke()  # nothing is lost with a pulse; the next one follows
        except zmq.ZMQError:
            pass  # the context ends with the process
        finally:
            connection.close()

    def _read_totals(self, before: dict[str, float]) -> dict[str, float]:
        """The counters, or those of the pulse before: a member of which a figure cannot be read is not lost."""
        try:
            return self.totals()
        except Exception:
            if not self._unread:  # once, not every second
                traceback.print_exc()
            self._unread = True
            return before
