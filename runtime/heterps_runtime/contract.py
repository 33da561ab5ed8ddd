"""The contract between controller and runtime: data only, standard library only.

The controller (`heterps_operator`) imports this module, `cores` and `tls`, nothing else of the runtime; its client also
`storage`, to upload code. They communicate by JSON over HTTP, a JSON file, environment variables and exit codes, whose
names are defined here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

API_GROUP = "heterps.io"
API_VERSION = f"{API_GROUP}/v1alpha1"

# --- versions of documents that both sides read (docs/compatibility.md) -----------------------------------------------
RUN_CONFIG_VERSION = 1
PROFILE_VERSION = 1
AUTO = "Auto"  # training.precision or training.denseExchange: the planner chooses

# --- environment of every runtime process -----------------------------------------------------------------------------
ENV_CONFIG = "HETERPS_CONFIG"  # path of the run configuration, a JSON file (see heterps_runtime.config)
ENV_COORDINATOR = "HETERPS_COORDINATOR"  # http://host:port of the job's coordinator; https if the job encrypts
# Ports of a process that shares its address with no other; without them, it listens on any free ones. They are no
# arguments, so that runtimes of the release before ignore them.
ENV_MESSAGE_PORT = "HETERPS_MESSAGE_PORT"  # for the messages of members (ZeroMQ)
ENV_RENDEZVOUS_PORT = "HETERPS_RENDEZVOUS_PORT"  # of the store with which a stage's workers form a group (all-reduce)
ENV_METRICS_PORT = "HETERPS_METRICS_PORT"  # of a member's own /metrics
ENV_TOKEN = "HETERPS_TOKEN"  # noqa: S105  # name of the variable that holds the job's shared secret

# --- addresses of data and checkpoints --------------------------------------------------------------------------------
# A user with a password, any user of S3, or a secret among the options of an address (`sig` is that of a SAS token).
# Addresses are copied to logs, statuses and ConfigMaps, so such an address is refused; crds/ has the same expression.
# `abfs://CONTAINER@ACCOUNT` is no user.
CREDENTIALS_PATTERN = (
    r"^([sS]3://[^/?#]*@|[A-Za-z][A-Za-z0-9+.-]*://"
    r"([^/?#\[]*:[0-9]*[^0-9/?#]|[^?#]*[?]([^#]*&)?(sig|sas_token|account_key|client_secret)=))"
)
CREDENTIALS_FIX = (
    "credentials do not belong into an address: remove them, and set them as environment variables (for S3 "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for Azure AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN), on a "
    "cluster from a Secret in spec.credentials"
)

# --- code that a job brings along, spec.code: a zip archive -----------------------------------------------------------
CODE_FILE = "code.zip"  # key in a ConfigMap
CODE_MOST_FILES = 10_000
CODE_MOST_BYTES = 200 * 2**20  # of all files together, unpacked
CODE_MOST_ARCHIVE_BYTES = 100 * 2**20

# --- exit codes -------------------------------------------------------------------------------------------------------
EXIT_OK = 0
EXIT_FAILED = 1  # transient failure: the controller may start the process again (backoffLimit)
EXIT_BAD_INPUT = 2  # wrong input: a restart cannot help
EXIT_INFEASIBLE = 3  # no plan reaches the throughput floor
EXIT_INTERRUPTED = 130  # by Ctrl-C or SIGTERM, after an orderly stop

# --- the coordinator's HTTP interface (Authorization: Bearer TOKEN, except for health and metrics) --------------------
PATH_HEALTH = "/healthz"  # GET: 200 while the event loop runs
PATH_METRICS = "/metrics"  # GET: the job's Prometheus metrics
PATH_ENDPOINT = "/v1/endpoint"  # GET: {"port": N}, where members connect their control socket
PATH_STATUS = "/v1/status"  # GET: the status document
PATH_PROFILES = "/v1/profiles"  # GET: {pool: profile}; PUT /v1/profiles/POOL: a profiler's result
PATH_PLAN = "/v1/plan"  # PUT: a PlanDocument with its "revision"; 409 after a plan of a greater one
PATH_ALLOCATION = "/v1/allocation"  # PUT: {"stages": [[samples per worker], ...]}
PATH_CHECKPOINT = "/v1/checkpoint"  # POST: write a checkpoint at the next commit
PATH_LOST = "/v1/lost"  # POST {"member": name, "reason": text}: a process has ended
PATH_STOP = "/v1/stop"  # POST: write a checkpoint, then end all members
PATH_FAIL = "/v1/fail"  # POST {"reason", "message"}: end all members, the job has failed
PATH_SHUTDOWN = "/v1/shutdown"  # POST: end the coordinator

# --- series of the coordinator that the controller may read from a Prometheus server (all: docs/metrics.md) -----------
METRIC_MEASURED = "heterps_training_measured_timestamp_seconds"  # Unix time of the other series
METRIC_GENERATION = "heterps_training_generation"  # of members, as in the status
METRIC_THROUGHPUT = "heterps_training_samples_per_second"
METRIC_STAGE_THROUGHPUT = "heterps_stage_samples_per_second"  # labels stage, pool
METRIC_BATCH_SIZE = "heterps_worker_batch_size"  # labels stage, pool, worker
METRIC_STEP_SECONDS = "heterps_worker_step_seconds"  # labels stage, pool, worker, activity (step, compute, wait)
METRIC_OPERATIONS = "heterps_worker_operations_per_second"  # labels stage, pool, worker, as the following
METRIC_MEMORY = "heterps_worker_memory_bytes"
METRIC_ROUND_TRIP = "heterps_worker_round_trip_seconds"


class JobPhase(StrEnum):
    """Phases of the coordinator: `phase` in its status."""

    PROFILING = "Profiling"  # no plan yet
    STARTING = "Starting"  # waiting for members
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    EXPORTING = "Exporting"  # the model
    STOPPED = "Stopped"  # by request; resumable from its checkpoint
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


MOST_PROCESSES = 20_000  # of a plan: names of all are kept, and a damaged number must not take the memory
REASON_HANG = "Hang"  # of a failure that a restart may mend: no progress, though all members are connected
REASON_FENCED = "Fenced"  # another run has taken the checkpoints over, so this one must end
REASON_LEAVING = "Leaving"  # of a stop that the controller has not asked for: a process was told to end by others
BEGUN_PHASES = frozenset({JobPhase.TRAINING, JobPhase.EVALUATING, JobPhase.EXPORTING})
FINAL_PHASES = frozenset({JobPhase.STOPPED, JobPhase.SUCCEEDED, JobPhase.FAILED})


class Role(StrEnum):
    """The role of a process, the first argument of `heterps-runtime`."""

    COORDINATOR = "coordinator"
    PS = "ps"
    WORKER = "worker"
    PROFILE = "profile"


class MemberState(StrEnum):
    """The state of a member of the plan: `state` in the coordinator's status."""

    ABSENT = "absent"
    JOINED = "joined"  # waiting for a generation, or setting up for it
    READY = "ready"  # for the generation in force


