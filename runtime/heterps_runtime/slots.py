"""The parameter server of each row, by slot."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from heterps_runtime.store.keys import NUM_SLOTS

__all__ = ["overlapping_servers", "share_of_slots", "slot_map"]


@cache
def slot_map(num_servers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Server of each slot (NUM_SLOTS,): contiguous, equal ranges of slots."""
    servers = (np.arange(NUM_SLOTS) * num_servers // NUM_SLOTS).astype(np.int32)
    servers.flags.writeable = False
    return servers


def overlapping_servers(server: int, num_servers: int, num_others: int) -> frozenset[int]:
    """The servers of another number of them that had slots of a server."""
    slots = slot_map(num_servers) == server
    return frozenset(slot_map(num_others)[slots].tolist())


def share_of_slots(other: int, num_others: int, server: int, num_servers: int) -> float:
    """Share of the slots of one of `num_others` servers that one of `num_servers` has."""
    slots = slot_map(num_others) == other
    return float((slot_map(num_servers)[slots] == server).mean())
