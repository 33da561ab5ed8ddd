"""How often servers copy rows ahead of a change of their number, while the job trains.

Rows change during the first round, which copies all. A further round copies those, in less time, so that fewer change
meanwhile. The generation copies what changes during the last round, while the job stands still. All servers begin a
round together, since none is done before the slowest one.
"""

from __future__ import annotations

import math

__all__ = ["CopyRounds"]

_FEW = 100_000  # rows of a server, which it copies in 10 to 30 ms


class CopyRounds:
    """The rounds of one change."""

    def __init__(self) -> None:
        self._before: float = math.inf  # most rows of a server, in the round before
        self._most = 0  # in this one, so far

    def note(self, num_rows: int) -> None:
        """Note how many rows a server has copied in this round."""
        self._most = max(self._most, num_rows)

    def another_pays(self) -> bool:
        """Whether there is to be another round, which then begins; all servers have copied.

        After a round that did not halve what is copied, there is none: rows change about as fast as they are copied.
        """
        pays = self._most > _FEW and 2 * self._most < self._before
        self._before, self._most = self._most, 0
        return pays