class DenseExchange(StrEnum):
    """How the workers of a stage exchange gradients of dense parameters, and who holds these: `denseExchange`."""

    PARAMETER_SERVER = "ParameterServer"  # the servers hold them
    ALL_REDUCE = "AllReduce"  # each worker holds a replica

    @classmethod
    def of_pool(cls, device_type: str) -> DenseExchange:
        """The exchange on a pool where nothing else is said, as in plans of earlier releases."""
        return cls.PARAMETER_SERVER if device_type == "CPU" else cls.ALL_REDUCE

    @classmethod
    def of_job(cls, said: str, *, encrypted: bool) -> DenseExchange | None:
        """The exchange of a job's stages on CPU pools by `training.denseExchange`; None: the planner chooses it.

        An encrypted job has no choice, since an all-reduce is not encrypted.
        """
        if said != AUTO:
            return cls(said)
        return cls.PARAMETER_SERVER if encrypted else None


def worker_name(stage: int, index: int) -> str:
    """Name of a worker process or pod: `worker-STAGE-INDEX`."""
    return f"worker-{stage}-{index}"


def ps_name(index: int) -> str:
    """Name of a parameter-server process or pod: `ps-INDEX`."""
    return f"ps-{index}"


@dataclass(frozen=True)
class StageDocument:
    """One stage of a plan: consecutive layers on one pool."""

    name: str
    pool: str
    firstLayer: int  # noqa: N815  # index of the first layer, inclusive
    lastLayer: int  # noqa: N815  # index of the last layer, inclusive
    layers: tuple[str, ...]
    units: int  # cores or cards
    pods: int  # worker processes; units = pods x unitsPerPod
    denseExchange: DenseExchange | None = None  # noqa: N815  # None: that of the pool's device type

    def all_reduces(self, device_type: str) -> bool:
        """Whether its workers hold replicas of dense parameters and all-reduce gradients.

        Args:
            device_type: of its pool.
        """
        return (self.denseExchange or DenseExchange.of_pool(device_type)) == DenseExchange.ALL_REDUCE


