"""Watches by kopf that fail are restarted, unless they fail repeatedly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.aiokits.aioadapters import wait_flag
from kopf._cogs.clients.api import iter_jsonlines

from heterps_operator.api.shapes import UnreadableError, check_levels
from heterps_operator.controller import watches
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.api import KubernetesApi
from tests.heterps_operator.helpers.lists import Lists

Json = dict[str, Any]


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(OperatorContext(cast("KubernetesApi", Lists()), tmp_path))


def server() -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server="http://127.0.0.1:1")


def test_watches_that_fail_begin_anew(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, runs = threading.Event(), []

    async def run(**options: Any) -> None:
        runs.append(options["registry"])
        waiter = asyncio.create_task(wait_flag(options["stop_flag"]))  # as kopf does; a thread would never end
        await asyncio.sleep(0)
        if len(runs) < 3:
            raise RuntimeError("Error in the watch-stream")
        stop.set()
        await waiter

    monkeypatch.setattr(kopf, "operator", run)
    monkeypatch.setattr(watches, "_LONGEST_PAUSE_SECONDS", 0.0)
    watches.watch(supervisor.reflector, stop, namespaces=(), login=server)
    assert len(runs) == 3


@pytest.mark.parametrize("cluster_scoped", [True, False])
def test_pools_and_nodes_are_watched_only_with_rights_in_the_cluster(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, cluster_scoped: bool
) -> None:
    stop, watched = threading.Event(), set[str]()

    async def run(**options: Any) -> None:
        handlers = options["registry"]._watching.get_all_handlers()
        watched.update(handler.selector.plural or handler.selector.any_name for handler in handlers)
        stop.set()

    monkeypatch.setattr(kopf, "operator", run)
    watches.watch(supervisor.reflector, stop, namespaces=("a",), cluster_scoped=cluster_scoped, login=server)
    assert watched == {"heterpsjobs", "pods"} | ({"devicepools", "nodes"} if cluster_scoped else set())


@pytest.mark.parametrize("devices", [True, False])
def test_devices_are_watched_only_when_asked_for(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, devices: bool
) -> None:
    stop, watched = threading.Event(), set[tuple[Any, ...]]()

    async def run(**options: Any) -> None:
        selectors = [handler.selector for handler in options["registry"]._watching.get_all_handlers()]
        watched.update((s.group, s.version, s.plural or s.any_name) for s in selectors if s.group == "resource.k8s.io")
        stop.set()

    monkeypatch.setattr(kopf, "operator", run)
    watches.watch(supervisor.reflector, stop, namespaces=(), devices=devices, login=server)
    kinds = ("deviceclasses", "resourceslices", "resourceclaims") if devices else ()
    assert watched == {("resource.k8s.io", "v1", kind) for kind in kinds}


def test_neither_a_request_nor_the_end_of_kopf_may_take_minutes(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, found = threading.Event(), []

    async def run(settings: kopf.OperatorSettings, **_: Any) -> None:
        found.append((settings.networking.request_timeout, settings.process.ultimate_exiting_timeout))
        stop.set()

    monkeypatch.setattr(kopf, "operator", run)
    watches.watch(supervisor.reflector, stop, namespaces=(), login=server)
    assert found == [(60, 120)]


def test_watches_that_fail_again_and_again_end_the_operator(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(**_: Any) -> None:
        raise RuntimeError("Error in the watch-stream")

    monkeypatch.setattr(kopf, "operator", run)
    monkeypatch.setattr(watches, "_LONGEST_PAUSE_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="watch-stream"):
        watches.watch(supervisor.reflector, threading.Event(), namespaces=(), login=server)


def test_neither_a_list_nor_a_watch_ends_at_an_object_that_nests_deeply() -> None:
    deep = json.dumps({"spec": "DEEP"}).replace('"DEEP"', '[{"a": ' * 2000 + "1" + "}]" * 2000)
    others = [json.dumps({"metadata": {"name": name}, "spec": "[{" * 500}) for name in ("é", "b")]
    objects = [others[0], deep, others[1]]
    events = "".join(f'{{"type": "ADDED", "object": {text}}}\n' for text in objects).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(text=f'{{"items": [{",".join(objects)}]}}')
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(events), 1000):
            await response.write(events[start : start + 1000])
        return response

    async def read() -> tuple[list[Any], list[Any]]:
        application = web.Application()
        application.router.add_get("/", answer)
        async with TestServer(application) as running:
            session = watches._session_of(kopf.ConnectionInfo(server=str(running.make_url("/")))).aiohttp_session
            async with session:
                listed = await (await session.get(running.make_url("/"))).json()
                content = (await session.get(running.make_url("/?watch=true"))).content
                return listed["items"], [json.loads(line)["object"] async for line in iter_jsonlines(content)]

    for found in asyncio.run(read()):
        assert [found[0], found[2]] == [json.loads(text) for text in others]
        with pytest.raises(UnreadableError, match=r"^spec must be nested in at most 64 levels, is a list of 1$"):
            check_levels(found[1])


class _Api:
    """An API server without objects. Its watches report what they are told to.

    Attributes:
        watched: plurals of the kinds that the operator watches.
    """

    def __init__(self) -> None:
        self.watched = {"heterpsjobs", "pods", "devicepools", "nodes"}
        self._opened: Counter[str] = Counter()  # watches so far, by plural
        self._latest: dict[str, asyncio.Queue[Json]] = {}  # events of the latest watch
        self._changed = asyncio.Condition()
        self._resources = {
            "api/v1": {"pods": True, "nodes": False, "namespaces": False},
            "apis/heterps.io/v1alpha1": {"heterpsjobs": True, "devicepools": False},
            "apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": False},
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.strip("/")
        if path == "api":
            return web.json_response({"versions": ["v1"]})
        if path == "apis":
            found = [name.split("/")[1:] for name in self._resources if name.startswith("apis/")]
            groups = [{"name": group, "versions": [{"version": version}]} for group, version in found]
            return web.json_response({"groups": [{**g, "preferredVersion": g["versions"][0]} for g in groups]})
        if path in self._resources:
            names = {"singularName": "", "kind": "Kind", "verbs": ["list", "watch"]}
            items = self._resources[path].items()
            return web.json_response({"resources": [{"name": k, "namespaced": v, **names} for k, v in items]})
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        return await self._watch(request, path.rpartition("/")[2])

    async def wait(self, number: int) -> None:
        """Wait until each kind has been watched so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: [self._opened[plural] for plural in self.watched] == [number] * 4)

    def report(self, plural: str) -> None:
        """Let a watch report an object."""
        self._latest[plural].put_nowait({"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "a"}}})

    def fail(self, plural: str) -> None:
        """Let a watch fail."""
        status = {"kind": "Status", "status": "Failure", "code": 500, "message": "cannot decode"}
        self._latest[plural].put_nowait({"type": "ERROR", "object": status})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        events = self._latest[plural] = asyncio.Queue()
        async with self._changed:
            self._opened[plural] += 1
            self._changed.notify_all()
        event: Json = {"type": None}
        while event["type"] != "ERROR":
            event = await events.get()
            await response.write(json.dumps(event).encode() + b"\n")
        return response


def follow_script(supervisor: Supervisor, script: Callable[[_Api], Coroutine[Any, Any, None]]) -> None:
    """Run a script while kopf watches an API server."""
    stop = threading.Event()

    async def run() -> None:
        api, application = _Api(), web.Application()
        application.router.add_get("/{path:.*}", api.answer)
        async with TestServer(application, handler_cancellation=True) as running:
            connection = kopf.ConnectionInfo(server=str(running.make_url("/")))
            options: Json = {"namespaces": (), "login": lambda: connection}
            watching = threading.Thread(
                target=watches.watch, args=(supervisor.reflector, stop), kwargs=options, daemon=True
            )
            watching.start()
            try:
                await script(api)
            finally:
                stop.set()
            await asyncio.to_thread(watching.join)

    asyncio.run(run())


@pytest.mark.timeout(120)  # each failure hangs with a probability of one half or more without `_end_tasks`
def test_a_watch_that_fails_does_not_hold_up_the_others(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "_LONGEST_PAUSE_SECONDS", 0.0)

    async def script(api: _Api) -> None:
        for number, plural in enumerate(("nodes", "pods", "heterpsjobs", "devicepools", "nodes"), start=1):
            await api.wait(number)
            api.fail(plural)
        await api.wait(6)

    follow_script(supervisor, script)


def test_watches_that_report_nothing_restart(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_LONGEST_PAUSE_SECONDS", 0.0)

    async def script(api: _Api) -> None:
        await api.wait(1)
        supervisor.reflector.watches_lost.set()
        await api.wait(2)
        assert not supervisor.reflector.watches_lost.is_set()
        registry = supervisor._cluster.metrics.registry
        assert registry.get_sample_value("heterps_operator_watch_restarts_total") == 1

    follow_script(supervisor, script)


def test_what_watches_report_is_counted(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = set[str]()
    monkeypatch.setattr(supervisor.reflector, "heard", heard.add)
    for kind in ("job", "pod", "pool", "node"):
        monkeypatch.setattr(supervisor.reflector, f"{kind}_seen", lambda *_, **__: None)

    async def script(api: _Api) -> None:
        await api.wait(1)
        for plural in api.watched:
            api.report(plural)
        while heard != api.watched:
            await asyncio.sleep(0.01)

    follow_script(supervisor, script)
