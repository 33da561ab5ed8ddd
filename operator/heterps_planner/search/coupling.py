"""Choice of one plan per job for jobs that are coupled by their use of pools, with a lower bound on the sum.

The coupling is a tariff: some pods of each pool are free, further ones have a one-time charge each, and the total is
limited. Without free pods and charges this is a shared limit (`joint`); with the running pods as the free ones it is
the price of starting others (`migration`).

1. Multipliers, one per pool and row of the tariff, make the jobs independent. The best ones are the dual prices of a
   linear programme over the known plans; the cheapest plan of each job at these prices (`cheapest`) either enters it,
   or proves the bound (column generation; Gilmore and Gomory 1961, Barnhart et al. 1998).
2. One plan per job out of those known is chosen exactly, by depth-first search with the bound of the multipliers.
3. The rest of the gap is closed by listing every plan whose reduced cost lies within the gap: no other plan can be
   part of a better choice. If there are too many, the bound and the gap are reported as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.search.points import Choice
from heterps_planner.search.priced_search import PricedJob, cheapest, plans_below

__all__ = ["Coupled", "CoupledJob", "Tariff", "solve"]

_PROVEN = 4e-9  # relative gaps below this are rounding
_ROUNDS = 60  # of column generation
_MOST_PLANS = 6_000  # per job, within the gap
_MOST_NODES = 100_000  # of one depth-first search
_TINY = 1e-9


@dataclass(frozen=True)
class CoupledJob:
    """One job, with the indices of its pools in the tariff."""

    job: PricedJob
    pools: NDArray[np.intp]  # (T of the job,) index of each of its pools in the tariff

    def used(self, choice: Choice, num_pools: int) -> FloatArray:
        """Return the pods of each of the tariff's pools that a plan uses."""
        used = np.zeros(num_pools)
        np.add.at(used, self.pools, self.job.used(choice))
        return used


@dataclass(frozen=True)
class Tariff:
    """One-time charges and limits of the pods of all members together; shape (T,) each."""

    limit: FloatArray
    free: FloatArray  # pods without a charge
    charge: FloatArray  # dollars for each further pod

    def dollars(self, used: FloatArray) -> float:
        """Return the one-time charge of a total use; infinite beyond a limit."""
        if (used > self.limit + _TINY).any():
            return math.inf
        return float(self.charge @ np.maximum(used - self.free, 0.0))


@dataclass
class Coupled:
    """The outcome of `solve`."""

    choices: tuple[Choice, ...] | None  # one per member; None: none found
    dollars: float  # sum over all members, including charges; infinite if there is no choice
    bound: float  # no choice costs less; infinite if infeasibility is proven
    num_rounds: int = 0


@dataclass
class _Columns:
    """The known plans of one member."""

    choices: list[Choice] = field(default_factory=list)
    dollars: list[float] = field(default_factory=list)
    used: list[FloatArray] = field(default_factory=list)
    known: set[Choice] = field(default_factory=set)


class _MasterProblem:
    """Known plans of all members, and the best choice among them."""

    def __init__(self, members: Sequence[CoupledJob], tariff: Tariff) -> None:
        self.members = members
        self.tariff = tariff
        self.columns = [_Columns() for _ in members]
        self.ceilings = [m.job.most_dollars for m in members]
        self.worst = sum(self.ceilings) + float(tariff.charge @ tariff.limit)
        self.best: tuple[Choice, ...] | None = None
        self.dollars = math.inf

    def add(self, member: int, choice: Choice) -> bool:
        """Add a plan; return False if it is known or breaks one of its own limits."""
        columns, who = self.columns[member], self.members[member]
        if choice in columns.known or not who.job.allows(choice):
            return False
        columns.known.add(choice)
        columns.choices.append(choice)
        columns.dollars.append(who.job.dollars(choice))
        columns.used.append(who.used(choice, len(self.tariff.limit)))
        return True

    def offer(self, choices: Sequence[Choice]) -> None:
        """Offer one plan per member as a solution."""
        total, used = 0.0, np.zeros(len(self.tariff.limit))
        for i, (who, choice) in enumerate(zip(self.members, choices, strict=True)):
            self.add(i, choice)
            total += who.job.dollars(choice)
            used += who.used(choice, len(used))
        total += self.tariff.dollars(used)
        if total < self.dollars:
            self.dollars, self.best = total, tuple(choices)

    def prices(self) -> tuple[FloatArray, FloatArray]:
        """Return the dual prices of the limits and of the free pods, from the linear programme over the known plans.

        Each member may also have no plan, at a price above all plans, so that the programme is always feasible.
        """
        # Imported here: it takes 100 MB of a planner's address space, and only limits that bind need it.
        from scipy.optimize import linprog

        num_pools, tariff = len(self.tariff.limit), self.tariff
        costs, usage, owner = [], [], []
        for i, columns in enumerate(self.columns):
            costs += [*columns.dollars, 2 * self.worst + 1]
            usage += [*columns.used, np.zeros(num_pools)]
            owner += [i] * (len(columns.choices) + 1)
        use = np.array(usage).T  # (T, plans)
        over = -np.eye(num_pools)
        scale = max(1.0, self.worst)
        result = linprog(
            np.concatenate([costs, tariff.charge]) / scale,
            A_ub=np.block([[use, np.zeros((num_pools, num_pools))], [use, over]]),
            b_ub=np.concatenate([tariff.limit, tariff.free]),
            A_eq=np.hstack(
                [np.arange(len(self.members))[:, None] == np.array(owner), np.zeros((len(self.members), num_pools))]
            ),
            b_eq=np.ones(len(self.members)),
            method="highs",
        )
        duals = np.maximum(-result.ineqlin.marginals * scale, 0.0)
        return duals[:num_pools], np.minimum(duals[num_pools:], tariff.charge)

    def choose(self, once: FloatArray, constant: float, should_stop: Callable[[], bool]) -> bool:
        """Find the best choice among the known plans; return False if the search was cut short.

        Args:
            once: multipliers per pool.
            constant: amount that the multipliers subtract from the sum of the reduced costs.
            should_stop: called regularly.
        """
        reduced, order = [], []
        for columns in self.columns:
            values = np.array(columns.dollars) + (np.array(columns.used).reshape(-1, len(once)) @ once)
            ranks = np.argsort(values, kind="stable")
            reduced.append(values[ranks])
            order.append(ranks)
        if any(len(values) == 0 for values in reduced):
            return True
        use = [np.array(c.used)[ranks] for c, ranks in zip(self.columns, order, strict=True)]
        # Members with few plans first; `rest` is the least cost that the later ones add.
        sequence = sorted(range(len(self.members)), key=lambda i: len(reduced[i]))
        rest = np.append(np.cumsum([reduced[i][0] for i in sequence][::-1])[::-1], 0.0)
        nodes = 0
        chosen: list[int] = []

        def descend(depth: int, spent: float, used: FloatArray) -> bool:
            nonlocal nodes
            nodes += 1
            if nodes > _MOST_NODES or (nodes % 256 == 0 and should_stop()):
                return False
            if depth == len(sequence):
                picks = dict(zip(sequence, chosen, strict=True))
                self.offer([self.columns[i].choices[order[i][picks[i]]] for i in range(len(sequence))])
                return True
            member = sequence[depth]
            fits = np.flatnonzero((used + use[member] <= self.tariff.limit + _TINY).all(axis=1))
            for k in fits.tolist():
                now = spent + float(reduced[member][k])
                if now + rest[depth + 1] - constant >= self.dollars * (1 - _PROVEN / 4):
                    break
                chosen.append(k)
                complete = descend(depth + 1, now, used + use[member][k])
                chosen.pop()
                if not complete:
                    return False
            return True

        return descend(0, 0.0, np.zeros(len(once)))


