"""The units of DevicePools that jobs hold.

The ledger keeps the sum of all jobs within each pool's limit, and the sum of the jobs of a namespace within its own:
units are reserved before a pod is created, and stay held while the pod exists, whatever the job decides meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from heterps_operator.control.queueing.waiting_line import FreeUnits

__all__ = ["Grant", "Ledger", "Shortfall", "job_key"]


def job_key(namespace: str, name: str) -> str:
    """Cluster-wide name of a job."""
    return f"{namespace}/{name}"


@dataclass(frozen=True)
class Shortfall:
    """Why units of a pool were not granted."""

    pool: str
    wanted: int
    free: int  # units available to the job
    holders: tuple[tuple[str, int], ...]  # other jobs and their units, the largest first

    def __str__(self) -> str:
        taken = ", ".join(f"{job} holds {units}" for job, units in self.holders) or "no other job holds any"
        return f"pool {self.pool}: {self.wanted} units wanted, {self.free} free; {taken}"


@dataclass(frozen=True)
class Grant:
    """Result of a reservation: all units, or none and the reason."""

    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def granted(self) -> bool:
        """Whether the units are reserved."""
        return not self.shortfalls


@dataclass
class _Holding:
    """Units of one job, by pool."""

    reserved: dict[str, int] = field(default_factory=dict)  # units that it may create pods for
    occupied: dict[str, int] = field(default_factory=dict)  # units of existing pods

    def units(self, pool: str) -> int:
        return max(self.reserved.get(pool, 0), self.occupied.get(pool, 0))

    def pools(self) -> set[str]:
        return {*self.reserved, *self.occupied}


class Ledger:
    """Units of each pool that each job holds. Thread-safe.

    A job holds the maximum of its reservation and its pods' units: a shrinking job keeps its units until the pods are
    gone. A reservation that would exceed a limit of the pool or of the namespace is refused as a whole; one within the
    job's current units is always granted, even after nodes were lost or a limit was lowered.

    Attributes:
        version: goes up with every change of the units that are free.
        on_change: called after such a change, under the ledger's lock; it must not block.
    """

    def __init__(self) -> None:
        self.version = 0
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._limits: dict[str, int] = {}
        self._namespaces: dict[str, Mapping[str, int | None]] = {}  # by pool, then by namespace
        self._jobs: dict[str, _Holding] = {}
        # Every turn of a job asks for free units: sums over hundreds of jobs would dominate it.
        self._counted: dict[str, dict[str, int]] = {}  # by job, its part of the totals
        self._totals: dict[str, int] = {}  # by pool
        self._shares: dict[tuple[str, str], int] = {}  # by namespace and pool

    def set_limits(
        self, limits: Mapping[str, int], namespaces: Mapping[str, Mapping[str, int | None]] | None = None
    ) -> None:
        """Set the units that jobs may hold.

        Args:
            limits: units of all jobs together, by pool; absent pools are unknown and have none.
            namespaces: units of the jobs of each namespace together, by pool and namespace; None: no limit of its own.
                A pool that is absent limits no namespace; a namespace that is absent from its pool has no units.
        """
        with self._lock:
            before = self._limits, self._namespaces
            self._limits, self._namespaces = dict(limits), dict(namespaces or {})
            if before != (self._limits, self._namespaces):
                self._changed()

    def namespace_limit(self, pool: str, job: str) -> int | None:
        """Return the limit of a job's namespace; None: the limit of the pool leaves the job no more than that."""
        with self._lock:
            if self._free_of_namespace(pool, job) >= self._free_of_pool(pool, job):
                return None
            return self._namespaces[pool].get(_namespace(job), 0)

    def reserve(self, job: str, units: Mapping[str, int]) -> Grant:
        """Replace a job's reservation, all or nothing.

        Args:
            job: `job_key` of the job.
            units: the job's units by pool; absent pools are released.
        """
        with self._lock:
            holding = self._jobs.get(job) or _Holding()
            short = tuple(
                Shortfall(pool, wanted, max(0, self._free(pool, job)), self._holders(pool, job))
                for pool, wanted in sorted(units.items())
                if wanted > holding.units(pool) and wanted > self._free(pool, job)
            )
            if not short:
                holding.reserved = {pool: number for pool, number in units.items() if number > 0}
                self._keep(job, holding)
            return Grant(short)

    def restore(self, job: str, units: Mapping[str, int]) -> None:
        """Record the reservation that an earlier operator granted; it is a fact, so limits do not apply."""
        with self._lock:
            holding = self._jobs.get(job) or _Holding()
            holding.reserved = {pool: number for pool, number in units.items() if number > 0}
            self._keep(job, holding)

    def occupy(self, job: str, units: Mapping[str, int]) -> None:
        """Record the units that the job's pods occupy."""
        with self._lock:
            holding = self._jobs.get(job) or _Holding()
            holding.occupied = {pool: number for pool, number in units.items() if number > 0}
            self._keep(job, holding)

    def release(self, job: str) -> None:
        """Release the reservation; units of existing pods stay held until they are gone."""
        self.restore(job, {})

    def held(self, pool: str) -> int:
        """Units of a pool that jobs hold."""
        with self._lock:
            return self._totals.get(pool, 0)

    def held_by(self, job: str) -> dict[str, int]:
        """Units that a job holds, by pool."""
        with self._lock:
            holding = self._jobs.get(job) or _Holding()
            return {pool: holding.units(pool) for pool in sorted(holding.pools())}

    def holders(self, pool: str, excluding: str = "") -> tuple[tuple[str, int], ...]:
        """Jobs that hold units of a pool, with their units, the largest first."""
        with self._lock:
            return self._holders(pool, excluding)

    def free(self, pool: str, excluding: str = "") -> int:
        """Units of a pool available to a job: what the others leave of both limits, never negative."""
        with self._lock:
            return max(0, self._free(pool, excluding))

    def free_units(self, job: str, pools: Iterable[str]) -> dict[str, int]:
        """Limits for planning a job: for each of its pools, its own units plus the free ones."""
        with self._lock:
            holding = self._jobs.get(job) or _Holding()
            return {pool: max(0, holding.units(pool), self._free(pool, job)) for pool in pools}

    def most_units(self, job: str, pools: Iterable[str]) -> dict[str, int]:
        """Units of each pool that a job could hold if it were alone."""
        with self._lock:
            return {pool: int(min(self._limits.get(pool, 0), self._namespace_limit(pool, job))) for pool in pools}

    def snapshot(self) -> tuple[int, FreeUnits]:
        """Return the version, and what all jobs leave of the pools and of their namespaces' limits."""
        with self._lock:
            limited = {
                (namespace, pool): limit - self._shares.get((namespace, pool), 0)
                for pool, limits in self._namespaces.items()
                for namespace, limit in limits.items()
                if limit is not None
            }
            free = {pool: limit - self._totals.get(pool, 0) for pool, limit in self._limits.items()}
            return self.version, FreeUnits(free, self._limits, dict(self._shares), limited)

    # --- under the lock ---

    def _changed(self) -> None:
        self.version += 1
        self.on_change()

    def _free(self, pool: str, job: str) -> int:
        return int(min(self._free_of_pool(pool, job), self._free_of_namespace(pool, job)))

    def _free_of_pool(self, pool: str, job: str) -> int:
        return self._limits.get(pool, 0) - self._totals.get(pool, 0) + self._counted.get(job, {}).get(pool, 0)

    def _free_of_namespace(self, pool: str, job: str) -> float:
        shared = self._shares.get((_namespace(job), pool), 0)
        return self._namespace_limit(pool, job) - shared + self._counted.get(job, {}).get(pool, 0)

    def _namespace_limit(self, pool: str, job: str) -> float:
        limits = self._namespaces.get(pool)
        limit = None if limits is None else limits.get(_namespace(job), 0)
        return math.inf if limit is None else limit

    def _holders(self, pool: str, excluding: str) -> tuple[tuple[str, int], ...]:
        held = [(key, h.units(pool)) for key, h in self._jobs.items() if key != excluding and h.units(pool)]
        return tuple(sorted(held, key=lambda entry: (-entry[1], entry[0])))

    def _keep(self, job: str, holding: _Holding) -> None:
        namespace, before = _namespace(job), self._counted.get(job, {})
        for pool, units in self._counted.pop(job, {}).items():
            self._totals[pool] -= units
            self._shares[namespace, pool] -= units
        counted = {pool: holding.units(pool) for pool in holding.pools()}
        for pool, units in counted.items():
            self._totals[pool] = self._totals.get(pool, 0) + units
            self._shares[namespace, pool] = self._shares.get((namespace, pool), 0) + units
        if counted:
            self._jobs[job], self._counted[job] = holding, counted
        else:
            self._jobs.pop(job, None)
        if counted != before:
            self._changed()


def _namespace(job: str) -> str:
    return job.partition("/")[0]
