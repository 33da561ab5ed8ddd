"""The operator's own Prometheus metrics (docs/metrics.md), and their HTTP server.

Two kinds: counters of the operator's actions, and the state of its jobs and pools (rows that disappear with the
object). The number of label values is bounded by the objects that users create: no pod names, no messages.
"""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from heterps_operator.documents import Json
from heterps_operator.errors import UsageError
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.turn import Turn
from heterps_runtime.clock import steady_time
from heterps_runtime.contract import JobPhase

__all__ = ["JOB_SERIES", "OPERATOR_SERIES", "POOL_SERIES", "MetricSeries", "MetricsServer", "OperatorMetrics"]


@dataclass(frozen=True)
class MetricSeries:
    """Name, labels and meaning of a metric, declared once and documented."""

    name: str
    labels: tuple[str, ...]
    meaning: str


_JOB = ("namespace", "job_name")  # Prometheus itself sets the labels `job` and `instance`


def _job(name: str, meaning: str, *labels: str) -> MetricSeries:
    return MetricSeries(f"heterps_job_{name}", (*_JOB, *labels), meaning)


def _pool(name: str, meaning: str, *labels: str) -> MetricSeries:
    return MetricSeries(f"heterps_pool_{name}", ("pool", *labels), meaning)


def _operator(name: str, meaning: str, *labels: str) -> MetricSeries:
    return MetricSeries(f"heterps_operator_{name}", labels, meaning)


_RECONCILE = _operator("reconcile_total", "Turns of jobs")
_ERRORS = _operator("reconcile_errors_total", "Turns that failed, by class of the error", "error")
_DURATION = _operator("reconcile_duration_seconds", "Duration of a turn (histogram)")
_SUCCESS = _operator("last_success_timestamp_seconds", "Unix time of the last turn that did not fail")
_QUEUE = _operator("queue_depth", "Jobs that are due and wait for a turn")
_QUEUE_SECONDS = _operator("queue_seconds", "Time that a due job waited for its turn (histogram)")
_PODS = _operator("pods_total", "Pods created and deleted", "action", "role", "pool")
_REPLANS = _operator("plans_total", "Plans adopted, by reason", "reason")
_PLANNER = _operator("planner_seconds", "Duration of planning (histogram)", "method")
_REBALANCES = _operator("rebalances_total", "Batch divisions changed")
_REQUESTS = _operator("api_requests_total", "Requests to the API server; code 0: no answer", "verb", "resource", "code")
_REQUEST_SECONDS = _operator("api_request_seconds", "Duration of such a request (histogram)", "verb")
_WATCHES = _operator("watch_restarts_total", "Restarts of all watches, after one failed or fell silent")
_LEADER = _operator("leader", "1 if this replica is the active one")
_BUILD = MetricSeries("heterps_build_info", ("version", "python"), "Always 1; labels name the running version")
OPERATOR_SERIES = (
    _RECONCILE, _ERRORS, _DURATION, _SUCCESS, _QUEUE, _QUEUE_SECONDS, _PODS, _REPLANS, _PLANNER, _REBALANCES,
    _REQUESTS, _REQUEST_SECONDS, _WATCHES, _LEADER, _BUILD,
)  # fmt: skip

