"""A member's line to its coordinator: one socket for messages, and a thread that says it is alive.

The pulse runs in a thread of its own, so that a long step, a compilation or a restore is not mistaken for a death. A
process that hangs still pulses; the coordinator notices a hang by a step that stays unfinished.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlparse

import zmq

from heterps_runtime.contract import ENV_COORDINATOR, ENV_TOKEN, PATH_ENDPOINT
from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.wire.messages import FromCoordinator, FromMember, Join, Pulse, Rejoin
from heterps_runtime.wire.transport import connect_socket, receive, send

__all__ = ["ControlLink", "Credentials", "member_identity", "pulse_identity", "read_identity"]

PULSE_SECONDS = 1.0
_PULSE_SUFFIX = "#pulse"


def member_identity(name: str, incarnation: str) -> str:
    """The name of a process's socket towards its coordinator, by which the coordinator reaches this very process."""
    return f"{name}/{incarnation}"


def pulse_identity(name: str, incarnation: str) -> str:
    """The name of the same process's other socket, over which it only pulses."""
    return f"{member_identity(name, incarnation)}{_PULSE_SUFFIX}"


def read_identity(identity: str) -> tuple[str, str, bool]:
    """Whose socket has this name: (name, incarnation, whether it is the one for pulses)."""
    name, _, rest = identity.partition("/")
    return name, rest.removesuffix(_PULSE_SUFFIX), rest.endswith(_PULSE_SUFFIX)


class Credentials:
    """Where the coordinator is and the token that opens it, from the environment."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.token = token

    @classmethod
    def from_environment(cls) -> Credentials:
        """Read `HETERPS_COORDINATOR` and `HETERPS_TOKEN`.

        Raises:
            UserError: one of them is not set.
        """
        missing = [name for name in (ENV_COORDINATOR, ENV_TOKEN) if not os.environ.get(name)]
        if missing:
            raise UserError(
                f"the environment lacks {', '.join(missing)}; the controller sets them for every process of a job"
            )
        return cls(os.environ[ENV_COORDINATOR], os.environ[ENV_TOKEN])

    def request(self, method: str, path: str, body: Any = None, timeout: float = 10.0) -> Any:
        """Call the coordinator's HTTP interface; returns the JSON answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  # our own coordinator
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")

    def control_address(self, patience_seconds: float = 60.0) -> str:
        """Address of the coordinator's control socket; waits for a coordinator that is still starting.

        Raises:
            TransientError: no answer in time, or the token is refused.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                port = self.request("GET", PATH_ENDPOINT)["port"]
                return f"tcp://{urlparse(self.url).hostname}:{port}"
            except urllib.error.HTTPError as error:
                raise TransientError(f"the coordinator at {self.url} refuses this process: {error}") from error
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TransientError(f"no coordinator answers at {self.url}: {error}") from error
                time.sleep(0.1)


class ControlLink:
    """The sockets of one member towards its coordinator. `socket` belongs to the thread that made the link."""

    def __init__(self, credentials: Credentials, name: str) -> None:
        self.name = name
        self.incarnation = secrets.token_hex(8)
        self._joins = 0
        self._put_back: deque[FromCoordinator] = deque()
        self.status = "starting"  # shown to the user until the member is ready
        self.totals: Callable[[], dict[str, float]] = dict  # counters that each pulse carries; called in its thread
        # A context of its own: ending it waits until the last words have left, whatever other sockets are open.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._credentials = credentials
        self._address = credentials.control_address()
        identity = member_identity(name, self.incarnation)
        self.socket = connect_socket(self._context, self._address, identity, credentials.token)
        self._stop = threading.Event()
        self._pulse = threading.Thread(target=self._run_pulse, name="pulse", daemon=True)
        self._pulse.start()

    def join(self, words: Join) -> None:
        """Ask to take part; the link counts how often."""
        self._joins += 1  # before it is sent: a pulse must not overtake it with the number before
        self.status = "waiting for the other members"
        self.send(replace(words, joins=self._joins))

    def must_rejoin(self, order: Rejoin) -> bool:
        """Whether a `rejoin` answers the last join; orders that answer an earlier one are carried out already."""
        return order.joins == self._joins

    def send(self, message: FromMember) -> None:
        """Say something to the coordinator."""
        send(self.socket, message)

    def receive(self) -> FromCoordinator | None:
        """The next message from the coordinator, if there is one.

        Raises:
            TransientError: it is malformed, or not one that a coordinator sends.
        """
        if self._put_back:
            return self._put_back.popleft()
        received = receive(self.socket)
        if received is None:
            return None
        message = received[1]
        if not isinstance(message, FromCoordinator):
            raise TransientError(f"the coordinator sent a {message.op!r}, which only others may send")
        return message

    def put_back(self, messages: Iterable[FromCoordinator]) -> None:
        """Let `receive` return these again, before all others."""
        self._put_back.extendleft(reversed(list(messages)))

    def close(self) -> None:
        """End the pulse and wait (at most two seconds) until queued messages have left."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._pulse.join()
        self.socket.close(linger=2000)
        self._context.term()

    def _run_pulse(self) -> None:
        identity = pulse_identity(self.name, self.incarnation)
        socket = connect_socket(self._context, self._address, identity, self._credentials.token)
        try:
            while not self._stop.wait(PULSE_SECONDS):
                send(socket, Pulse(self._joins, self.status, self.totals()))
        except zmq.ZMQError:
            pass  # the context ends with the process
        finally:
            socket.close(linger=0)