def solve(
    members: Sequence[CoupledJob],
    tariff: Tariff,
    incumbents: Sequence[Sequence[Choice]] = (),
    bound: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Coupled:
    """Choose the cheapest plans.

    Args:
        members: the jobs.
        tariff: coupling of the jobs.
        incumbents: known choices, which need not keep the limits.
        bound: a known lower bound, dollars.
        should_stop: called regularly; when it returns True, the best so far is returned with its bound.
    """
    master = _MasterProblem(members, tariff)
    for choices in incumbents:
        master.offer(choices)
    best_limit, best_free = np.zeros(len(tariff.limit)), np.zeros(len(tariff.limit))
    values = [0.0] * len(members)
    rounds, result_bound = 0, bound
    price_limit, price_free = best_limit, best_free
    while rounds < _ROUNDS and not should_stop():
        rounds += 1
        once = price_limit + price_free
        found = [cheapest(m.job, once[m.pools], should_stop) for m in members]
        if any(item.bound == math.inf for item in found):
            return Coupled(None, math.inf, math.inf, num_rounds=rounds)
        constant = float(price_limit @ tariff.limit + price_free @ tariff.free)
        value = sum(item.bound for item in found) - constant
        if value > result_bound or rounds == 1:
            best_limit, best_free, values = price_limit, price_free, [item.bound for item in found]
        result_bound = max(result_bound, value)
        fresh = [master.add(i, choice) for i, item in enumerate(found) for choice in item.choices]
        master.choose(once, constant, should_stop)
        if result_bound >= master.dollars * (1 - _PROVEN) or (rounds > 1 and not any(fresh)):
            break
        price_limit, price_free = master.prices()
    if result_bound < master.dollars * (1 - _PROVEN) and not should_stop():
        result_bound = _close(master, best_limit, best_free, values, result_bound, should_stop)
    if master.best is None:
        return Coupled(None, math.inf, math.inf if result_bound >= master.worst else result_bound, rounds)
    if result_bound >= master.dollars * (1 - _PROVEN):
        result_bound = master.dollars
    return Coupled(master.best, master.dollars, result_bound, rounds)


def _close(
    master: _MasterProblem,
    price_limit: FloatArray,
    price_free: FloatArray,
    values: Sequence[float],
    bound: float,
    should_stop: Callable[[], bool],
) -> float:
    """Search all plans whose reduced cost lies within the gap; return the bound that this proves."""
    once, tariff = price_limit + price_free, master.tariff
    constant = float(price_limit @ tariff.limit + price_free @ tariff.free)
    upper = min(master.dollars, master.worst)
    spare = upper - (sum(values) - constant)
    for i, member in enumerate(master.members):
        cutoff = values[i] + spare
        plans = plans_below(member.job, once[member.pools], cutoff + _TINY * abs(cutoff), _MOST_PLANS, should_stop)
        if plans is None:
            return bound
        for choice in plans:
            master.add(i, choice)
    if not master.choose(once, constant, should_stop):
        return bound
    return min(master.dollars, upper) if master.best is not None else math.inf