_INFO = _job("info", "Always 1; labels name the goal and the method", "goal", "method")
_PHASE = _job("phase", "1 for the phase that the job is in", "phase")
_WAITING = _job("waiting", "1 with the reason why the job does not run", "reason")
_CONDITION = _job("condition", "1 for the current status of each condition", "type", "status")
_OBSERVED = _job("samples_per_second", "Measured throughput, while the job trains and is measured")
_FLOOR = _job("min_samples_per_second", "Throughput that the job must have, if it has a floor")
_PREDICTED = _job("predicted_samples_per_second", "Throughput that the plan promises")
_COST_PER_HOUR = _job("cost_per_hour", "Price of the units that its pods occupy now")
_PLANNED_COST = _job("planned_cost_per_hour", "Price of the plan's units")
_MAX_COST = _job("max_cost_per_hour", "Highest price per hour that the job may have, if it has a limit")
_COST = _job("cost", "What the job has cost so far")
_COST_PER_MILLION = _job("cost_per_million_samples", "What a million samples of the model have cost so far")
_POOL_UNITS = _job("pool_units", "Units of the plan, servers included", "pool")
_STAGE_UNITS = _job("stage_units", "Units of a stage of the plan", "stage", "pool")
_SERVER_MEMORY = _job("server_memory_limit_bytes", "Memory that one parameter server may have, if it has a limit")
_JOB_PODS = _job("pods", "Pods that exist and have not ended", "role")
_STEPS = _job("committed_steps", "Steps that are part of the model")
_TOTAL_STEPS = _job("total_steps", "Steps of the whole job, once known")
_EVALUATION = _job("evaluation", "Metrics of the evaluation data, once the final model is evaluated", "metric")
_RESTARTS = _job("restarts", "Restarts that count towards backoffLimit")
_REVISION = _job("plan_revision", "Revision of the current plan")
JOB_SERIES = (
    _INFO, _PHASE, _WAITING, _CONDITION, _OBSERVED, _FLOOR, _PREDICTED, _COST_PER_HOUR, _PLANNED_COST, _MAX_COST,
    _COST, _COST_PER_MILLION, _POOL_UNITS, _STAGE_UNITS, _SERVER_MEMORY, _JOB_PODS, _STEPS, _TOTAL_STEPS,
    _EVALUATION, _RESTARTS, _REVISION,
)  # fmt: skip

_MAX_UNITS = _pool("max_units", "Units that all jobs together may use")
_CAPACITY = _pool("capacity_units", "Units that its nodes offer")
_ALLOCATED = _pool("allocated_units", "Units that jobs hold")
_NODES = _pool("nodes", "Ready nodes")
_READY = _pool("ready", "1 if jobs can use the pool, 0 if not, with the reason of its condition", "reason")
_PRICE = _pool("price_per_unit_hour", "Price in force of one unit for one hour")
POOL_SERIES = (_MAX_UNITS, _CAPACITY, _ALLOCATED, _NODES, _READY, _PRICE)

# Reasons of events that adopt a plan.
_PLANNED = frozenset({"PlanComputed", "Replanned", "UnitsChanged", "Redivided", "AddedInVain"})
_EVALUATED = ("loss", "auc", "logLoss", "accuracy", "crossEntropy")
_TURN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_QUEUE_BUCKETS = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_PLANNER_BUCKETS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)

Row = tuple[MetricSeries, tuple[str, ...], float]  # the labels beyond those of the object


class _Rows:
    """Collector of rows of objects that come and go. Thread-safe.

    Args:
        series: all possible series.
    """

    def __init__(self, series: Iterable[MetricSeries]) -> None:
        self._series = tuple(series)
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, ...], tuple[Row, ...]] = {}

    def put(self, key: tuple[str, ...], rows: Iterable[Row]) -> None:
        """Replace all rows of an object."""
        kept = tuple(rows)
        with self._lock:
            self._rows[key] = kept

    def forget(self, key: tuple[str, ...]) -> None:
        """Drop an object's rows."""
        with self._lock:
            self._rows.pop(key, None)

    def describe(self) -> Iterator[Metric]:
        """Yield the families without rows, so that duplicate names are detected."""
        return iter([GaugeMetricFamily(s.name, s.meaning, labels=s.labels) for s in self._series])

    def collect(self) -> Iterator[Metric]:
        """Yield all rows, by family."""
        families = {s.name: GaugeMetricFamily(s.name, s.meaning, labels=s.labels) for s in self._series}
        with self._lock:
            rows = [(key, row) for key, found in sorted(self._rows.items()) for row in found]
        for key, (series, labels, value) in rows:
            families[series.name].add_metric((*key, *labels), value)
        return iter(families.values())


