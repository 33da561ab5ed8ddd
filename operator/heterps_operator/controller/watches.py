"""Watches, by kopf: each event is passed to the reflector, which stores the object and returns at once.

Only kopf's low-level event handlers are used. They add no finalizer and no annotation to any object, so objects can be
deleted while no operator runs, and nothing of the operator stays behind.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import kopf

from heterps_operator.controller.reflector import Reflector
from heterps_operator.controller.stores.devices import KINDS
from heterps_operator.documents import limit_levels, parse_answer
from heterps_operator.kubernetes.names import DEVICES_VERSION, LABEL_JOB
from heterps_runtime.contract import API_GROUP

if TYPE_CHECKING:
    from aiohttp.connector import Connection

__all__ = ["watch"]

_LOG = logging.getLogger("heterps.operator")
_VERSION = "v1alpha1"
_PAGE = 200  # objects per response
_IDLE_SECONDS = 1.0  # lifetime of an idle task of kopf: it starts one for each changed object
_HEALTHY_SECONDS = 120.0  # watches that last this long reset the count of failures
_MOST_FAILURES = 8  # consecutive ones: two minutes
_LONGEST_PAUSE_SECONDS = 30.0
_STOP_SECONDS = 0.2  # between two checks of `stops`
_LONGEST_STOP_SECONDS = 120.0  # kopf ends the process if its own end takes longer
_LEFT_RUNNING = ("watcher for ", "stop-flag waiter")  # how the names of kopf's tasks begin that it does not end
_REQUEST_SECONDS = 60.0  # of all requests but watches, as in the API server; a closed session may leave one unanswered
_WATCH_SECONDS = 600  # after which the API server ends a watch; kopf starts the next one


def watch(
    reflector: Reflector,
    stop: threading.Event,
    *,
    namespaces: Sequence[str],
    cluster_scoped: bool = True,
    devices: bool = False,
    login: Callable[[], kopf.ConnectionInfo],
) -> None:
    """Report every change of jobs, their pods, device pools, nodes and devices; return when `stop` is set.

    kopf fails at unexpected responses: an error other than 410, a truncated line, a lasting refusal. The watches are
    then restarted, with growing pauses, as they are if the reflector finds that one of them reports nothing. If they
    fail repeatedly, the last error is raised.

    Args:
        reflector: receives the changes.
        stop: ends the watches.
        namespaces: namespaces of the watched jobs and pods; empty: all.
        cluster_scoped: whether to watch device pools and nodes.
        devices: whether to watch devices; kopf leaves out what the cluster does not serve.
        login: returns the connection to the API server.
    """
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the resources are known, and scanning needs rights on CRDs
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.chunk_size = _PAGE  # a list of ten thousand pods takes half a gigabyte
    settings.queueing.idle_timeout = _IDLE_SECONDS
    settings.watching.label_selectors["pods"] = LABEL_JOB
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.persistence.progress_storage = _NoProgress()

    settings.process.ultimate_exiting_timeout = _LONGEST_STOP_SECONDS
    kopf.on.cleanup(registry=registry)(_end_tasks)

    @kopf.on.login(registry=registry)
    async def _log_in(**_: Any) -> kopf.AiohttpSession:
        return _session_of(login())

    def follow(group: str, version: str, plural: str, seen: Callable[..., None]) -> None:
        @kopf.on.event(group, version, plural, registry=registry, id=plural)
        async def _report(event: Any, **_: Any) -> None:
            reflector.heard(plural)
            seen(dict(event["object"]), gone=event["type"] == "DELETED")
            if event["type"] is None:  # from the list that precedes a watch
                reflector.listed()

    follow(API_GROUP, _VERSION, "heterpsjobs", reflector.job_seen)
    follow("", "v1", "pods", reflector.pod_seen)
    if cluster_scoped:
        follow(API_GROUP, _VERSION, "devicepools", reflector.pool_seen)
        follow("", "v1", "nodes", reflector.node_seen)
    group, version = DEVICES_VERSION.split("/")
    for kind, plural in KINDS.items() if devices else ():
        follow(group, version, plural, functools.partial(reflector.device_seen, kind))

    failures = 0
    while not stop.is_set():
        began, failure = time.monotonic(), Exception("kopf returned")
        try:
            asyncio.run(_watch_once(registry, settings, namespaces, (stop, reflector.watches_lost)))
        except Exception as error:  # the operator cannot work without watches
            failure = error
        if stop.is_set():
            return
        if reflector.watches_lost.is_set():
            failure = Exception("changes are not reported")
        failures = failures + 1 if time.monotonic() - began < _HEALTHY_SECONDS else 1
        if failures > _MOST_FAILURES:
            raise failure
        pause = min(2.0 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
        _LOG.warning("the watches failed (%s) and restart in %.0f s", failure, pause)
        stop.wait(pause)
        reflector.watches_restart()


async def _end_tasks(**_: Any) -> None:
    """Cancel the tasks that kopf leaves running when one of its watchers fails.

    kopf closes the session of all watchers, waits five seconds, and then cancels each watcher together with the task by
    which it would be paused. A watcher that finds the latter cancelled takes its own cancellation for a pause, lists
    its objects again, and waits forever for a session that is open.
    """
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith(_LEFT_RUNNING)]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _session_of(connection: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    """Return a session as kopf would make it, but whose answers may nest deeply."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context()),  # watches are many
        headers=connection.as_http_headers(),
        proxy=connection.proxy_url,
        trust_env=connection.trust_env,
        response_class=_Answer,
    )
    return kopf.AiohttpSession(
        server=connection.server, default_namespace=connection.default_namespace, aiohttp_session=session
    )


class _Answer(aiohttp.ClientResponse):
    """A response that kopf can parse although an object in it nests too deeply (`documents.parse_answer`)."""

    async def json(
        self,
        *,
        encoding: str | None = None,
        loads: Callable[[str], Any] = parse_answer,
        content_type: str | None = "application/json",
    ) -> Any:
        return await super().json(encoding=encoding, loads=loads, content_type=content_type)

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.url.query.get("watch") == "true":
            self.content = cast("aiohttp.StreamReader", _Events(self.content))
        return self


class _Events:
    """The content of a watch. kopf parses each line with Python's parser."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines, of which each is an event, and what follows the last one."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield limit_levels(line) + b"\n"
        yield limit_levels(rest)


class _NoDifferences(kopf.DiffBaseStorage):
    """Disables kopf's comparison of objects: it copies each object twice, and low-level handlers do not need it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf must not write to objects")


class _NoProgress(kopf.ProgressStorage):
    """Disables kopf's search of each object for the progress of handlers, which low-level handlers do not have."""

    def fetch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence

    def store(self, **_: Any) -> None:
        raise AssertionError("kopf must not write to objects")

    def purge(self, **_: Any) -> None:
        raise AssertionError("kopf must not write to objects")

    def touch(self, **_: Any) -> None:
        raise AssertionError("kopf must not write to objects")


async def _watch_once(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: Sequence[str],
    stops: Sequence[threading.Event],
) -> None:
    """Run kopf until one of `stops` is set; raise its error if it fails."""
    # kopf waits for a threading.Event in a thread that does not end when kopf itself fails.
    ended = asyncio.Event()

    async def follow() -> None:
        while not any(stop.is_set() for stop in stops):
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
