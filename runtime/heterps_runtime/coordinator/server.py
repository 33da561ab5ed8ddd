"""The coordinator's process: sockets, HTTP, threads and clock around `CoordinatorCore`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import ssl
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from heterps_runtime import contract
from heterps_runtime.checkpoint import Barrier, FencedError
from heterps_runtime.clock import steady_time
from heterps_runtime.config import RunConfig
from heterps_runtime.coordinator.connections import MemberConnections
from heterps_runtime.coordinator.core import CoordinatorCore
from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.figures import JobMetrics, describe_job
from heterps_runtime.coordinator.files import Found, JobFiles
from heterps_runtime.coordinator.journal import Journal
from heterps_runtime.coordinator.membership.liveness import HEARTBEAT_TIMEOUT_SECONDS
from heterps_runtime.errors import ProtocolError, TransientError, UserError
from heterps_runtime.processes.process import log
from heterps_runtime.wire.host_port import join_host_port
from heterps_runtime.wire.messages import Damaged, Evaluated, FromCoordinator, FromMember, Join, Model
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.wire.security import LinkSecurity

__all__ = ["CoordinatorServer"]

TICK_SECONDS = 0.5
_LAST_ANSWERS_SECONDS = 3.0  # in which the controller can learn how the job was left, before a leaving coordinator ends
MAX_BODY_BYTES = 64 * 1024 * 1024  # a profile of a very deep model; plans are far smaller

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CoordinatorServer:
    """One job's coordinator.

    Args:
        config: the job.
        token: the job's shared secret.
        host, port: address for HTTP, or HTTPS if the job encrypts; port 0: any free port.
        ready_file: written with the address once the coordinator listens.
        heartbeat_seconds: silence after which a member is considered lost.
        metrics_port: port for health and metrics alone, without TLS; None: none.
        ports: fixed ones; `messages` is that of the control socket.
    """

    def __init__(
        self,
        config: RunConfig,
        token: str,
        host: str,
        port: int,
        ready_file: Path | None,
        heartbeat_seconds: float = HEARTBEAT_TIMEOUT_SECONDS,
        metrics_port: int | None = None,
        ports: Ports = FREE_PORTS,
    ) -> None:
        self._config = config
        self._host = host
        self._port = port
        self._metrics_port = metrics_port
        self._ready_file = ready_file
        self._files = JobFiles(config)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="files")
        self._background: set[asyncio.Task[None]] = set()
        self._model: Model | None = None  # as the workers describe it
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it runs
        self._leaves = False  # it was told to end, and does so when the job is saved
        self._failure: TransientError | None = None  # with which the process ends
        self._files.find()  # checkpoints of another job are refused before anything is started
        self._plan_revision = 0  # of the plan that is carried out
        self.core = CoordinatorCore(
            config,
            self,
            time.monotonic,
            Journal(steady_time),
            merge_evaluation=self._merge_evaluation,
            heartbeat_seconds=heartbeat_seconds,
        )
        self._metrics = JobMetrics(self.core, config, steady_time)
        self._security = LinkSecurity(token, config.encrypted)
        self._connections = MemberConnections(host, self._security, ports.messages, self)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether it was told to end before the job was over."""
        return self._leaves and self.core.phase != contract.JobPhase.SUCCEEDED

    def leave(self) -> bool:
        """Save the job, then end; for signal handlers.

        Returns:
            False if no work is lost when the process ends at once.
        """
        if self._loop is None or not self.core.unsaved:
            return False
        self._leaves = True
        self._loop.call_soon_threadsafe(self._save_and_end)
        return True

    def _save_and_end(self) -> None:
        if not self.core.leave(contract.Role.COORDINATOR):
            self._ended.set()

    async def run(self) -> None:
        """Serve until the controller ends the coordinator.

        Raises:
            TransientError: the checkpoints cannot be read.
            UserError: a port is taken.
        """
        try:
            async with contextlib.AsyncExitStack() as listeners:
                await self._serve(listeners)
        finally:
            self._executor.shutdown(wait=True)
            self._connections.close()
        if self._failure is not None:
            raise self._failure

    async def _serve(self, listeners: contextlib.AsyncExitStack) -> None:
        context = self._security.http_server()
        runner = await self._listen("--port", self._port, self._application(), context)
        listeners.push_async_callback(runner.cleanup)
        if self._metrics_port is not None:
            open_pages = web.Application()
            open_pages.add_routes(self._open_routes())
            metrics = await self._listen("--metrics-port", self._metrics_port, open_pages, None)
            listeners.push_async_callback(metrics.cleanup)
        port = runner.addresses[0][1]
        if self._ready_file is not None:
            scheme = "http" if context is None else "https"
            text = json.dumps({"http": f"{scheme}://{join_host_port(self._host, port)}", "pid": os.getpid()})
            temporary = self._ready_file.with_suffix(".tmp")
            temporary.write_text(text)
            temporary.replace(self._ready_file)
        log(f"coordinator of job {self._config.name} listens on {join_host_port(self._host, port)}")
        self._loop = asyncio.get_running_loop()
        self._connections.start(self._loop)
        ticker = asyncio.create_task(self._tick())
        await self._ended.wait()
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        self._connections.stop()

    async def _listen(
        self, option: str, port: int, application: web.Application, context: ssl.SSLContext | None
    ) -> web.AppRunner:
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, port, ssl_context=context).start()
        except OSError as error:
            await runner.cleanup()
            raise UserError(
                f"{option}: cannot listen on {join_host_port(self._host, port)}: {os.strerror(error.errno or 0)}; "
                "choose another port, or 0 for any free one"
            ) from error
        return runner

    async def _tick(self) -> None:
        while not (self._leaves and self.core.phase in contract.FINAL_PHASES):
            await asyncio.sleep(TICK_SECONDS)
            self.core.liveness.note_work("coordinator", self._files.work.total)
            self.core.tick()
            self._connections.probe()
        await asyncio.sleep(_LAST_ANSWERS_SECONDS)
        self._ended.set()

    # --- members ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """See `Audience.together`."""
        try:
            with self.core.gathering.together():
                yield
        except Exception as error:
            self._fail("the members", error)

    def hear(self, sender: str, incarnation: str, message: FromMember) -> None:
        """See `Audience.hear`."""
        try:
            if isinstance(message, Join):
                self._model = message.model or self._model
            self.core.handle(sender, incarnation, message)
        except ProtocolError as error:
            log(f"{sender}: {error}")
            self.lose(sender, incarnation, str(error))
        except Exception as error:
            self._fail(f"a message of {sender}", error)

    def lose(self, sender: str, incarnation: str, reason: str) -> None:
        """See `Audience.lose`."""
        self.core.messages_lost(sender, incarnation, reason)

    def _fail(self, what: str, error: Exception) -> None:
        """Fail the job at an error of ours: a coordinator that stops listening would leave all members waiting."""
        log("".join(traceback.format_exception(error)))
        self.core.fail("InternalError", f"{what}: {type(error).__name__}: {error}")

    # --- effects of the core ------------------------------------------------------------------------------------------

    def send(self, processes: Sequence[Address], message: FromCoordinator) -> None:
        """See `Effects.send`."""
        self._connections.send(processes, message)

    def open_checkpoints(self) -> None:
        """See `Effects.open_checkpoints`."""
        self._find_checkpoint(self._files.open)

    def pass_over_checkpoint(self, damaged: Damaged) -> None:
        """See `Effects.pass_over_checkpoint`."""
        self._find_checkpoint(lambda: self._files.pass_over(damaged))

    def _find_checkpoint(self, find: Callable[[], Found]) -> None:
        def opened(found: Found) -> None:
            manifest, skipped = found
            for folder, reason in skipped:
                self.core.journal.note("CheckpointSkipped", f"{folder}: {reason}", warning=True)
            if manifest is not None and manifest.imported_from:
                state = f", with its optimizers' state after {n} steps" if (n := manifest.earlier_steps) else ""
                what = f"the model begins with the values of {manifest.imported_from}{state}"
                self.core.journal.note("ModelImported", what)
            self.core.checkpoints_opened(manifest)

        def failed(error: Exception) -> None:
            if isinstance(error, TransientError):
                self._failure = error
                self._ended.set()
            else:
                self.core.fail(type(error).__name__, str(error))

        self._in_background(find, opened, failed)

    def checkpoint_folder(self, step: int) -> str:
        """See `Effects.checkpoint_folder`."""
        return self._files.new_folder(step)

    def discard_checkpoint(self, folder: str) -> None:
        """See `Effects.discard_checkpoint`."""
        self._in_background(lambda: self._files.discard(folder), lambda _: None, lambda _: None)

    def write_manifest(self, barrier: Barrier, progress: dict[str, Any], plan: dict[str, Any]) -> None:
        """See `Effects.write_manifest`."""
        model = self._model
        self._in_background(
            lambda: self._files.commit(barrier, progress, plan, model),
            self.core.manifest_written,
            lambda error: self.core.checkpoint_failed(barrier.folder, str(error)),
        )

    def export(self) -> None:
        """See `Effects.export`."""
        metrics = dict(self.core.evaluation.results or {})
        self._in_background(
            lambda: self._files.export(metrics),
            self.core.exported,
            lambda error: self.core.fail("ExportFailed", str(error)),
        )

    def _merge_evaluation(self, messages: Sequence[Evaluated]) -> dict[str, Any]:
        from heterps_runtime.data import metrics_for  # late for the same reason as in `export`

        merged = metrics_for(self._config.loss, self._config.num_classes)
        for message in messages:
            merged.merge(message.metrics)
        return merged.results()

    def _in_background(
        self, work: Callable[[], Any], succeeded: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        async def run() -> None:
            try:
                result = await loop.run_in_executor(self._executor, work)
            except Exception as error:  # becomes an event of the job; the coordinator continues
                log(f"{type(error).__name__}: {error}")
                if isinstance(error, FencedError):
                    self.core.fail(contract.REASON_FENCED, str(error))
                else:
                    failed(error)
            else:
                succeeded(result)

        task = loop.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard()], client_max_size=MAX_BODY_BYTES)
        application.add_routes(
            [
                *self._open_routes(),
                web.get(contract.PATH_ENDPOINT, self._endpoint),
                web.get(contract.PATH_STATUS, self._status),
                web.get(contract.PATH_PROFILES, self._profiles),
                web.put(contract.PATH_PROFILES + "/{pool}", self._put_profile),
                web.put(contract.PATH_PLAN, self._put_plan),
                web.put(contract.PATH_ALLOCATION, self._put_allocation),
                web.post(contract.PATH_CHECKPOINT, self._post_checkpoint),
                web.post(contract.PATH_LOST, self._post_lost),
                web.post(contract.PATH_STOP, self._post_stop),
                web.post(contract.PATH_FAIL, self._post_fail),
                web.post(contract.PATH_SHUTDOWN, self._post_shutdown),
            ]
        )
        return application

    def _open_routes(self) -> list[web.RouteDef]:
        """Pages for probes and Prometheus, which hold no token."""
        return [
            web.get(contract.PATH_HEALTH, self._health),
            web.get(contract.PATH_METRICS, self._serve_metrics),
        ]

    def _guard(self) -> Any:
        expected = f"Bearer {self._security.token}".encode()
        open_paths = {contract.PATH_HEALTH, contract.PATH_METRICS}

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode(errors="replace")
            if request.path not in open_paths and not hmac.compare_digest(given, expected):
                return web.json_response({"error": "missing or wrong token"}, status=401)
            try:
                return await handler(request)
            except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
                text = f"missing field {error}" if isinstance(error, KeyError) else str(error)
                return web.json_response({"error": text}, status=400)

        return guard

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        text = self._metrics.render(frozenset(request.query.getall("name[]", [])))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _endpoint(self, request: web.Request) -> web.Response:
        return web.json_response({"port": self._connections.port})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(describe_job(self.core, self._config, steady_time()))

    async def _profiles(self, request: web.Request) -> web.Response:
        return web.json_response(self.core.profiles)

    async def _put_profile(self, request: web.Request) -> web.Response:
        pool = request.match_info["pool"]
        if pool not in self._config.pools:
            raise ValueError(f"no pool named {pool!r}; there are {sorted(self._config.pools)}")
        self.core.profiles[pool] = await request.json()
        return web.json_response({})

    async def _put_plan(self, request: web.Request) -> web.Response:
        body = await request.json()
        plan, revision = contract.PlanDocument.from_json(body), int(body.get("revision", 0))
        if revision < self._plan_revision:  # from a controller that has lost the job to another
            text = f"plan: revision {revision} is older than {self._plan_revision}, which is carried out"
            return web.json_response({"error": text}, status=409)
        self._files.choose_precision(plan.precision)
        self.core.set_plan(plan)
        self._plan_revision = revision
        return web.json_response({})

    async def _put_allocation(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"fromStep": self.core.set_allocation(body["stages"])})

    async def _post_checkpoint(self, request: web.Request) -> web.Response:
        self.core.checkpoints.requested = True  # at the next commit
        return web.json_response({})

    async def _post_lost(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.core.member_lost(str(body["member"]), str(body.get("reason", "")))
        return web.json_response({})

    async def _post_stop(self, request: web.Request) -> web.Response:
        self.core.request_stop()
        return web.json_response({})

    async def _post_fail(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.core.fail(str(body["reason"]), str(body["message"]))
        return web.json_response({})

    async def _post_shutdown(self, request: web.Request) -> web.Response:
        if self.core.phase not in contract.FINAL_PHASES:
            self.core.fail("Shutdown", "the coordinator was told to end before the job was over")
        asyncio.get_running_loop().call_later(0.2, self._ended.set)  # after the response is sent
        return web.json_response({})