class OperatorMetrics:
    """Counts the operator's actions, and stores the state of its jobs and pools.

    Args:
        version: version of HeterPS.
        clock: Unix seconds.
    """

    def __init__(self, version: str, clock: Callable[[], float] = steady_time) -> None:
        self._clock = clock
        # otherwise `name[]` would not find the process's own metrics
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._reconciled = self._counter(_RECONCILE)
        self._errors = self._counter(_ERRORS)
        self._duration = self._histogram(_DURATION, _TURN_BUCKETS)
        self._success = self._gauge(_SUCCESS)
        self._queue = self._gauge(_QUEUE)
        self._queue_seconds = self._histogram(_QUEUE_SECONDS, _QUEUE_BUCKETS)
        self._pods = self._counter(_PODS)
        self._plans = self._counter(_REPLANS)
        self._planner = self._histogram(_PLANNER, _PLANNER_BUCKETS)
        self._rebalances = self._counter(_REBALANCES)
        self._requests = self._counter(_REQUESTS)
        self._request_seconds = self._histogram(_REQUEST_SECONDS, _TURN_BUCKETS)
        self._watch_restarts = self._counter(_WATCHES)
        self._leader = self._gauge(_LEADER)
        self._gauge(_BUILD).labels(version, platform.python_version()).set(1)
        self._jobs, self._pools = _Rows(JOB_SERIES), _Rows(POOL_SERIES)
        self.registry.register(self._jobs)
        self.registry.register(self._pools)

    def _counter(self, series: MetricSeries) -> Counter:
        return Counter(series.name, series.meaning, series.labels, registry=self.registry)

    def _gauge(self, series: MetricSeries) -> Gauge:
        return Gauge(series.name, series.meaning, series.labels, registry=self.registry)

    def _histogram(self, series: MetricSeries, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(series.name, series.meaning, series.labels, buckets=buckets, registry=self.registry)

    # --- what the operator does ---------------------------------------------------------------------------------------

    def on_turn(self, job: tuple[str, str], seconds: float, error: Exception | None) -> None:
        """Count a turn of a job; `error` if it failed."""
        self._reconciled.inc()
        self._duration.observe(seconds)
        if error is None:
            self._success.set(self._clock())
        else:
            self._errors.labels(type(error).__name__).inc()

    def on_pod(self, action: str, role: str, pool: str) -> None:
        """Count a created or deleted pod."""
        self._pods.labels(action, role, pool).inc()

    def on_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def on_watch_restart(self) -> None:
        """Count a restart of all watches."""
        self._watch_restarts.inc()

    def watch_queue(self, depth: Callable[[], int]) -> None:
        """Call this for the depth of the queue whenever the metrics are read."""
        self._queue.set_function(depth)

    def on_wait(self, seconds: float) -> None:
        """Record how many seconds after it was due a job got its turn."""
        self._queue_seconds.observe(seconds)

    def set_leader(self, leads: bool) -> None:
        """Record whether this replica is the active one."""
        self._leader.set(leads)

    # --- how jobs and pools are ---------------------------------------------------------------------------------------

    def update(self, namespace: str, job: str, turn: Turn) -> None:
        """Record the state of a job; call once per turn."""
        for event in turn.events:
            if event.reason in _PLANNED:
                self._plans.labels(event.reason).inc()
                if (plan := turn.status.plan) is not None:
                    self._planner.labels(plan.method).observe(plan.seconds)
            elif event.reason == "BatchesMoved":
                self._rebalances.inc()
        self._jobs.put((namespace, job), _job_rows(turn))

    def refuse(self, namespace: str, job: str, reason: str, cost: Decimal) -> None:
        """Record why a job cannot be started; call instead of `update`.

        Args:
            namespace: namespace of the job.
            job: its name.
            reason: CamelCase, as in its condition.
            cost: what it has cost so far.
        """
        self._jobs.put((namespace, job), [(_WAITING, (reason,), 1.0), (_COST, (), float(cost))])

    def forget(self, namespace: str, job: str) -> None:
        """Remove the series of a deleted job."""
        self._jobs.forget((namespace, job))

    def update_pool(self, pool: Json, status: Json) -> None:
        """Record a DevicePool and its status (`kubernetes.pools.pool_status`), or the part of it that is known."""
        self._pools.put((str(pool["metadata"]["name"]),), _pool_rows(pool["spec"], status))

    def forget_pool(self, name: str) -> None:
        """Remove the series of a deleted pool."""
        self._pools.forget((name,))


def _job_rows(turn: Turn) -> Iterator[Row]:
    job, status, view = turn.job, turn.status, turn.observed.coordinator
    yield _INFO, (job.goal, job.method), 1.0
    yield _PHASE, (status.phase,), 1.0
    if (reason := status.waiting_reason) is not None:
        yield _WAITING, (reason,), 1.0
    for condition in status.conditions:
        yield _CONDITION, (condition.type, condition.status), 1.0
    if view is not None and view.phase == JobPhase.TRAINING and view.samples_per_second > 0:
        yield _OBSERVED, (), view.samples_per_second
    if job.min_samples_per_second:
        yield _FLOOR, (), job.min_samples_per_second
    if status.plan is not None:
        yield from _plan_rows(status.plan)
    if job.server_memory_bytes is not None:
        yield _SERVER_MEMORY, (), float(job.server_memory_bytes)
    running = [process.spec for process in turn.observed.processes if process.running]
    roles = sorted({spec.role for spec in running})
    for role in roles:
        yield _JOB_PODS, (role,), float(sum(spec.role == role for spec in running))
    prices = job.prices
    charged = sum((prices.get(spec.pool, Decimal(0)) * spec.units for spec in running if spec.pool), Decimal(0))
    yield _COST_PER_HOUR, (), float(charged)
    if job.max_cost_per_hour is not None:
        yield _MAX_COST, (), float(job.max_cost_per_hour)
    yield _COST, (), float(turn.bill.cost)
    result: Mapping[str, Any] = status.result or {}
    if samples := result.get("samples"):
        yield _COST_PER_MILLION, (), float(turn.bill.cost) / float(samples) * 1e6
    yield _STEPS, (), float(result.get("committedSteps") or 0)
    if result.get("totalSteps") is not None:
        yield _TOTAL_STEPS, (), float(result["totalSteps"])
    evaluation = result.get("evaluation") or {}
    for metric in _EVALUATED:
        if evaluation.get(metric) is not None:  # the AUC of samples with one label is undefined
            yield _EVALUATION, (metric,), float(evaluation[metric])
    yield _RESTARTS, (), float(status.failures)
    yield _REVISION, (), float(status.plan_revision)


def _plan_rows(plan: JobPlan) -> Iterator[Row]:
    for pool, units in sorted(plan.units.items()):
        yield _POOL_UNITS, (pool,), float(units)
    for number, stage in enumerate(plan.stages):
        yield _STAGE_UNITS, (str(number), stage.pool), float(stage.units)
    if plan.throughput is not None:
        yield _PREDICTED, (), plan.throughput
    if plan.cost_per_hour is not None:
        yield _PLANNED_COST, (), plan.cost_per_hour


def _pool_rows(spec: Json, status: Json) -> Iterator[Row]:
    yield _MAX_UNITS, (), float(spec["maxUnits"])
    yield _CAPACITY, (), float(status.get("capacityUnits") or 0)
    yield _ALLOCATED, (), float(status.get("allocatedUnits") or 0)
    if "nodes" in status:
        yield _NODES, (), float(status["nodes"])
    yield _PRICE, (), float(status["pricePerUnitHour"])
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready":
            yield _READY, (str(condition["reason"]),), float(condition["status"] == "True")


# --- serving ----------------------------------------------------------------------------------------------------------


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _DualListener(_Listener):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Accept IPv4 too, whatever the system's default is."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class MetricsServer:
    """Serves `/metrics`, and `/healthz` for the kubelet's liveness probe, in its own threads.

    Args:
        registry: registry of `/metrics`.
        port: port to listen on; 0: any free port.
        alive: returns None if healthy, or the problem; called by every probe, so it must return at once.
        host: address to listen on; empty: all addresses, IPv4 and IPv6.

    Raises:
        UsageError: the port is taken.
    """

    def __init__(self, registry: CollectorRegistry, port: int, alive: Callable[[], str | None], host: str = "") -> None:
        listener = _DualListener if not host and socket.has_dualstack_ipv6() else _Listener
        try:
            self._server = listener((host, port), _handler(registry, alive))
        except OSError as error:
            text = f"cannot listen on it ({error.strerror}); choose another port"
            raise UsageError(f"--metrics-port {port}: {text}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(registry: CollectorRegistry, alive: Callable[[], str | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # an idle client must not hold a thread
        server_version = "heterps"
        sys_version = ""

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            """Log nothing: scrapes come every few seconds."""

        def do_GET(self) -> None:
            """Serve `/metrics` or `/healthz`."""
            path, _, query = self.path.partition("?")
            match path:
                case "/metrics":
                    names = parse_qs(query).get("name[]")  # jobs have twenty series each
                    chosen = registry.restricted_registry(names) if names else registry
                    self._answer(HTTPStatus.OK, generate_latest(chosen), CONTENT_TYPE_LATEST)
                case "/healthz":
                    wrong = alive()
                    code = HTTPStatus.OK if wrong is None else HTTPStatus.SERVICE_UNAVAILABLE
                    self._answer(code, f"{wrong or 'ok'}\n".encode())
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics and /healthz\n")

        def _answer(self, code: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
