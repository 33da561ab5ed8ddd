"""Speed of a job and its workers, from a Prometheus server instead of the coordinator's status document.

The coordinator's `/metrics` contains every worker's figures, so a job is one target. Decisions about batch sizes and
units then use only these series; members and progress come from the status document. Figures are used together or not
at all: a worker's seconds are valid only with the batch size at which they were measured.
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

from heterps_operator.errors import UsageError
from heterps_operator.measure.http_requests import NoResponseError, send_request
from heterps_operator.state.status import Event
from heterps_operator.state.values import CoordinatorView, MemberView
from heterps_runtime import contract
from heterps_runtime.clock import steady_time

__all__ = [
    "Figures",
    "Measurement",
    "MeasurementError",
    "Meter",
    "PrometheusServer",
    "WorkerFigures",
    "measured",
]

_ACTIVITIES = ("step", "compute", "wait")
_METERS = (contract.METRIC_OPERATIONS, contract.METRIC_MEMORY, contract.METRIC_ROUND_TRIP)  # of a worker
_NAMES = (
    contract.METRIC_MEASURED,
    contract.METRIC_GENERATION,
    contract.METRIC_THROUGHPUT,
    contract.METRIC_STAGE_THROUGHPUT,
    contract.METRIC_BATCH_SIZE,
    contract.METRIC_STEP_SECONDS,
    *_METERS,
)
_MOST_BYTES = 16 * 1024 * 1024  # of a Prometheus server's answer
_RETRY_SECONDS = 5.0  # after a failed read: an unresponsive source must not slow down every turn
_PAUSE_PER_SECOND = 20.0  # times the duration of a read: a job of a thousand workers has a long response
_PATIENCE_SECONDS = 60.0  # before the user is told: a Prometheus server scrapes every 15 to 60 s
_OLDEST_SECONDS = 90.0  # age of a Prometheus server's figures; older ones belong to a lost target


Target = tuple[str, str]  # what a Prometheus server scrapes: its address and its pod


class MeasurementError(Exception):
    """The source did not answer, or not with figures of this job."""


@dataclass(frozen=True)
class WorkerFigures:
    """Figures of a worker with this share of the batch; zero means not measured."""

    batch_size: int = 0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    operations_per_second: float = 0.0
    memory_bytes: float = 0.0
    round_trip_seconds: float = 0.0


@dataclass(frozen=True)
class Figures:
    """One consistent set of a job's figures; zero means not measured."""

    measured: float = 0.0  # Unix seconds, coordinator's clock
    generation: int = 0  # of members
    samples_per_second: float = 0.0
    stages: Mapping[int, float] = field(default_factory=dict)  # samples/s that a stage could reach alone
    workers: Mapping[tuple[int, int], WorkerFigures] = field(default_factory=dict)  # by stage and index


class _Sample(NamedTuple):  # thousands are created per second
    name: str
    labels: Mapping[str, str]
    value: float


class Measurement(Protocol):
    """A source of one job's figures.

    Attributes:
        pause_seconds: minimum time between two reads; the previous figures are valid until then.
    """

    @property
    def pause_seconds(self) -> float:
        """See above."""
        ...

    def read(self) -> Figures:
        """Return the current figures of the job.

        Raises:
            MeasurementError: no figures are available; the message names the fix.
        """
        ...


def measured(view: CoordinatorView, figures: Figures | None) -> CoordinatorView:
    """Return the view with measured speeds.

    Args:
        view: the coordinator's status.
        figures: None: nothing measured. Figures of another generation, or of a worker whose batch size has changed
            since, are not used.

    Returns:
        A view whose throughputs and seconds are zero where not measured.
    """
    if figures is None or figures.generation != int(view.document.get("generation") or 0):
        figures = Figures()
    stages = [
        {**stage, "samplesPerSecond": figures.stages.get(number, 0.0)}
        for number, stage in enumerate(view.document.get("stages") or ())
    ]
    return replace(
        view,
        samples_per_second=figures.samples_per_second,
        measured=figures.measured or None,
        document={**view.document, "samplesPerSecond": figures.samples_per_second, "stages": stages},
        members=tuple(_measured_member(member, figures) for member in view.members),
    )


def _measured_member(member: MemberView, figures: Figures) -> MemberView:
    if member.stage is None or member.role != "worker":
        return member
    worker = figures.workers.get((member.stage, member.index), WorkerFigures())
    if worker.batch_size != member.batch_size:
        worker = WorkerFigures()
    return replace(
        member,
        step_seconds=worker.step_seconds,
        compute_seconds=worker.compute_seconds,
        wait_seconds=worker.wait_seconds,
        operations_per_second=worker.operations_per_second,
        memory_bytes=worker.memory_bytes,
        round_trip_seconds=worker.round_trip_seconds,
    )


