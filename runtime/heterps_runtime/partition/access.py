"""Which ids of a table have a row: rules that count the steps that use an id.

A step uses an id if it updates its row. An id gets a row at the `min_steps`-th step that uses it; until then it is a
candidate, and steps that use it are counted. A row that no step uses any more is evicted, and a candidate is forgotten:
the id then has its initial value, as if no step had ever used it.

An id's turn comes once in `period` steps, at a step that its hash gives. In its turn it goes if the last `unused_steps`
steps or more have not used it. So the rules say for each id by itself, by its last step and the present one, whether it
is still there. They do not depend on servers, on the order of ids, or on what else a table has, and each step looks at
an equal part of the rows. A checkpoint need not say what has been evicted: its readers apply the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps_runtime.errors import UserError
from heterps_runtime.partition.splitmix import mix64
from heterps_runtime.partition.tables import Table

__all__ = ["NEVER", "NO_RULES", "Ages", "TableRules", "rules_of"]

NEVER = 1 << 62  # steps
_ID_BITS = 48  # of a key, (table << 48) | id
_LONGEST_PERIOD = 256  # a step looks at one row in so many
_PERIODS = 4  # in the time for which a row stays unused: it stays at most a quarter longer
_U32 = np.uint64(32)


@dataclass(frozen=True, slots=True)
class TableRules:
    """When the ids of a table get a row, and when they lose it."""

    min_steps: int = 1  # that must have used an id before it has a row
    unused_steps: int = NEVER  # after which a row is evicted
    candidate_unused_steps: int = NEVER  # after which a candidate is forgotten; never more than `unused_steps`

    @property
    def period(self) -> int:
        """Steps from one turn of an id to the next."""
        least = min(self.unused_steps, self.candidate_unused_steps)
        return max(1, min(_LONGEST_PERIOD, least // _PERIODS))

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> TableRules:
        """Read an entry of `model.tables`."""
        admission, eviction = value.get("admission") or {}, value.get("eviction") or {}
        unused = eviction.get("unusedSteps", NEVER)
        return cls(admission.get("minSteps", 1), unused, min(unused, admission.get("unusedSteps", NEVER)))


NO_RULES = TableRules()
"""The first step that uses an id gives it a row, for good."""


def rules_of(tables: Iterable[Table], entries: Sequence[Mapping[str, Any]]) -> dict[int, TableRules]:
    """The rules of each table, by its index.

    Args:
        tables: of the model.
        entries: of `model.tables`; the first one whose name fits a table is its own.

    Raises:
        UserError: the name of an entry fits no table, or only tables of entries before it.
    """
    tables, rules = tuple(tables), {}
    left = {table.name: table for table in tables}
    for number, entry in enumerate(entries):
        found = [name for name in left if fnmatchcase(name, entry["name"])]
        if not found:
            names = ", ".join(table.name for table in tables) or "none"
            taken = any(fnmatchcase(table.name, entry["name"]) for table in tables)
            why = "only tables that an entry before it has" if taken else "no table"
            raise UserError(
                f"model.tables[{number}].name: {entry['name']!r} fits {why}; the tables of the model are {names}. "
                "Correct the name, or remove the entry"
            )
        for name in found:
            rules[left.pop(name).index] = TableRules.from_manifest(entry)
    return rules | {table.index: NO_RULES for table in left.values()}


class Ages:
    """When ids of some tables go, as arrays.

    Args:
        tables: by index, (steps after which an id goes in its turn, or `NEVER`; steps from one turn to the next).

    Attributes:
        limits: (T + 1,) int64, these steps by table; the last is of all other tables.
        periods: (T + 1,) int64.
    """

    def __init__(self, tables: Mapping[int, tuple[int, int]]) -> None:
        size = max(tables, default=-1) + 2
        self.limits = np.full(size, NEVER, np.int64)
        self.periods = np.ones(size, np.int64)
        for index, (steps, period) in tables.items():
            self.limits[index], self.periods[index] = steps, period

    @classmethod
    def of_rows(cls, rules: Mapping[int, TableRules]) -> Ages:
        """When rows go, by the rules of each table."""
        return cls({index: (one.unused_steps, one.period) for index, one in rules.items()})

    @classmethod
    def of_candidates(cls, rules: Mapping[int, TableRules]) -> Ages:
        """When candidates go, by the rules of each table."""
        return cls({index: (one.candidate_unused_steps, one.period) for index, one in rules.items()})

    @property
    def any(self) -> bool:
        """Whether ids of any table go."""
        return bool((self.limits < NEVER).any())

    def gone(self, keys: npt.NDArray[np.int64], last_steps: npt.NDArray[Any], step: int) -> npt.NDArray[np.bool_]:
        """Which keys (n,) are gone after a step, as a mask (n,).

        Args:
            keys: of any tables; those of others never go.
            last_steps: (n,), the last step that used each.
            step: the number of the step, from 1.
        """
        tables = keys >> _ID_BITS
        tables[(tables < 0) | (tables >= len(self.limits))] = -1
        periods = self.periods[tables]
        turns = ((mix64(keys.view(np.uint64)) >> _U32) * periods.astype(np.uint64) >> _U32).astype(np.int64)
        due = last_steps.astype(np.int64) + self.limits[tables]
        mask: npt.NDArray[np.bool_] = due + (turns - due) % periods <= step
        return mask
