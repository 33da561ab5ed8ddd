"""Injects the faults of a run in their order, and ends those that last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.chaos.cluster.moments import Sight, complete, due
from tests.chaos.faults.incident import Incident, Instant, steps_under_way
from tests.chaos.faults.schedule import Fault, Run
from tests.chaos.results.recovery import Recovery

__all__ = ["Director", "Effect", "Injector"]


@dataclass(frozen=True)
class Effect:
    """What was done for a fault.

    Attributes:
        done: for people; empty: there was nothing to do it to.
        end: ends it; None: it is over at once. It returns whether it could, and is called until it does.
        go_on: is called again and again until then.
    """

    done: str
    end: Callable[[], bool] | None = None
    go_on: Callable[[], object] = lambda: None


class Injector(Protocol):
    """Carries out faults."""

    def inject(self, fault: Fault) -> Effect: ...


class Director:
    """Injects the faults of a run.

    Args:
        run: plan of the run.
        injector: carries out faults.
        clock: monotonic seconds.

    Attributes:
        incidents: the faults that have happened.
    """

    def __init__(self, run: Run, injector: Injector, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._injector = injector
        self._clock = clock
        self._before = Sight(None, frozenset(), frozenset())
        self._complete = False
        self._lasting: list[tuple[float, Effect]] = []  # with the times at which they are to end
        self.incidents: list[Incident] = []

    @property
    def pending(self) -> Sequence[Fault]:
        """The faults that have not happened yet."""
        return self._run.faults[len(self.incidents) :]

    @property
    def holds(self) -> bool:
        """Whether training should be slow: it has recovered, and something else has to happen before it may end."""
        recovered = bool(self.incidents) and self.incidents[-1].recovery.ended is not None
        return recovered and (bool(self._lasting) or (bool(self.pending) and not self._complete))

    def observed(self, sight: Sight) -> None:
        """Take what is seen of the job: end faults whose time is over, and inject the next one if it is due."""
        now = self._clock()
        self._lasting = [(until, effect) for until, effect in self._lasting if now < until or not _ended(effect)]
        for _, effect in self._lasting:
            effect.go_on()
        self._complete = complete(sight)
        for incident in self.incidents:
            incident.recovery.observe(now, sight.status)
        previous = self.incidents[-1] if self.incidents else None
        if self.pending and due(self.pending[0], sight, self._before, previous, lasts=bool(self._lasting)):
            self._inject(self.pending[0], sight, now)
        self._before = sight

    def finish(self) -> None:
        """Note the end of the job, and end all faults."""
        for incident in self.incidents:
            incident.recovery.finish(self._clock())
        self._lasting = [(0.0, effect) for _, effect in self._lasting if not _ended(effect)]

    @property
    def lasts(self) -> bool:
        """Whether a fault has not ended yet."""
        return bool(self._lasting)

    def _inject(self, fault: Fault, sight: Sight, now: float) -> None:
        incident = Incident(fault, Instant(fault.op, sight.step), Recovery(now, steps_under_way(self._run)))
        self.incidents.append(incident)
        effect = self._injector.inject(fault)
        incident.done = effect.done
        if effect.end is not None:
            self._lasting.append((now + fault.seconds, effect))


def _ended(effect: Effect) -> bool:
    return effect.end is None or effect.end()