def _gather(samples: Iterable[_Sample]) -> Figures:
    """Collect the figures of one coordinator from samples; impossible values and labels are ignored."""
    single: dict[str, float] = {}
    stages: dict[int, float] = {}
    workers: dict[tuple[int, int], dict[str, float]] = {}
    for sample in samples:
        if not math.isfinite(sample.value) or sample.value < 0:
            continue
        try:
            stage, worker = int(sample.labels.get("stage", -1)), int(sample.labels.get("worker", -1))
        except ValueError:
            continue
        match sample.name:
            case contract.METRIC_STAGE_THROUGHPUT:
                stages[stage] = sample.value
            case contract.METRIC_STEP_SECONDS:
                workers.setdefault((stage, worker), {})[sample.labels.get("activity", "")] = sample.value
            case name if name in (contract.METRIC_BATCH_SIZE, *_METERS):
                workers.setdefault((stage, worker), {})[name] = sample.value
            case _:
                single[sample.name] = sample.value
    if contract.METRIC_MEASURED not in single:
        raise MeasurementError(f"there is no series {contract.METRIC_MEASURED}; is it a coordinator of this version?")
    return Figures(
        measured=single[contract.METRIC_MEASURED],
        generation=int(single.get(contract.METRIC_GENERATION, 0)),
        samples_per_second=single.get(contract.METRIC_THROUGHPUT, 0.0),
        stages=stages,
        workers={
            place: WorkerFigures(
                int(found.get(contract.METRIC_BATCH_SIZE, 0)), *(found.get(name, 0.0) for name in _ACTIVITIES + _METERS)
            )
            for place, found in workers.items()
        },
    )


# --- sources ----------------------------------------------------------------------------------------------------------


class PrometheusServer:
    """Sends instant queries to a Prometheus server, or to a server with its HTTP API.

    Args:
        url: address of the server, such as `http://prometheus.monitoring:9090`, with its path if any.
        token_file: file with the bearer token; read for every query, because tokens are renewed.
        ca_file: trusted certificates, for https; None: the system's.
        timeout_seconds: time limit of the whole response.
        monotonic: returns seconds, to detect stale figures.

    Raises:
        UsageError: the address or the certificates are invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 3.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        text = "must be http://HOST:PORT or https://HOST:PORT, with a path if the server has one"
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError as error:  # an unfinished IPv6 address, or a port that is no number
            raise UsageError(f"--prometheus-url: {text}, is {url!r} ({error})") from error
        if not usable or parts.query or parts.fragment or parts.username or not url.isascii() or " " in url:
            raise UsageError(f"--prometheus-url: {text}, is {url!r}")
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._timeout = timeout_seconds
        self._monotonic = monotonic
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
            except OSError as error:
                text = f"{ca_file}: cannot be used as certificates: {error.strerror or error}"
                raise UsageError(f"--prometheus-ca-file: {text}") from error

    def of(self, namespace: str, job: str) -> Measurement:
        """Return the server as a source of one job's figures."""
        return _JobAtPrometheus(self, namespace, job, self._monotonic)

    def figures(self, namespace: str, job: str) -> dict[Target, Figures]:
        """Return the figures of a job's coordinators, at least one: there are two while one replaces another.

        Raises:
            MeasurementError: see `Measurement.read`.
        """
        names = "|".join(_NAMES)
        selector = f'__name__=~"{names}",namespace="{namespace}",job_name="{job}"'
        query = urlencode({"query": "{" + selector + "}", "timeout": f"{self._timeout:g}s"})
        headers = {"Accept": "application/json"}
        if self._token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"
            except OSError as error:
                raise MeasurementError(f"{self._token_file}: cannot be read: {error.strerror}") from error
        text = _get(f"{self._url}/api/v1/query?{query}", self._timeout, _MOST_BYTES, headers, self._context)
        targets: dict[Target, list[_Sample]] = {}
        try:
            document = json.loads(text)
            if document["status"] != "success":
                raise MeasurementError(f"{self._url}: refused the query: {document.get('error')}")
            for entry in document["data"]["result"]:
                labels = entry["metric"]
                if not all(isinstance(text, str) for text in labels.values()):
                    raise TypeError("a label is not text")
                sample = _Sample(labels["__name__"], labels, float(entry["value"][1]))
                targets.setdefault((labels.get("instance", ""), labels.get("pod", "")), []).append(sample)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise MeasurementError(f"{self._url}: the response is not from a Prometheus API ({error!r})") from error
        found = {target: _gather(samples) for target, samples in targets.items() if _complete(samples)}
        if not found:
            fix = "let it scrape the coordinators' port http-metrics with a PodMonitor, or leave --prometheus-url out"
            raise MeasurementError(f"{self._url}: it has no series of job {namespace}/{job}; {fix}")
        return found

    def stale(self, namespace: str, job: str, age: float) -> MeasurementError:
        """Return the error for figures that have not changed for some seconds."""
        fix = "does it still scrape the coordinator, at least every 60 s?"
        return MeasurementError(f"{self._url}: the series of job {namespace}/{job} are {age:.0f} s old; {fix}")


