"""Which parameter servers hold a shard, the state that one of them answers for (`parameterServer.replication`)."""

from __future__ import annotations

__all__ = ["holders_of", "shards_of"]


def shards_of(server: int, num_servers: int, replication: int) -> tuple[int, ...]:
    """The shards that a server holds: its own first, then copies of those of the servers before it.

    A shard is the rows of the slots of a server, and its pieces of dense parameters.
    """
    return tuple((server - i) % num_servers for i in range(replication))


def holders_of(shard: int, num_servers: int, replication: int) -> tuple[int, ...]:
    """The servers that hold a shard: the one that answers for it first, then those with copies."""
    return tuple((shard + i) % num_servers for i in range(replication))
