"""kopf's part: the watches. Each event goes to the supervisor, which decides nothing and returns at once.

Only low-level event handlers are used: they leave no finalizer and no annotation on anything, so that objects can be
deleted while no operator runs, and nothing of ours stays behind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import kopf

from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.names import LABEL_JOB
from heterps_runtime.contract import API_GROUP

__all__ = ["watch"]

_LOG = logging.getLogger("heterps.operator")
_VERSION = "v1alpha1"
_PAGE = 200  # objects of one answer
_IDLE_SECONDS = 1.0  # that a task is kept for an object without news: there are thousands of pods
_WELL_SECONDS = 120.0  # watches that have lasted so long were well
_MOST_FAILURES = 8  # one after the other: two minutes
_LONGEST_PAUSE_SECONDS = 30.0
_STOP_SECONDS = 0.2  # between two looks at whether the operator is to end
_WATCH_SECONDS = 600  # after which the API server ends a watch, and another one begins


def watch(
    supervisor: Supervisor,
    stop: threading.Event,
    *,
    namespaces: Sequence[str],
    login: Callable[[], kopf.ConnectionInfo],
) -> None:
    """Report everything that happens to jobs, their pods, device pools and nodes; returns when `stop` is set.

    kopf ends at what it does not expect of a watch: an error other than 410, a line that was cut, a refusal that lasts.
    Then the watches begin anew. If that fails again and again, so does this function.

    Args:
        supervisor: is told.
        stop: ends the watches.
        namespaces: whose jobs and pods are watched; empty: all.
        login: how the API server is reached.
    """
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the resources are known; looking for them needs rights on CRDs
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.chunk_size = _PAGE  # ten thousand pods at once would take half a gigabyte
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.watching.label_selectors["pods"] = LABEL_JOB
    settings.persistence.diffbase_storage = _NoDifferences()

    @kopf.on.login(registry=registry)
    def _log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    def report(seen: Callable[..., None]) -> Callable[..., Any]:
        async def handler(event: Any, **_: Any) -> None:
            seen(dict(event["object"]), gone=event["type"] == "DELETED")
            if event["type"] is None:  # of the list that a watch begins with
                supervisor.listed()

        return handler

    kopf.on.event(API_GROUP, _VERSION, "heterpsjobs", registry=registry, id="jobs")(report(supervisor.job_seen))
    kopf.on.event(API_GROUP, _VERSION, "devicepools", registry=registry, id="pools")(report(supervisor.pool_seen))
    kopf.on.event("", "v1", "pods", registry=registry, id="pods")(report(supervisor.pod_seen))
    kopf.on.event("", "v1", "nodes", registry=registry, id="nodes")(report(supervisor.node_seen))

    failures = 0
    while not stop.is_set():
        began, failure = time.monotonic(), Exception("kopf has ended")
        try:
            asyncio.run(_watch_once(registry, settings, namespaces, stop))
        except Exception as error:  # whatever it is, watches are needed
            failure = error
        if stop.is_set():
            return
        failures = failures + 1 if time.monotonic() - began < _WELL_SECONDS else 1
        if failures > _MOST_FAILURES:
            raise failure
        pause = min(2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
        _LOG.warning("the watches failed (%s) and restart in %.0f s", failure, pause)
        stop.wait(pause)


class _NoDifferences(kopf.DiffBaseStorage):
    """Of handlers that are told of every event. kopf would copy each object twice to see what has changed in it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf must not write to objects")


async def _watch_once(
    registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, namespaces: Sequence[str], stop: threading.Event
) -> None:
    """Let kopf watch until `stop` is set, or it fails."""
    # kopf would wait for a thread's event in a thread, which nothing ends when kopf itself fails.
    ended = asyncio.Event()

    async def follow() -> None:
        while not stop.is_set():
            await asyncio.sleep(_STOP_SECONDS)
        ended.set()

    follower = asyncio.create_task(follow())
    try:
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            stop_flag=ended,
        )
    finally:
        follower.cancel()
