"""Connections between neighbouring stages: activations forward, gradients back, on one path per micro-batch.

A worker listens for the previous stage, and connects to those workers of the next stage that share samples with it: of
1,000 workers in each of two stages, to two or three. Gradients return over the connection of the activation.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import Backward, Forward
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections, Listener

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
        self._connections = Connections(context, addresses, f"{name}/{generation}", security, generation)
        self.pollables = self._connections.pollables
        self._generation = generation

    def send(self, worker: int, message: Forward) -> None:
        """Send the live tensors of a micro-batch to a worker of the next stage."""
        self._connections.send_to(worker, message)

    def poll(self) -> list[Backward]:
        """Gradients that have arrived (empty ones in evaluation)."""
        messages = []
        while (received := self._connections.receive_from()) is not None:
            _, message = received
            if not isinstance(message, Backward):
                raise ProtocolError(f"the next stage sent an unexpected {message.op!r} message")
            if message.generation == self._generation:
                messages.append(message)
        return messages

    def broke(self) -> bool:
        """Whether a connection has ended since the last call, so that messages may be lost."""
        return self._connections.broke()

    def probe(self) -> None:
        """Show to the next stage whether messages to it were lost; call it at least once a second."""
        self._connections.probe()

    def close(self) -> None:
        """Drop the connections."""
        self._connections.close()


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