class _JobAtPrometheus:
    """The figures of one job at a Prometheus server.

    Their age is the time since they last changed here: a time that the coordinator's node wrote says nothing if its
    clock differs from this one's.
    """

    pause_seconds = 5.0

    def __init__(self, server: PrometheusServer, namespace: str, job: str, monotonic: Callable[[], float]) -> None:
        self._server = server
        self._namespace = namespace
        self._job = job
        self._monotonic = monotonic
        self._changed: dict[Target, tuple[float, float]] = {}  # the coordinator's time, and when it was new here

    def read(self) -> Figures:
        """See `Measurement.read`."""
        found, now = self._server.figures(self._namespace, self._job), self._monotonic()
        before, self._changed = self._changed, {}
        for target, figures in found.items():
            last = before.get(target)
            self._changed[target] = last if last and last[0] == figures.measured else (figures.measured, now)
        # For a while, the series of a replaced coordinator exist beside those of its successor.
        newest = max(found, key=lambda target: (self._changed[target][1], found[target].measured))
        age = now - self._changed[newest][1]
        if age > _OLDEST_SECONDS:
            raise self._server.stale(self._namespace, self._job, age)
        return found[newest]


def _complete(samples: Iterable[_Sample]) -> bool:
    return any(sample.name == contract.METRIC_MEASURED and math.isfinite(sample.value) for sample in samples)


def _get(
    url: str, timeout: float, most_bytes: int, headers: Mapping[str, str], context: ssl.SSLContext | None = None
) -> str:
    """Return the body of a GET.

    Raises:
        MeasurementError: no response in time, or a status other than 200.
    """
    place = url.partition("?")[0]
    try:
        response = send_request("GET", url, headers=headers, timeout=timeout, most_bytes=most_bytes, context=context)
    except NoResponseError as error:
        raise MeasurementError(f"{place}: {error}") from error
    if response.status != HTTPStatus.OK:
        detail = response.text.strip()[:200]
        raise MeasurementError(f"{place}: answers with {response.status} {response.reason}: {detail}")
    return response.text


# --- turn by turn -----------------------------------------------------------------------------------------------------


class Meter:
    """Measures one job turn by turn, at most as often as its source allows, and never fails the job.

    Args:
        source: source of the figures.
        clock: Unix seconds.
    """

    def __init__(self, source: Measurement, clock: Callable[[], float] = steady_time) -> None:
        self._source = source
        self._clock = clock
        self._address = ""
        self._figures: Figures | None = None
        self._next = 0.0
        self._since: float | None = None  # start of the source's outage
        self._told = False

    def measure(self, view: CoordinatorView, address: str) -> tuple[CoordinatorView, tuple[Event, ...]]:
        """Put the current figures into a view.

        Args:
            view: view of a training coordinator.
            address: of that coordinator. The figures of one are not those of the next.

        Returns:
            The view, with nothing measured while the source does not answer, and a warning if that lasts.
        """
        now = self._clock()
        events: tuple[Event, ...] = ()
        if address != self._address:
            self._address, self._figures, self._next = address, None, 0.0
        if now >= self._next:
            events = self._read(now)
        return measured(view, self._figures), events

    def _read(self, now: float) -> tuple[Event, ...]:
        try:
            self._figures = self._source.read()
        except MeasurementError as error:
            self._figures, self._next = None, self._clock() + max(_RETRY_SECONDS, self._source.pause_seconds)
            self._since = now if self._since is None else self._since
            if self._told or now - self._since < _PATIENCE_SECONDS:
                return ()
            self._told = True
            text = f"{error}; training goes on, batch sizes and units stay as they are until it can be measured"
            return (Event("Warning", "NotMeasured", text, now),)
        after = self._clock()
        self._next = after + max(self._source.pause_seconds, _PAUSE_PER_SECOND * (after - now))
        told, self._since, self._told = self._told, None, False
        return (Event("Normal", "MeasuredAgain", "the throughput is measured again", now),) if told else ()
