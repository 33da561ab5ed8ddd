"""Which parameter servers hold a row: that of its slot, and with `parameterServer.replication` the next ones, too."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from heterps_runtime.store.keys import NUM_SLOTS

__all__ = ["holders_of", "overlapping_servers", "shards_of", "share_of_slots", "slot_map"]


@cache
def slot_map(num_servers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Server of each slot (NUM_SLOTS,): contiguous, equal ranges of slots."""
    servers = (np.arange(NUM_SLOTS) * num_servers // NUM_SLOTS).astype(np.int32)
    servers.flags.writeable = False
    return servers


def shards_of(server: int, num_servers: int, replication: int) -> tuple[int, ...]:
    """The shards that a server holds: its own first, then copies of those of the servers before it.

    A shard is the state of one server: the rows of its slots, and its pieces of dense parameters.
    """
    return tuple((server - i) % num_servers for i in range(replication))


def holders_of(shard: int, num_servers: int, replication: int) -> tuple[int, ...]:
    """The servers that hold a shard: the one that answers for it first, then those with copies."""
    return tuple((shard + i) % num_servers for i in range(replication))


def overlapping_servers(server: int, num_servers: int, num_others: int) -> frozenset[int]:
    """The servers of another number of them that had slots of a server."""
    slots = slot_map(num_servers) == server
    return frozenset(slot_map(num_others)[slots].tolist())


def share_of_slots(other: int, num_others: int, server: int, num_servers: int) -> float:
    """Share of the slots of one of `num_others` servers that one of `num_servers` has."""
    slots = slot_map(num_others) == other
    return float((slot_map(num_servers)[slots] == server).mean())
