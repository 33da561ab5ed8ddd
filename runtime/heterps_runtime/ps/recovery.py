"""A server without state copies its shards from the memory of the servers that hold them, too.

No step is committed meanwhile: the generation goes on when all members are ready. So the rows of a shard can be sent
one piece after another, without a note of what was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from heterps_runtime.checkpoint import Storage
from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.copies import holders_of
from heterps_runtime.ps.shard import Shard
from heterps_runtime.wire.messages import CopyRows, CopyShard, Generation, Message, ShardRows, ShardState
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connections

__all__ = ["Recovery", "answer"]


def answer(shard: Shard, request: CopyShard | CopyRows) -> ShardState | ShardRows:
    """What a server that holds a shard sends to one that copies it.

    Raises:
        ProtocolError: the request does not fit the shard.
    """
    if isinstance(request, CopyShard):
        return shard.describe()
    try:
        chunk, following = shard.copy_from(request.part, request.start)
    except ValueError as error:
        raise ProtocolError(f"a server sent a wrong {request.op} request: {error}") from error
    return ShardRows(request.shard, request.part, following, chunk.keys, chunk.columns)


class Recovery:
    """The copies of shards that a server makes at the beginning of a generation.

    Args:
        context, security: of the connections.
        name: of this server.
        announced: the generation.
        shards: to fill, by index.
        replication: number of servers that hold each shard.
        storage: of the job's checkpoints.

    Attributes:
        lineage: of the state.
        checkpoint: folder of the checkpoint that is read; empty: none.
        pollables: sockets to poll for answers and for the end of a connection.
        num_rows: rows copied so far.
        total_rows: rows of the shards, as far as their number is known.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: LinkSecurity,
        name: str,
        announced: Generation,
        shards: Mapping[int, Shard],
        replication: int,
        storage: Storage,
    ) -> None:
        generation, addresses = announced.generation, announced.servers
        self.lineage = announced.lineage
        self.checkpoint = ""
        self.num_rows = self.total_rows = 0
        self._connections = Connections(context, addresses, f"{name}/{generation}", security, generation)
        self.pollables: Sequence[Any] = self._connections.pollables
        self._generation, self._committed = generation, announced.committed
        self._shards, self._storage = shards, storage
        self._sources: dict[int, int] = {}  # shard -> the server that it is copied from
        self._asked: dict[int, Message] = {}  # shard -> the request without an answer
        self._parts: dict[int, deque[str]] = {}  # shard -> parts that are not copied yet
        for shard in shards:
            holders = holders_of(shard, len(addresses), replication)
            # The coordinator lets servers copy only what another one has.
            self._sources[shard] = next(server for server in holders if server not in announced.missing)
            self._ask(shard, CopyShard(generation, shard))

    def advance(self) -> bool:
        """Handle the next answer, if one has arrived; returns whether all is copied.

        Raises:
            ProtocolError: an answer is wrong, or a connection broke.
            StorageError, DamagedError: the checkpoint of a generation that had not begun cannot be read.
        """
        received = self._connections.receive_from()
        if received is not None:
            self._take(*received)
        elif self._connections.broke():
            raise ProtocolError("the connection to another parameter server broke while its rows were copied")
        self._connections.probe()
        return not self._asked

    def close(self) -> None:
        """Drop the connections."""
        self._connections.close()

    def _ask(self, shard: int, request: CopyShard | CopyRows) -> None:
        self._asked[shard] = request
        self._connections.send_to(self._sources[shard], request)

    def _take(self, server: int, message: Message) -> None:
        match message:
            case ShardState(shard=shard) if isinstance(self._asked.get(shard), CopyShard):
                self._begin(shard, message)
            case ShardRows(shard=shard, part=part) if self._expects(shard, part):
                # The other server copies the next rows while this one stores these.
                if message.next < 0:
                    self._parts[shard].popleft()
                self._ask_for_rows(shard, max(message.next, 0))
                self._store(shard, message)
            case _:
                raise ProtocolError(f"server {server} sent an unexpected {message.op!r} message")

    def _expects(self, shard: int, part: str) -> bool:
        asked = self._asked.get(shard)
        return isinstance(asked, CopyRows) and asked.part == part

    def _begin(self, shard: int, state: ShardState) -> None:
        self.checkpoint = state.checkpoint
        try:
            self._shards[shard].begin_copy(state, self._committed, self._storage)
        except ValueError as error:
            raise ProtocolError(f"shard {shard} cannot be copied: {error}") from error
        self.total_rows += sum(state.parts.values())
        self._parts[shard] = deque(name for name, count in state.parts.items() if count)
        self._ask_for_rows(shard, 0)

    def _ask_for_rows(self, shard: int, start: int) -> None:
        """Request the rows of the present part from `start` on; if there is none left, all is copied."""
        del self._asked[shard]
        if parts := self._parts[shard]:
            self._ask(shard, CopyRows(self._generation, shard, parts[0], start))

    def _store(self, shard: int, rows: ShardRows) -> None:
        try:
            self._shards[shard].take_rows(rows.part, rows.keys, rows.columns)
        except ValueError as error:
            raise ProtocolError(f"rows of shard {shard} cannot be copied: {error}") from error
        self.num_rows += len(rows.keys)
