"""How fast a job and its workers are: Prometheus series of the coordinator, scraped or asked of a Prometheus server.

The coordinator's `/metrics` has every worker's figures, so a job is one target. What decides about batch sizes and
units comes from these series only; who takes part and how far the job is, the loop reads from the status document.
Figures are used together or not at all: a worker's seconds mean something with the batch size that they were taken at.
"""

from __future__ import annotations

import functools
import http.client
import json
import math
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

from heterps_operator.errors import UsageError
from heterps_operator.state.status import Event
from heterps_operator.state.values import CoordinatorView, MemberView
from heterps_runtime import contract

__all__ = [
    "Figures",
    "Measurement",
    "MeasurementError",
    "Meter",
    "PrometheusServer",
    "Scraping",
    "WorkerFigures",
    "measured",
    "read_figures",
]

_ACTIVITIES = ("step", "compute", "wait")
_NAMES = (
    contract.METRIC_MEASURED,
    contract.METRIC_GENERATION,
    contract.METRIC_THROUGHPUT,
    contract.METRIC_STAGE_THROUGHPUT,
    contract.METRIC_BATCH_SIZE,
    contract.METRIC_STEP_SECONDS,
)
_CHOICE = "?" + urlencode([("name[]", name) for name in _NAMES])  # an answer of all series is several times as long
# A sample with its labels, and a label: https://prometheus.io/docs/instrumenting/exposition_formats/. The parser of
# prometheus_client takes ten times as long, which was half of a look at a job.
_LINE = re.compile(r"(\w+)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+-?\d+)?[ \t]*")
_LABEL = re.compile(r'[ \t]*(\w+)="((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_LARGEST_ANSWER = 16 * 1024 * 1024  # bytes: ten thousand workers
_RETRY_SECONDS = 5.0  # after a source that did not answer: it must not slow every turn down
_PAUSE_PER_SECOND = 20.0  # that a read took: a job of a thousand workers has a long answer
_PATIENCE_SECONDS = 60.0  # before people are told: a Prometheus server scrapes every 15 to 60 s
_OLDEST_SECONDS = 90.0  # of figures that a Prometheus server has: older ones are of a target that is gone


class MeasurementError(Exception):
    """The source of figures did not answer, or not with figures of this job."""


@dataclass(frozen=True)
class WorkerFigures:
    """What a worker needed per step, in seconds, with this share of the batch."""

    batch_size: int = 0
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Figures:
    """One consistent set of a job's figures; zero is what was not measured."""

    measured: float = 0.0  # Unix seconds, by the coordinator's clock
    generation: int = 0  # of members
    samples_per_second: float = 0.0
    stages: Mapping[int, float] = field(default_factory=dict)  # samples/s that a stage could have alone
    workers: Mapping[tuple[int, int], WorkerFigures] = field(default_factory=dict)  # by stage and index


class _Sample(NamedTuple):  # thousands are made per second
    name: str
    labels: Mapping[str, str]
    value: float


class Measurement(Protocol):
    """A source of figures of one job.

    Attributes:
        pause_seconds: that lie at least between two reads; the figures before hold until then.
    """

    @property
    def pause_seconds(self) -> float:
        """See above."""
        ...

    def read(self, address: str) -> Figures:
        """The present figures of the job whose coordinator is at `address` (`http://host:port`).

        Raises:
            MeasurementError: there are none; the message says what to do.
        """
        ...


def measured(view: CoordinatorView, figures: Figures | None) -> CoordinatorView:
    """The view with its speeds replaced by measured ones.

    Args:
        view: the coordinator's status.
        figures: None: nothing is measured. Those of another generation, or of a worker whose batch size has changed
            since, are not used.

    Returns:
        A view whose throughputs and seconds are zero where nothing is measured.
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
    )


def read_figures(text: str) -> Figures:
    """Read the coordinator's `/metrics`.

    Raises:
        MeasurementError: it is no Prometheus text, or lacks the coordinator's series.
    """
    return _gather([_read_sample(line) for line in text.splitlines() if line.startswith(_NAMES)])


def _read_sample(line: str) -> _Sample:
    """A line of Prometheus text; escapes in labels stay, as those that are read have none."""
    found = _LINE.fullmatch(line)
    if found is not None:
        name, inside, value = found.groups()
        labels = _read_labels(inside or "")
        if labels is not None:
            try:
                return _Sample(name, labels, float(value))
            except ValueError:
                pass
    raise MeasurementError(f"the response is not in the Prometheus text format: {line[:200]!r}")


@functools.lru_cache(maxsize=4096)  # they are the same in each answer, and alike in those of most jobs
def _read_labels(text: str) -> Mapping[str, str] | None:
    """What is between the braces; None if it is not labels."""
    labels, end = {}, 0
    for label in _LABEL.finditer(text):
        if label.start() != end:
            break
        labels[label[1]], end = label[2], label.end()
    return MappingProxyType(labels) if end == len(text) else None


def _gather(samples: Iterable[_Sample]) -> Figures:
    """The figures among samples of one coordinator; values and labels that cannot be are passed over."""
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
            case contract.METRIC_BATCH_SIZE:
                workers.setdefault((stage, worker), {})["batch"] = sample.value
            case contract.METRIC_STEP_SECONDS:
                workers.setdefault((stage, worker), {})[sample.labels.get("activity", "")] = sample.value
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
            place: WorkerFigures(int(found.get("batch", 0)), *(found.get(activity, 0.0) for activity in _ACTIVITIES))
            for place, found in workers.items()
        },
    )


# --- sources ----------------------------------------------------------------------------------------------------------


class Scraping:
    """Scrapes the coordinator itself.

    Args:
        timeout_seconds: for the whole answer.
    """

    pause_seconds = 1.0

    def __init__(self, timeout_seconds: float = 2.0) -> None:
        self._timeout = timeout_seconds

    def read(self, address: str) -> Figures:
        """See `Measurement.read`."""
        url = address + contract.PATH_METRICS
        text = _get(url + _CHOICE, self._timeout, {"Accept": "text/plain"})
        try:
            return read_figures(text)
        except MeasurementError as error:
            raise MeasurementError(f"{url}: {error}") from error


class PrometheusServer:
    """Asks a Prometheus server, or what speaks its HTTP API, by instant queries.

    Args:
        url: of the server, `http://prometheus.monitoring:9090`, with a path if it has one.
        token_file: whose contents are sent as a bearer token; read for every query, because tokens are renewed.
        ca_file: certificates to trust, for https; None: the system's.
        timeout_seconds: for the whole answer.
        clock: Unix seconds, to tell figures that are too old.

    Raises:
        UsageError: the address or the certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = 3.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            text = "must be http://HOST:PORT or https://HOST:PORT, with a path if the server has one"
            raise UsageError(f"--prometheus-url: {text}, is {url!r}")
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._timeout = timeout_seconds
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
            except OSError as error:
                text = f"{ca_file}: cannot be used as certificates: {error.strerror or error}"
                raise UsageError(f"--prometheus-ca-file: {text}") from error

    def of(self, namespace: str, job: str) -> Measurement:
        """The server as a source of one job's figures."""
        return _JobAtPrometheus(self, namespace, job)

    def figures(self, namespace: str, job: str) -> Figures:
        """The newest figures of a job.

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
        text = _get(f"{self._url}/api/v1/query?{query}", self._timeout, headers, self._context)
        targets: dict[tuple[str, str], list[_Sample]] = {}
        try:
            document = json.loads(text)
            if document["status"] != "success":
                raise MeasurementError(f"{self._url}: refused the query: {document.get('error')}")
            for entry in document["data"]["result"]:
                labels = entry["metric"]
                sample = _Sample(labels["__name__"], labels, float(entry["value"][1]))
                targets.setdefault((labels.get("instance", ""), labels.get("pod", "")), []).append(sample)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise MeasurementError(f"{self._url}: the response is not from a Prometheus API ({error!r})") from error
        found = [_gather(samples) for samples in targets.values() if _complete(samples)]
        if not found:
            fix = "let it scrape the coordinators' port http (a PodMonitor), or leave --prometheus-url out"
            raise MeasurementError(f"{self._url}: it has no series of job {namespace}/{job}; {fix}")
        # A coordinator that was replaced is known for a while beside its successor.
        newest = max(found, key=lambda figures: figures.measured)
        age = self._clock() - newest.measured
        if age > _OLDEST_SECONDS:
            fix = "does it still scrape the coordinator, at least every 60 s?"
            raise MeasurementError(f"{self._url}: the series of job {namespace}/{job} are {age:.0f} s old; {fix}")
        return newest


@dataclass(frozen=True)
class _JobAtPrometheus:
    server: PrometheusServer
    namespace: str
    job: str
    pause_seconds: float = 5.0

    def read(self, address: str) -> Figures:
        """See `Measurement.read`; the coordinator's address is not needed."""
        return self.server.figures(self.namespace, self.job)


def _complete(samples: Iterable[_Sample]) -> bool:
    return any(sample.name == contract.METRIC_MEASURED and math.isfinite(sample.value) for sample in samples)


def _get(url: str, timeout: float, headers: Mapping[str, str], context: ssl.SSLContext | None = None) -> str:
    """The body of a GET, in bounded time and size; redirects are not followed.

    Raises:
        MeasurementError: no answer in time, or not with 200.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    place = f"{parts.scheme}://{parts.netloc}{parts.path}"
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        if context is None
        else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    )
    deadline = time.monotonic() + timeout
    body = bytearray()
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=dict(headers))
        response = connection.getresponse()
        while piece := response.read1(65536):
            body += piece
            if time.monotonic() > deadline or len(body) > _LARGEST_ANSWER:
                raise MeasurementError(f"{place}: no complete response within {timeout:g} s")
    except (OSError, http.client.HTTPException) as error:
        raise MeasurementError(f"{place}: does not answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    text = body.decode("utf-8", "replace")
    if response.status != 200:
        raise MeasurementError(f"{place}: answers with {response.status} {response.reason}: {text.strip()[:200]}")
    return text


# --- turn by turn -----------------------------------------------------------------------------------------------------


class Meter:
    """Measures one job turn by turn: not more often than its source likes, and without ever stopping the job.

    Args:
        source: of the figures.
        clock: Unix seconds.
    """

    def __init__(self, source: Measurement, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._clock = clock
        self._address = ""
        self._figures: Figures | None = None
        self._next = 0.0
        self._since: float | None = None  # the source has not answered since then
        self._told = False

    def measure(self, view: CoordinatorView, address: str) -> tuple[CoordinatorView, tuple[Event, ...]]:
        """Put the present figures into a view.

        Args:
            view: of a coordinator that trains.
            address: of it.

        Returns:
            The view, with nothing measured while the source does not answer, and a warning when that has lasted.
        """
        now = self._clock()
        events: tuple[Event, ...] = ()
        if address != self._address:
            self._address, self._figures, self._next = address, None, 0.0
        if now >= self._next:
            events = self._read(address, now)
        return measured(view, self._figures), events

    def _read(self, address: str, now: float) -> tuple[Event, ...]:
        try:
            self._figures = self._source.read(address)
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
