"""The shards that a server holds, also while the state is divided anew among another number of servers.

A server adds the rows that it gets to those that it has, and forgets what it no longer needs when all servers have
theirs. So a change that is interrupted can be given up: the division before is still there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heterps_runtime.config import RunConfig
from heterps_runtime.partition.copies import shards_of
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.team import ALONE, Team

__all__ = ["Division", "Holding"]


@dataclass
class Division:
    """One server's shards of a division of the state."""

    num_servers: int = 0  # 0: of none
    shards: dict[int, Shard] = field(default_factory=dict)  # by index
    complete: bool = False  # whether all of their state is there


class Holding:
    """The shards of one server.

    Args:
        config: the job.
        index: of the server.
        spill: where rows go that do not fit into memory; None: all are in memory.
        team: threads that compute.

    Attributes:
        present: the division that the state has.
        following: the one that it is about to have; None: it does not change.
    """

    def __init__(self, config: RunConfig, index: int, spill: SpillSpace | None, team: Team = ALONE) -> None:
        self._config = config
        self._index = index
        self._spill = spill
        self._team = team
        self._unused = Shard(config, index, spill, team)
        self.present = Division()
        self.following: Division | None = None

    @property
    def in_use(self) -> Division:
        """The division that workers know."""
        return self.following or self.present

    @property
    def own(self) -> Shard:
        """The shard that this server answers for; without state if there is none."""
        return self.in_use.shards.get(self._index) or self._unused

    @property
    def copies(self) -> list[Shard]:
        """Copies of other servers' shards."""
        return [shard for index, shard in self.in_use.shards.items() if index != self._index]

    @property
    def committed(self) -> int:
        """Steps in the state that this server has; 0 if it has none."""
        division = self.present if self.present.complete else self.in_use
        return next((shard.committed for shard in division.shards.values()), 0)

    @property
    def complete(self) -> tuple[int, ...]:
        """The numbers of servers in the divisions of which this server has all that it is to hold."""
        return tuple(d.num_servers for d in (self.present, self.following) if d is not None and d.complete)

    @property
    def num_bytes(self) -> int:
        """Bytes of rows, state, dense parameters and statistics; any thread may ask."""
        following = self.following.shards if self.following else {}
        return sum(shard.num_bytes for shard in (self.present.shards | following).values())

    def begin_generation(self, num_servers: int, before: int, earlier_steps: int, *, missing: bool) -> None:
        """Prepare for a generation in which state is kept.

        Args:
            num_servers: of the generation.
            before: number of servers that the state is divided among.
            earlier_steps: see `Shard.begin_generation`.
            missing: whether this server lacks its part of the state. Its shards have no state then.
        """
        if self.following is not None:  # the others have changed to it, or the change was given up
            self._settle(self.present if before == self.present.num_servers else self.following)
        if missing:
            self.present = Division()
        if num_servers != before:
            for shard in self.present.shards.values():
                shard.begin_generation(before, earlier_steps)
                shard.cancel_copies("the number of servers changes")
            self.following = self._new_division(num_servers)
        elif missing:
            self.present = self._new_division(num_servers)
        for shard in self.in_use.shards.values():
            shard.begin_generation(num_servers, earlier_steps)

    def restart(self, num_servers: int, earlier_steps: int) -> None:
        """Prepare for a generation in which all state comes from a checkpoint, or from initial values."""
        self.drop()
        self.present = self._new_division(num_servers)
        for shard in self.present.shards.values():
            shard.begin_generation(num_servers, earlier_steps)
        self.present.complete = True

    def drop(self) -> None:
        """Drop all state."""
        for shard in self.present.shards.values():
            shard.cancel_copies("the server went back to an earlier checkpoint")
        self.present, self.following = Division(), None

    def note_complete(self) -> None:
        """Note that the shards of the generation have all of their state."""
        self.in_use.complete = True

    def finish_change(self) -> None:
        """Forget the division before, since all servers have their part of the new one. Without effect if none is."""
        if self.following is not None:
            self._settle(self.following)

    def _settle(self, division: Division) -> None:
        self.present, self.following = division, None
        for shard in division.shards.values():
            shard.drop_foreign_rows()

    def _new_division(self, num_servers: int) -> Division:
        indices = shards_of(self._index, num_servers, self._config.replication) if self._index < num_servers else ()
        return Division(num_servers, {i: Shard(self._config, i, self._spill, self._team) for i in indices})
