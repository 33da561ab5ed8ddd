"""Connections between neighbouring stages: activations forward, gradients back, on one path per micro-batch.

A worker listens for the previous stage, and connects to all workers of the next stage. Gradients return over the
connection of the activation.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import Backward, Forward
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection, Listener

__all__ = ["Downstream", "Upstream"]


class Downstream:
    """The workers of the next stage, for one generation."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: LinkSecurity,
        name: str,
        generation: int,
        addresses: Sequence[str],
    ) -> None:
        self._connections = [Connection(context, a, f"{name}/{generation}", security, generation) for a in addresses]
        self.pollables = [socket for connection in self._connections for socket in connection.pollables]
        self._generation = generation

    def send(self, worker: int, message: Forward) -> None:
        """Send the live tensors of a micro-batch to a worker of the next stage."""
        self._connections[worker].send(message)

    def poll(self) -> list[Backward]:
        """Gradients that have arrived (empty ones in evaluation)."""
        messages = []
        for connection in self._connections:
            while (message := connection.receive()) is not None:
                if not isinstance(message, Backward):
                    raise ProtocolError(f"the next stage sent an unexpected {message.op!r} message")
                if message.generation == self._generation:
                    messages.append(message)
        return messages

    def broke(self) -> bool:
        """Whether a connection has ended since the last call, so that messages may be lost."""
        return any(connection.broke() for connection in self._connections)

    def probe(self) -> None:
        """Show to the next stage whether messages to it were lost; call it at least once a second."""
        for connection in self._connections:
            connection.probe()

    def close(self) -> None:
        """Drop the connections."""
        for connection in self._connections:
            connection.close()


class Upstream:
    """The socket for the previous stage. It outlives generations, and refuses messages of old ones."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.refused = 0  # messages of past generations
        self._listener = Listener(socket)

    def begin(self, generation: int) -> None:
        """Forget what past generations have sent."""
        self._listener.begin(generation)

    def poll(self, generation: int) -> list[tuple[bytes, Forward]]:
        """Activations of the current generation, each with its sender."""
        accepted = []
        while (received := self._listener.receive()) is not None:
            sender, message = received
            if not isinstance(message, Forward):
                raise ProtocolError(f"the previous stage sent an unexpected {message.op!r} message")
            if message.generation == generation:
                accepted.append((sender, message))
            else:
                self.refused += 1
        return accepted

    def send(self, sender: bytes, message: Backward) -> None:
        """Send gradients (empty ones in evaluation) to the sender of the activation."""
        self._listener.send(sender, message)

    def probe(self) -> None:
        """Show to the previous stage whether messages to it were lost; call it at least once a second."""
        self._listener.probe()
