"""The control loop: observe, decide, act, wait; until the job is in a final phase.

All judgement is in `reconcile`; this module only carries values between it and the world. A turn is bounded: calls to
the coordinator have short timeouts, planning is a child process, nothing sleeps. The loop wakes when a process ends,
when it is asked to stop, and a few times a second to ask the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from heterps_operator.api.job import JobSpec
from heterps_operator.api.shapes import UnreadableError
from heterps_operator.control.reconcile import reconcile
from heterps_operator.documents import Json
from heterps_operator.loop.coordinator_answers import read_profiles, read_status
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_operator.loop.substrate import Coordinator, Planner, ProfileStore, Queue, Substrate
from heterps_operator.measure.measurement import Measurement, Meter
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan, PlanOutcome
from heterps_operator.state.prices import PriceHistory, PriceStep
from heterps_operator.state.status import Event, Phase, Status
from heterps_operator.state.turn import Turn
from heterps_operator.state.values import (
    Action,
    ComputePlan,
    CoordinatorView,
    FailJob,
    Observed,
    PoolCapacity,
    ProcessView,
    ReclaimQuota,
    RequestQuota,
    RequestStop,
    ReturnQuota,
    SaveProfile,
    Shutdown,
    StartProcess,
    StopProcess,
    SubmitPlan,
)
from heterps_runtime.clock import steady_time
from heterps_runtime.contract import JobPhase

__all__ = ["ControlLoop", "Listener"]

_TICK_SECONDS = 0.3
# Each takes a request. The rest is decided again: turns stay short, and the job notices soon what happens meanwhile.
_MOST_ACTIONS = 200
_SAVE_SECONDS = 1.0
_SOON_SECONDS = 0.25  # after one that refuses at once, as it does while it starts
_RETRY_SECONDS = 1.0  # after a coordinator that did not answer
# An answer that was waited for in vain: each further one doubles the pause. The longest is a part of the time after
# which a silent coordinator is ended, so that one that was only slow is heard before.
_SLOW_SECONDS = 0.5
_LONGEST_RETRY = 0.25
_ONE_TIME = {RequestStop: "stop", FailJob: "fail", Shutdown: "shutdown"}


class Listener(Protocol):
    """Is called with every turn: a display, for example."""

    def on_turn(self, turn: Turn) -> None:
        """Take note of a turn; must return soon."""
        ...


class ControlLoop:
    """Runs one job to its end.

    Args:
        job: what is wanted.
        substrate: where processes run.
        planner: makes the plans.
        cache: profiles of earlier runs.
        known_profiles: those that need no measuring, by pool.
        token: the job's secret.
        status: of an earlier run, made ready by `Status.begin_again`, or a new one.
        bill: what was charged so far.
        save: keeps status and bill; what it raises, other than for a full disk, ends the turn before anything is done.
        connect: opens a client of the coordinator at an address, with the job's token.
        measurement: of throughput and workers' speeds; None: those of the coordinator's status.
        queue: admits the job's processes; None: they start when the pools have units for them.
        save_seconds: between two savings while only the bill grows.
        clock: Unix seconds.
        monotonic: seconds that setting the machine's time does not change; for how long the coordinator is silent.
    """

    def __init__(
        self,
        job: JobSpec,
        substrate: Substrate,
        planner: Planner,
        cache: ProfileStore,
        *,
        token: str,
        save: Callable[[Status, Bill], None],
        known_profiles: Mapping[str, Json] | None = None,
        status: Status | None = None,
        bill: Bill | None = None,
        connect: Callable[[str, str], Coordinator] = CoordinatorClient,
        measurement: Measurement | None = None,
        queue: Queue | None = None,
        save_seconds: Callable[[], float] = lambda: _SAVE_SECONDS,
        clock: Callable[[], float] = steady_time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.status = status or Status()
        self.bill = bill or Bill()
        self.observed: Observed | None = None  # in the last turn
        self.profiles: dict[str, Json] = dict(known_profiles or {})
        self._cached = frozenset(self.profiles)
        self._substrate = substrate
        self._planner = planner
        self._cache = cache
        self._token = token
        self._save = save
        self._connect = connect
        self._queue = queue
        self._save_seconds = save_seconds
        self._clock = clock
        self._monotonic = monotonic
        self._meter = None if measurement is None else Meter(measurement, clock)
        self._client: Coordinator | None = None
        self._accepted: set[str] = set()
        self._refused: dict[str, str] = {}
        self._last_contact: float | None = None  # monotonic, as the next but one
        self._silence = ""  # what the last question led to that had no answer
        self._unreadable = False  # the last answer was malformed, and that was told
        self._retry_at = 0.0
        self._waited_in_vain = 0  # times in a row
        self._outcome: PlanOutcome | None = None
        self._stop_requested = False
        self._aborted = False
        self._saved = 0.0
        self._unsaved = False
        self._acted = False  # in the turn before
        self._pending: list[Event] = []
        self._prices: dict[str, PriceHistory] = {}
        self._changed_plan: JobPlan | None = None

    def change(self, job: JobSpec, planner: Planner, plan: JobPlan | None = None) -> None:
        """Change to another spec and its planner with the next turn, and to its plan if there is one."""
        self.job, self._planner, self._changed_plan = job, planner, plan

    @property
    def changing(self) -> bool:
        """Whether a changed plan waits for the next turn, or could not be stored in the last one."""
        return self._changed_plan is not None

    def request_stop(self) -> None:
        """End the job in order; a second call ends its processes at once. Safe in a signal handler."""
        self._aborted = self._stop_requested
        self._stop_requested = True
        self._substrate.wake()

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` was called."""
        return self._stop_requested

    def run(self, listener: Listener) -> Status:
        """Turn until the job is in a final phase (or paused, or aborted).

        Args:
            listener: is shown every turn.

        Returns:
            The last status.
        """
        try:
            while True:
                listener.on_turn(self.turn())
                if self.status.final or self.status.phase == Phase.PAUSED or self._aborted:
                    return self.status
                self._substrate.wait(_TICK_SECONDS)
        finally:
            self._planner.close()
            self._substrate.close()
            self._charge(self._substrate.processes(), self._clock())
            self._store(self.status, self._clock())

    def turn(
        self,
        capacity: PoolCapacity = PoolCapacity(),  # noqa: B008  # a frozen value
        prices: Mapping[str, PriceHistory] | None = None,
    ) -> Turn:
        """Observe, decide and act once.

        Args:
            capacity: of the device pools; without one they have no limits.
            prices: of the pools whose prices may change; the others have those of the job.
        """
        self._prices = dict(prices or {})
        job = self.job.priced({pool: history[-1].price for pool, history in self._prices.items()})
        observed = self._observe(capacity)
        self._charge(observed.processes, observed.time)
        decision = reconcile(job, observed)
        # What was decided is kept before it is done: a controller killed in between must not count a death twice.
        # What was done is kept at the next turn: a process that ends unseen must be known to have been there.
        matters = decision.status.phase != observed.status.phase or decision.actions or decision.events or self._acted
        self._acted = bool(decision.actions)
        if matters or observed.time - self._saved >= self._save_seconds():
            self._store(decision.status, observed.time)
        self.observed, self.status, self._changed_plan = observed, decision.status, None
        self._pending = [*decision.events, *self._pending]  # told with a later turn if an action fails
        for action in decision.actions[:_MOST_ACTIONS]:
            self._act(action, observed.time)
        events, self._pending = tuple(self._pending), []
        unfinished = len(decision.actions) > _MOST_ACTIONS
        return Turn(job, observed, self.status, self.bill, events, unfinished)

    # --- observing ----------------------------------------------------------------------------------------------------

    def _observe(self, capacity: PoolCapacity) -> Observed:
        # Processes first: a member that has ended delivered before, so the coordinator's later answer knows of it.
        processes = self._substrate.processes()
        view = self._ask_coordinator()
        outcome = self._planner.poll()
        if outcome is not None:
            self._outcome = outcome
        now, contact = self._clock(), self._last_contact
        return Observed(
            time=now,
            status=self.status,
            processes=processes,
            coordinator=view,
            last_contact=None if contact is None else now - (self._monotonic() - contact),
            silence=self._silence,
            accepted=frozenset(self._accepted),
            refused=dict(self._refused),
            profiles=dict(self.profiles),
            cached_profiles=self._cached,
            planning=self._planner.running,
            outcome=self._outcome,
            stop_requested=self._stop_requested,
            capacity=capacity,
            prices=self._prices,
            quota=None if self._queue is None else self._queue.requests(),
            changed_plan=self._changed_plan,
        )

    def _ask_coordinator(self) -> CoordinatorView | None:
        address = self._substrate.coordinator_address()
        if address is None:
            self._client = self._last_contact = None
            return None
        if self._client is None or self._client.address != address:
            self._client = self._connect(address, self._token)
            self._accepted.clear()
            self._refused.clear()
            self._last_contact = None
            self._retry_at = 0.0
            self._waited_in_vain = 0
        began = self._monotonic()
        if began < self._retry_at:
            return None
        try:
            view = self._read_coordinator(self._client)
        except CoordinatorError as error:
            self._silence = str(error)
            ended = self._monotonic()
            self._retry_at = ended + self._retry_seconds(ended - began)
            if error.malformed and not self._unreadable:
                self._pending.append(Event("Warning", "CoordinatorUnreadable", _unreadable(error), self._clock()))
            self._unreadable = error.malformed
            return None
        self._last_contact, self._waited_in_vain, self._unreadable = self._monotonic(), 0, False
        if self._meter is not None and view.phase == JobPhase.TRAINING:
            view, warnings = self._meter.measure(view, address)
            self._pending += warnings
        return view

    def _read_coordinator(self, client: Coordinator) -> CoordinatorView:
        """Return the coordinator's status, after reading new profiles.

        Raises:
            CoordinatorError: no answer, a refusal, or an answer that cannot be read.
        """
        try:
            view = read_status(client.status())
            if view.phase == JobPhase.PROFILING:
                self.profiles.update(read_profiles(client.profiles()))
        except UnreadableError as error:
            raise CoordinatorError(str(error), malformed=True) from error
        return view

    def _retry_seconds(self, waited: float) -> float:
        """Pause after a coordinator that did not answer: one that hangs must not hold threads that others need."""
        if waited < _SLOW_SECONDS:
            return _SOON_SECONDS if self._last_contact is None else _RETRY_SECONDS
        self._waited_in_vain += 1
        longest = max(_RETRY_SECONDS, self.job.run_policy.hang_timeout_seconds * _LONGEST_RETRY)
        return min(_RETRY_SECONDS * 2.0 ** min(self._waited_in_vain, 10), longest)

    # --- acting -------------------------------------------------------------------------------------------------------

    def _act(self, action: Action, now: float) -> None:
        match action:
            case StartProcess(spec):
                self._substrate.start(spec)
            case StopProcess(name, grace_seconds):
                self._substrate.stop(name, grace_seconds)
            case SaveProfile(pool, profile):
                self._cache.save(pool, profile)
                self._cached |= {pool}
            case RequestQuota() | ReclaimQuota() | ReturnQuota():
                assert self._queue is not None, "only a job in a queue asks for quota"
                self._queue.carry_out(action)
            case ComputePlan(problem, revision, stages):
                self._outcome = None  # an earlier answer may have the same revision
                self._planner.start(problem, revision, stages)
            case _:
                self._send(action, now)

    def _send(self, action: Action, now: float) -> None:
        kind = action.request if isinstance(action, SubmitPlan) else _ONE_TIME.get(type(action))
        if self._client is None:
            return  # it ended since it was observed; the next turn sees that
        try:
            self._client.send(action)
        except CoordinatorError as error:
            if error.code is not None:
                self._pending.append(Event("Warning", "RequestRefused", str(error), now))
                if kind is not None:
                    self._refused[kind] = str(error)
                    self._accepted.add(kind)  # asking again would be refused again
            return
        if kind is not None:
            self._accepted.add(kind)

    def _charge(self, processes: Iterable[ProcessView], now: float) -> None:
        fixed = {pool: (PriceStep(price),) for pool, price in self.job.prices.items()}
        self.bill = self.bill.accrue(processes, fixed | self._prices, now)

    def _store(self, status: Status, now: float) -> None:
        """Keep status and bill; a full disk must not end a training that can go on."""
        self._saved = now
        try:
            self._save(status, self.bill)
        except OSError as error:
            if not self._unsaved:
                text = f"{error}; training goes on, and the state is saved when that is possible again"
                self._pending.append(Event("Warning", "StateNotSaved", text, now))
            self._unsaved = True
        else:
            self._unsaved = False


def _unreadable(error: CoordinatorError) -> str:
    fix = "does spec.image contain a HeterPS runtime of the operator's version?"
    return f"the coordinator's answer cannot be read ({error}); it counts as unreachable until it can; {fix}"