@dataclass(frozen=True)
class ServersDocument:
    """The parameter servers of a plan."""

    pool: str
    replicas: int
    units: int


@dataclass(frozen=True)
class PlanDocument:
    """The part of a plan that the runtime uses (docs/api.md, "A plan")."""

    stages: tuple[StageDocument, ...]
    parameterServer: ServersDocument  # noqa: N815
    precision: str | None = None  # that was chosen for a job with training.precision Auto

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlanDocument:
        """Read a plan; other keys (costs, bounds) are ignored.

        Raises:
            ValueError: a key is missing, stages do not cover consecutive layers from 0, or the processes are too many.
        """
        try:
            stages = tuple(
                StageDocument(
                    name=str(s["name"]),
                    pool=str(s["pool"]),
                    firstLayer=int(s["firstLayer"]),
                    lastLayer=int(s["lastLayer"]),
                    layers=tuple(map(str, s["layers"])),
                    units=int(s["units"]),
                    pods=int(s["pods"]),
                    denseExchange=None if s.get("denseExchange") is None else DenseExchange(s["denseExchange"]),
                )
                for s in value["stages"]
            )
            ps = value["parameterServer"]
            servers = ServersDocument(str(ps["pool"]), int(ps["replicas"]), int(ps["units"]))
            precision = None if value.get("precision") is None else str(value["precision"])
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"plan: missing or malformed {error}") from error
        expected = 0
        for i, stage in enumerate(stages):
            if stage.firstLayer != expected or stage.lastLayer < stage.firstLayer:
                raise ValueError(
                    f"plan.stages[{i}]: covers layers {stage.firstLayer}..{stage.lastLayer}, "
                    f"but must start at layer {expected}"
                )
            if stage.pods < 1:
                raise ValueError(f"plan.stages[{i}].pods: must be >= 1, is {stage.pods}")
            expected = stage.lastLayer + 1
        if not stages:
            raise ValueError("plan.stages: must not be empty")
        if servers.replicas < 1:
            raise ValueError(f"plan.parameterServer.replicas: must be >= 1, is {servers.replicas}")
        processes = sum(stage.pods for stage in stages) + servers.replicas
        if processes > MOST_PROCESSES:
            raise ValueError(
                f"plan: must have at most {MOST_PROCESSES} processes, has {processes}; "
                "lower objective.minSamplesPerSecond, or maxUnits of the pools"
            )
        return cls(stages, servers, precision)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object that `from_json` reads."""
        return asdict(self)
