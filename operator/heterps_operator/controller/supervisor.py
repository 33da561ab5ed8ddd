"""Turns of all jobs: due jobs get them in a few threads.

A job whose turn fails (the API server is away, a bug) is retried with growing pauses, and never delays another job.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

from heterps_operator.controller.capacity.ledger import job_key
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.controller import JobController
from heterps_operator.controller.line_keeper import LineKeeper
from heterps_operator.controller.pools import PoolKeeper
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.controller.reflector import Reflector
from heterps_operator.controller.stores.objects import Key
from heterps_operator.controller.work_queue import WorkQueue
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.reading.complaints import failed_turn
from heterps_operator.kubernetes.reading.readable import JOB
from heterps_operator.kubernetes.state import StateTaken

__all__ = ["Supervisor"]

_LOG = logging.getLogger("heterps.operator")
_THREAD_RETRY_SECONDS = 10.0  # after an unexpected error in a thread
_LONGEST_RETRY_SECONDS = 60.0
_STUCK_SECONDS = 180.0  # a turn waits some seconds for the API server, and some for a coordinator
_TAKEN_SECONDS = 10.0  # after another operator was found working on a job
_JOIN_SECONDS = 10.0
_SHARE_FOR_OTHERS = 4  # one thread in four


class Supervisor:
    """Runs the controllers of all jobs.

    Args:
        cluster: the context that the jobs share.
        namespaces: namespaces of the managed jobs; empty: all.
        threads: number of concurrent turns.
        jitter: returns random numbers in [0, 1).

    Attributes:
        queue: due times of the jobs.
        pools: keeps the pools' limits and status.
        reflector: fills the stores; watches report to it.
    """

    def __init__(
        self,
        cluster: OperatorContext,
        *,
        namespaces: Iterable[str] = (),
        threads: int = 8,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._jitter = jitter
        # Some threads are left for other namespaces, whatever the jobs of one do.
        most = max(1, threads - threads // _SHARE_FOR_OTHERS)
        self.queue = WorkQueue(on_wait=cluster.metrics.on_wait, most_of_namespace=most)
        self._problems = ProblemRecorder(cluster.api, cluster.clock)
        self.pools = PoolKeeper(cluster, self._problems, self.wake_waiting)
        self.reflector = Reflector(
            cluster,
            self.pools,
            self._problems,
            self.queue.wake,
            self._wake_for_pool,
            namespaces=namespaces,
            jitter=jitter,
        )
        self._line = LineKeeper(cluster, self.queue.wake)
        self._controllers: dict[Key, JobController] = {}
        self._failures: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"turn-{number}", daemon=True) for number in range(threads)
        ]
        loops = {
            "pools": self.pools.run,
            "line": self._line.run,
            "resync": self.reflector.run,
            "recorder": self._problems.run,
        }
        if cluster.pool_file is not None:
            loops["pool-file"] = self.reflector.follow_file
        for name, run in loops.items():
            self._threads.append(threading.Thread(target=self._keep_on, args=(run,), name=name, daemon=True))
        self.last_turn = cluster.clock()
        cluster.metrics.watch_queue(self.queue.depth)

    def start(self) -> None:
        """Fill the stores, then start the threads.

        Raises:
            ApiError: the API server does not answer.
        """
        self.reflector.synchronize()
        self.pools.read_prices()  # before jobs are charged
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for running turns, and start no more. Pods keep running. May be called at any time."""
        self._stop.set()
        self.pools.changed.set()
        self._line.changed.set()
        self.reflector.listed()
        self.queue.close()
        self._problems.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=_JOIN_SECONDS)
        for key in list(self._controllers):
            self._drop(key)

    def trouble(self) -> str | None:
        """Return why jobs get no turns, or late ones, for a liveness probe; None if they do."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead:
            return f"threads have ended: {', '.join(dead)}"
        idle = self._cluster.clock() - self.last_turn
        if self.queue.depth() and idle > _STUCK_SECONDS:
            return f"{self.queue.depth()} jobs are due, and none was reconciled for {idle:.0f} s"
        return self.reflector.trouble()

    def wake_waiting(self) -> None:
        """Wake the jobs that wait for units outside the line. Other jobs notice free units in their next turn."""
        with self._lock:
            waiting = [key for key, controller in self._controllers.items() if controller.waits_for_room]
        waiting = [key for key in waiting if not self._cluster.line.stands(job_key(*key))]
        for key in waiting:
            self.queue.wake(key)

    def _wake_for_pool(self, key: Key) -> None:
        """Wake a job that names a changed pool, unless no pool matters to it."""
        with self._lock:
            controller = self._controllers.get(key)
        if controller is None or controller.heeds_pools:
            self.queue.wake(key)

    # --- threads ------------------------------------------------------------------------------------------------------

    def _keep_on(self, run: Callable[[threading.Event], None]) -> None:
        """Run a loop until `stop`; an unexpected error does not end its thread."""
        while not self._stop.is_set():
            try:
                run(self._stop)
            except Exception:
                name = threading.current_thread().name
                _LOG.exception("thread %s failed; continuing in %.0f s", name, _THREAD_RETRY_SECONDS)
                self._stop.wait(_THREAD_RETRY_SECONDS)

    def _work(self) -> None:
        while (key := self.queue.take()) is not None:
            pause: float | None = _LONGEST_RETRY_SECONDS
            try:
                pause = self._turn(key)
            except Exception:  # one job must not end the operator
                _LOG.exception("%s: cannot be reconciled; retrying in %.0f s", job_key(*key), pause, extra=_about(key))
            self.queue.done(key, pause)

    def _turn(self, key: Key) -> float | None:
        """Give a job a turn; return the seconds until its next one."""
        began = self._cluster.clock()
        error: Exception | None = None
        pause: float | None = None
        try:
            pause = self._controller(key).turn()
            self._failures.pop(key, None)
        except StateTaken as taken:
            _LOG.warning("%s: %s; another operator is working on it", job_key(*key), taken, extra=_about(key))
            self._drop(key)
            pause = _TAKEN_SECONDS
        except Exception as failure:  # one job must not hold up the others
            error = failure
            pause = self._retry_seconds(key)
            if isinstance(failure, ApiError):
                _LOG.warning("%s: %s; retrying in %.0f s", job_key(*key), failure, pause, extra=_about(key))
            else:
                _LOG.exception("%s: the turn failed; retrying in %.0f s", job_key(*key), pause, extra=_about(key))
                if (job := self._cluster.jobs.get(*key)) is not None:
                    self._problems.tell(JOB, job, failed_turn(failure))
        self.last_turn = self._cluster.clock()
        self._cluster.metrics.on_turn(key, self.last_turn - began, error)
        self._cluster.active_jobs = self.queue.known()
        if self._cluster.jobs.get(*key) is not None:
            return pause
        self._drop(key)
        self.wake_waiting()  # its units are free
        return None

    def _controller(self, key: Key) -> JobController:
        with self._lock:
            known = self._controllers.get(key)
            if known is None:
                known = JobController(self._cluster, key, lambda: self.queue.wake(key))
                self._controllers[key] = known
            return known

    def _drop(self, key: Key) -> None:
        with self._lock:
            controller = self._controllers.pop(key, None)
            self._failures.pop(key, None)
        if controller is not None:
            try:
                controller.abandon()
            except Exception:
                _LOG.exception("%s: its local files were not deleted", job_key(*key), extra=_about(key))

    def _retry_seconds(self, key: Key) -> float:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return min(2.0 ** min(failures - 1, 10), _LONGEST_RETRY_SECONDS) * (0.75 + 0.5 * self._jitter())


def _about(key: Key) -> dict[str, Any]:
    """Return what a record about a job carries for structured logs."""
    namespace, name = key
    return {"k8s_ref": {"kind": "HeterPSJob", "namespace": namespace, "name": name}}
