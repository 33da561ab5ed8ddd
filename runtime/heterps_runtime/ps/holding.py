"""The shards that a server holds, also while the state is divided anew among another number of servers.

A server adds the rows that it gets to those that it has, and forgets what it no longer needs when all servers have
theirs. So a change that is interrupted can be given up: the division before is still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from heterps_runtime.config import RunConfig
from heterps_runtime.partition.copies import shards_of
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.keyed import KeyedRows
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.team import ALONE, Team

__all__ = ["Ahead", "Division", "Holding", "Origin"]


@dataclass
class Division:
    """One server's shards of a division of the state."""

    num_servers: int = 0  # 0: of none
    shards: dict[int, Shard] = field(default_factory=dict)  # by index
    complete: bool = False  # whether all of their state is there


@dataclass(frozen=True)
class Origin:
    """Where the rows of a shard were copied from, and the notes of what changed there since then, by part."""

    server: int
    notes: Mapping[str, int]


@dataclass
class Ahead:
    """Shards of a division to come, whose rows a server copies while the generation before it trains.

    Attributes:
        generation: that trains.
        num_before: servers that the state is divided among.
        num_servers: of the division to come.
        shards: by index.
        origins: by shard of the division before.
        complete: whether all rows have been copied, as they were at the notes of the origins or later.
    """

    generation: int
    num_before: int
    num_servers: int
    shards: dict[int, Shard]
    origins: dict[int, Origin] = field(default_factory=dict)
    complete: bool = False

    def is_of(self, generation: int, num_before: int, num_servers: int) -> bool:
        """Whether it has all rows of this change."""
        wanted = (generation, num_before, num_servers)
        return self.complete and (self.generation, self.num_before, self.num_servers) == wanted


class Holding:
    """The shards of one server.

    Args:
        config: the job.
        index: of the server.
        spill: where rows go that do not fit into memory; None: all are in memory.
        team: threads that compute.

    Attributes:
        index: of the server.
        present: the division that the state has.
        following: the one that it is about to have; None: it does not change.
        ahead: shards of a division to come, copied while training goes on; None: there are none.
    """

    def __init__(self, config: RunConfig, index: int, spill: SpillSpace | None, team: Team = ALONE) -> None:
        self._config = config
        self.index = index
        self._spill = spill
        self._team = team
        self._unused = Shard(config, index, spill, team)
        self.present = Division()
        self.following: Division | None = None
        self.ahead: Ahead | None = None
        self._dropping: Iterator[None] = iter(())  # removes rows that have moved away, some in each step

    @property
    def in_use(self) -> Division:
        """The division that workers know."""
        return self.following or self.present

    @property
    def own(self) -> Shard:
        """The shard that this server answers for; without state if there is none."""
        return self.in_use.shards.get(self.index) or self._unused

    @property
    def copies(self) -> list[Shard]:
        """Copies of other servers' shards."""
        return [shard for index, shard in self.in_use.shards.items() if index != self.index]

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
        ahead = self.ahead.shards if self.ahead else {}  # with the rows of present ones of the same index
        return sum(shard.num_bytes for shard in (ahead | self.present.shards | following).values())

    def begin_ahead(self, generation: int, num_before: int, num_servers: int) -> Ahead:
        """The shards of a division to come, whose rows are to be copied; if all were, only what has changed since.

        Args:
            generation: that trains.
            num_before: servers that the state is divided among.
            num_servers: of the division to come.
        """
        if self.ahead is not None and self.ahead.is_of(generation, num_before, num_servers):
            return self.ahead
        self.finish_dropping()
        self.drop_ahead()
        self.ahead = Ahead(generation, num_before, num_servers, self._new_division(num_servers).shards)
        for shard in self.ahead.shards.values():
            shard.begin_generation(num_servers)
        return self.ahead

    def copied_ahead(self, generation: int, num_before: int, num_servers: int) -> Ahead | None:
        """Shards of a generation that were copied while the one before it trained, if all of them were."""
        if self.ahead is not None and self.ahead.is_of(generation - 1, num_before, num_servers):
            return self.ahead
        self.drop_ahead()
        return None

    def give_up_ahead(self) -> None:
        """Drop rows that were to be copied ahead, unless all of them were."""
        if self.ahead is not None and not self.ahead.complete:
            self.drop_ahead()

    def drop_ahead(self) -> None:
        """Drop rows that were copied ahead."""
        self.ahead = None
        for part in _parts_of(self.present):
            part.drop_ahead()

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
        self.finish_dropping()
        if missing:
            self.present = Division()
        if num_servers != before:
            for shard in self.present.shards.values():
                shard.begin_generation(before, earlier_steps)
                shard.cancel_copies("the number of servers changes")
            self.following = self._new_division(num_servers)
        else:
            self.drop_ahead()
            for shard in self.present.shards.values():
                shard.end_change()
            if missing:
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
        self._dropping = iter(())
        self.present, self.following, self.ahead = Division(), None, None

    def note_complete(self) -> None:
        """Note that the shards of the generation have all of their state."""
        self.in_use.complete, self.ahead = True, None
        for part in _parts_of(self.in_use):
            part.accept()

    def finish_change(self) -> None:
        """Forget the division before, since all servers have their part of the new one. Without effect if none is."""
        if self.following is not None:
            self._settle(self.following)

    def drop_rows(self) -> bool:
        """Remove some of the rows that have moved away, for a few milliseconds; returns whether any may be left."""
        return next(self._dropping, self) is None

    def finish_dropping(self) -> None:
        """Remove all rows that have moved away, before others are copied or saved."""
        while self.drop_rows():
            pass

    def _settle(self, division: Division) -> None:
        self.present, self.following = division, None
        for shard in division.shards.values():
            shard.end_change()
        self._dropping = chain.from_iterable(shard.drop_foreign_rows() for shard in division.shards.values())

    def _new_division(self, num_servers: int) -> Division:
        indices = shards_of(self.index, num_servers, self._config.replication) if self.index < num_servers else ()
        return Division(num_servers, {i: Shard(self._config, i, self._spill, self._team) for i in indices})


def _parts_of(division: Division) -> Iterator[KeyedRows]:
    return (part for shard in division.shards.values() for part in shard.parts.values())
