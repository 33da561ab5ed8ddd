"""A transparent proxy between the processes of a job, which injects faults into their connections.

It runs in a thread. For each connection that iptables redirects, it asks the kernel for the original address, finds
out who talks to whom, and connects to that address itself. Messages are reported before their bytes are forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import threading
from collections.abc import Callable

from tests.chaos.faults.disturbances import Disturbance
from tests.chaos.faults.incident import Hit
from tests.chaos.faults.moments import Scanner, Sighting
from tests.chaos.faults.peers import CONTROLLER, original_client_port, owner_of_client, owner_of_listener
from tests.chaos.namespaces import OUR_ADDRESS, PROXY_PORT

__all__ = ["Links"]

_CHUNK_BYTES = 65_536
_SO_ORIGINAL_DST = 80  # <linux/netfilter_ipv4.h>
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and drops what is queued
_STOP_SECONDS = 5.0

Leg = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """A redirected connection: a leg to the client and a leg to the listener.

    Args:
        client: process that made it.
        listener: process that it is for.
        port: of the client, as the client sees it.
        near: leg to the client.
        far: leg to the listener.
    """

    def __init__(self, client: str, listener: str, port: int, near: Leg, far: Leg) -> None:
        self.client = client
        self.listener = listener
        self.link = f"{client}>{listener}"
        self.speaks = client == CONTROLLER  # whether a message has passed; before, ZeroMQ sets it up
        self.near = near
        self.far = far
        self._port = port

    @property
    def ports(self) -> set[int]:
        """The ports that identify the legs: the client's, as both ends see it, and the proxy's towards the listener."""
        return {self._port, self.near[1].get_extra_info("peername")[1], self.far[1].get_extra_info("sockname")[1]}

    def reset(self) -> None:
        for _, writer in (self.near, self.far):
            with contextlib.suppress(OSError):  # closed by the other side meanwhile
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


class Links:
    """The proxy. Methods other than `run` and `close` belong to its thread.

    Args:
        on_sighting: called in the proxy's thread, before a message is forwarded.
    """

    def __init__(self, on_sighting: Callable[[Sighting], None]) -> None:
        self._on_sighting = on_sighting
        self._connections: set[_Connection] = set()
        self._disturbances: list[Disturbance] = []
        self._next: dict[str, Callable[[_Connection], None]] = {}  # what to do to the next connection of a link
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def run(self, function: Callable[[], int]) -> int:
        """Call a function in the proxy's thread, and return its result."""
        if threading.current_thread() is self._thread:
            return function()

        async def called() -> int:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    def close(self) -> None:
        """End the proxy, its connections and its thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- faults -------------------------------------------------------------------------------------------------------

    # Each takes a link (`CLIENT>LISTENER`) and a `Hit`, which is set when a connection is disturbed.

    def reset(self, link: str, hit: Hit) -> int:
        """Reset the connections of a link, or else its next one; returns their number."""
        return self._strike(link, _Connection.reset, hit)

    def vanish(self, link: str, seconds: float | None, hit: Hit) -> int:
        """Drop all packets of a link's connections, or else of its next one; returns their number.

        Args:
            link: see above.
            seconds: after this time TCP delivers the bytes after all; None: the connections stay half-open forever.
            hit: see above.
        """

        def drop(connection: _Connection) -> None:
            ports = connection.ports
            _drop_packets("-A", ports)
            if seconds is not None:
                self._loop.call_later(seconds, _drop_packets, "-D", ports)

        return self._strike(link, drop, hit)

    def disturb(self, kind: str, link: str, forward: bool, seconds: float, amount: float, hit: Hit) -> int:
        """Disturb the following bytes of a link (see `Disturbance`); returns the number of its present connections."""
        now = self._loop.time()
        self._disturbances = [d for d in self._disturbances if not d.over(now)]
        self._disturbances.append(Disturbance(kind, link, forward, now + seconds, amount, hit))
        return len(self._of(link))

    def _strike(self, link: str, action: Callable[[_Connection], None], hit: Hit) -> int:
        def strike(connection: _Connection) -> None:
            hit.happened = True
            action(connection)

        found = self._of(link)
        for connection in found:
            strike(connection)
        if not found:  # the controller connects for each request
            self._next[link] = strike
        return len(found)

    def _of(self, link: str) -> list[_Connection]:
        return [connection for connection in self._connections if connection.link == link]

    # --- connections --------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", PROXY_PORT, backlog=512)

    async def _stop(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.reset()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(tasks, timeout=_STOP_SECONDS) if tasks else None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = _original_port(writer)
        client_port = original_client_port(writer.get_extra_info("peername")[1])
        client = owner_of_client(client_port, port)
        near = (reader, writer)
        try:
            far = await asyncio.open_connection("127.0.0.1", port, local_addr=(OUR_ADDRESS, 0))
        except OSError:  # nothing listens: the client must see that, too
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
            return
        connection = _Connection(client, owner_of_listener(port), client_port, near, far)
        self._connections.add(connection)
        if action := self._next.pop(connection.link, None):
            action(connection)
        try:
            await asyncio.gather(self._pump(connection, forward=True), self._pump(connection, forward=False))
        finally:
            self._connections.discard(connection)
            near[1].close()
            far[1].close()

    async def _pump(self, connection: _Connection, *, forward: bool) -> None:
        """Forward one direction until its end."""
        source, target = (connection.near, connection.far) if forward else (connection.far, connection.near)
        reader, writer = source[0], target[1]
        scanner = Scanner()
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                for op, step in scanner.feed(chunk):
                    connection.speaks = True
                    self._on_sighting(Sighting(connection.client, connection.listener, forward, op, step))
                for pause, part in self._shape(connection, forward, chunk):
                    if pause:
                        await asyncio.sleep(pause)
                    writer.write(part)
                await writer.drain()
            writer.write_eof()
        except OSError:  # one side has reset the connection: so the other side sees that, too
            connection.reset()

    def _shape(self, connection: _Connection, forward: bool, chunk: bytes) -> list[tuple[float, bytes]]:
        now = self._loop.time()
        for disturbance in self._disturbances:
            if connection.speaks and disturbance.applies(connection.link, forward, now):
                return disturbance.shape(chunk)
        return [(0.0, chunk)]


def _original_port(writer: asyncio.StreamWriter) -> int:
    """Return the port that a redirected client wanted."""
    address: bytes = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    return int.from_bytes(address[2:4], "big")


def _drop_packets(action: str, ports: set[int]) -> None:
    """Add (`-A`) or delete (`-D`) firewall rules that drop all packets from and to these ports."""
    rules = [f"{action} INPUT -p tcp --{end} {port} -j DROP" for port in ports for end in ("sport", "dport")]
    text = "\n".join(["*filter", *rules, "COMMIT", ""])
    subprocess.run(["iptables-restore", "--noflush"], input=text, text=True, check=True)
