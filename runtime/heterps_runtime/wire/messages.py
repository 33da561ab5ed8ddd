"""All messages between the processes of a job.

Members (workers and servers) communicate with the coordinator, workers with the parameter servers and with the workers
of the next stage. docs/protocol.md says when each message is sent. `codec` converts messages to frames and back, and
checks each field against its declared type. Values of type `Array` have their own frames.

Messages to and from the coordinator do not name their sender, because the connection does (`link.member_identity`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np

from heterps_runtime.checkpoint.format import FileEntry
from heterps_runtime.contract import PlanDocument, Role
from heterps_runtime.partition.allocation import Allocation
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.partition.tables import Table

Array: TypeAlias = np.ndarray[Any, Any]

_MOST_ROWS = 2**63 - 1


class Message:
    """Base of all messages."""

    __slots__ = ()
    op: ClassVar[str]  # name in the header


# --- values in messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """The model, for manifests and for the export."""

    tables: tuple[Table, ...]
    state_names: dict[str, str]  # name in the module's `state_dict()` -> name in a checkpoint


@dataclass(frozen=True, slots=True)
class DataSize:
    """Numbers of rows of the data sets."""

    train: int
    evaluation: int  # 0: there is no evaluation data
    layout: str = ""  # what the order of training rows depends on beside their number

    def __post_init__(self) -> None:
        if not (0 < self.train <= _MOST_ROWS and 0 <= self.evaluation <= _MOST_ROWS):
            raise ValueError(f"{self.train} rows of training data, {self.evaluation} of evaluation data")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the workers of a stage that all-reduces meet."""

    address: str  # host:port of one of them; an IPv6 address is in brackets. Empty unless the stage all-reduces
    secret: str  # prefix of the keys there


@dataclass(frozen=True, slots=True)
class Restore:
    """The state that all members of a generation restore."""

    step: int  # commits in the state
    folder: str | None  # of the checkpoint; None: start from initial values


@dataclass(frozen=True, slots=True)
class Chunk:
    """Gradients of rows, summed over samples."""

    dim: int
    keys: Array  # (U,) int64
    gradients: Array  # (U, dim), in the precision of messages


# --- members to the coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join(Message):
    """A process asks to take part, with its role and state."""

    op: ClassVar[str] = "join"
    role: Role  # worker or ps
    index: int  # in its stage, or among the servers
    pool: str
    address: str  # tcp://host:port, for other members; an IPv6 address is in brackets, also below
    metrics_port: int
    lineage: int  # of its state; 0: it never took part
    version: int  # commits in its state; -1: it has no state
    divisions: tuple[int, ...] = ()  # of a server: numbers of servers of which it has this one's shards
    joins: int = 0  # number of joins of this process, including this one; set by the link
    stage: int = -1  # of a worker
    store_address: str = ""  # of its rendezvous, as in `Rendezvous`
    store_secret: str = ""
    model: Model | None = None  # of a worker
    data: DataSize | None = None  # of a worker that reads the data


@dataclass(frozen=True, slots=True)
class Pulse(Message):
    """A process is alive; sent each second over a separate connection."""

    op: ClassVar[str] = "pulse"
    joins: int  # as in `Join`; 0: not joined yet
    status: str  # current activity, for users
    totals: dict[str, float]  # counters since the process started, and what it measures of itself


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The member is set up for a generation."""

    op: ClassVar[str] = "ready"
    generation: int


@dataclass(frozen=True, slots=True)
class CopiedAhead(Message):
    """Answers `CopyAhead`: the server has copied what it can."""

    op: ClassVar[str] = "copied-ahead"
    generation: int
    num_rows: int  # copied since the order


@dataclass(frozen=True, slots=True)
class Done(Message):
    """A worker's share of a step is computed, and its gradients are delivered."""

    op: ClassVar[str] = "done"
    generation: int
    step: int
    loss_sum: float  # over this worker's samples; 0 except in the last stage
    finite: bool  # whether its gradients are finite
    figures: dict[str, float]  # seconds per activity since the last report
    loss_scale: float | None = None  # by which the mean loss was multiplied; None: it was not, or there are no samples


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A process ends, with the reason."""

    op: ClassVar[str] = "failed"
    reason: str  # CamelCase, for programs
    message: str  # for users
    permanent: bool  # wrong input: a restart cannot help


@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """The process was told to end (SIGTERM), and works on until it is told to shut down."""

    op: ClassVar[str] = "leaving"


@dataclass(frozen=True, slots=True)
class Checkpointed(Message):
    """A member's part of a checkpoint is written, or has failed."""

    op: ClassVar[str] = "checkpointed"
    generation: int
    step: int
    folder: str
    entries: tuple[FileEntry, ...]
    error: str = ""  # empty: success
    totals: dict[str, float] = field(default_factory=dict)  # as in `Pulse`, as of the commit


@dataclass(frozen=True, slots=True)
class Damaged(Message):
    """The checkpoint that a generation begins with is damaged, so the member leaves the generation."""

    op: ClassVar[str] = "damaged"
    generation: int
    folder: str
    file: str  # name of the damaged file below the checkpoint path; empty: not known
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """A worker's share of the evaluation data is computed."""

    op: ClassVar[str] = "evaluated"
    generation: int
    metrics: dict[str, Array]  # sums and histograms (see `data.evaluation`)


# --- the coordinator to members ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation(Message):
    """A new set of members, with all that those of one stage, or the servers, need to set up."""

    op: ClassVar[str] = "generation"
    generation: int
    lineage: int  # number of times that all members restored a checkpoint, or started from scratch
    committed: int  # steps
    total: int  # steps of the job
    num_rows: int  # of the training data
    plan: PlanDocument
    workers: tuple[int, ...]  # indices of the workers of the receivers' stage, by rank; empty for servers
    rendezvous: Rendezvous | None  # of that stage; None for servers
    next_stage: tuple[str, ...]  # addresses of the workers of the next stage, by rank; empty for the last, and servers
    servers: tuple[str, ...]  # addresses, by index
    allocation: Allocation
    restore: Restore | None  # None: members keep their state
    earlier_steps: int = 0  # of other jobs, whose optimizer state this job has gone on with, less its skipped steps
    loss_scale: float | None = None  # of steps that begin before a commit says another; None: losses are not scaled
    held_by: tuple[str, ...] = ()  # addresses of the servers that have the state, if it is divided anew; empty: those
    missing: tuple[int, ...] = ()  # indices of servers without that state, which copy it from others


@dataclass(frozen=True, slots=True)
class CopyAhead(Message):
    """Another number of servers is to follow: copy rows that this server will have, while training goes on.

    A server that has copied them copies once more those that have changed since.
    """

    op: ClassVar[str] = "copy-ahead"
    generation: int  # in force; the next one has these servers
    servers: tuple[str, ...]  # addresses, by index
    held_by: tuple[str, ...]  # addresses of the servers that have the state


@dataclass(frozen=True, slots=True)
class Go(Message):
    """All members of the generation are ready."""

    op: ClassVar[str] = "go"
    generation: int


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """A step becomes part of the model, or is skipped: then the model stays as it is, and the step counts as done."""

    op: ClassVar[str] = "commit"
    generation: int
    step: int
    batch_size: int  # samples of the step's global batch
    skipped: bool = False  # its gradients are not finite
    loss_scale: float | None = None  # after this step; None: losses are not scaled


@dataclass(frozen=True, slots=True)
class NewAllocation(Message):
    """Batch sizes change, from a step that no worker has begun."""

    op: ClassVar[str] = "allocation"
    generation: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Checkpoint(Message):
    """Write the state of this commit."""

    op: ClassVar[str] = "checkpoint"
    generation: int
    step: int  # commits
    folder: str  # below the checkpoint path
    newest: str | None  # folder of the newest valid checkpoint, whose files this one may need, too


@dataclass(frozen=True, slots=True)
class Evaluate(Message):
    """Compute the evaluation data with the final model."""

    op: ClassVar[str] = "evaluate"
    generation: int
    rows: int  # of the evaluation data


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """End the process."""

    op: ClassVar[str] = "shutdown"
    reason: str


@dataclass(frozen=True, slots=True)
class Rejoin(Message):
    """The coordinator had considered the process lost: join again."""

    op: ClassVar[str] = "rejoin"
    joins: int  # of the pulse that it refers to


# --- workers to parameter servers, and responses ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define(Message):
    """Tables, a shard's pieces of dense parameters, and statistics; a server that knows them keeps its values."""

    op: ClassVar[str] = "define"
    generation: int
    shard: int  # index of the server that answers for it; others may hold copies
    tables: tuple[Table, ...]
    dense: dict[str, DensePiece]
    statistics: dict[str, Array]  # buffers that training changes


@dataclass(frozen=True, slots=True)
class Defined(Message):
    """Answers `Define`."""

    op: ClassVar[str] = "defined"
    shard: int


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Request rows."""

    op: ClassVar[str] = "pull"
    generation: int
    request: int  # number for the response
    version: int  # commits that the rows must include
    keys: dict[int, Array]  # dim -> (U,) int64


@dataclass(frozen=True, slots=True)
class Rows(Message):
    """Answers `Pull`."""

    op: ClassVar[str] = "rows"
    request: int
    rows: dict[int, Array]  # dim -> (U, dim) in the precision of messages, in the order of the keys


@dataclass(frozen=True, slots=True)
class PullDense(Message):
    """Request dense parameters and statistics."""

    op: ClassVar[str] = "pull-dense"
    generation: int
    request: int
    version: int  # commits that they must include
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dense(Message):
    """Answers `PullDense`."""

    op: ClassVar[str] = "dense"
    request: int
    values: dict[str, Array]  # the server's pieces of parameters (n,), and statistics


@dataclass(frozen=True, slots=True)
class Push(Message):
    """A worker's gradients of a step, summed over its samples."""

    op: ClassVar[str] = "push"
    generation: int
    shard: int  # as in `Define`
    step: int
    worker: str  # name; servers add pushes in the order of names
    chunks: tuple[Chunk, ...]
    dense: dict[str, Array]  # gradients (n,) of the shard's pieces of parameters
    statistics: dict[str, Array]  # changes, each times the samples of its micro-batch


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """Answers `Push`: the server has the gradients."""

    op: ClassVar[str] = "ack"
    step: int
    shard: int


# --- parameter servers to one another ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyShard(Message):
    """Request all of a shard but its rows, for a server that has lost its state, or that is to have a part of it."""

    op: ClassVar[str] = "copy-shard"
    generation: int
    shard: int
    note: bool = False  # whether to note what changes from now on


@dataclass(frozen=True, slots=True)
class ShardState(Message):
    """Answers `CopyShard`."""

    op: ClassVar[str] = "shard-state"
    shard: int
    tables: tuple[Table, ...]
    dense: dict[str, DensePiece]
    optimizer: dict[str, Array]  # state of the dense parameters, and the number of the last step
    statistics: dict[str, Array]
    checkpoint: str  # folder of the checkpoint that has what no worker has defined yet; empty: there is none
    parts: dict[str, int]  # rows of each group of rows, and of their candidates
    notes: dict[str, int]  # by part: the note that was asked for, or else the oldest that is kept


@dataclass(frozen=True, slots=True)
class CopyRows(Message):
    """Request some rows of a shard, those that another one gets in a division among a number of servers."""

    op: ClassVar[str] = "copy-rows"
    generation: int
    shard: int
    target: int  # the shard that gets them; the same one: all
    num_servers: int  # of its division
    part: str  # of `ShardState.parts`
    start: int  # place of the first row that may be sent
    since: int = -1  # a note: only what has changed after it; -1: all


@dataclass(frozen=True, slots=True)
class ShardRows(Message):
    """Answers `CopyRows`."""

    op: ClassVar[str] = "shard-rows"
    shard: int
    target: int
    part: str
    next: int  # `start` of the next request; -1: there are no more rows
    keys: Array  # (n,) int64
    columns: dict[str, Array]  # rows and their state, (n, dim) or (n, 1) each
    removed: Array  # (m,) int64, keys of rows to remove before: those that were removed after the note
    kept: bool = True  # whether the note is; if not, what has changed after it is not known, and there are no rows


# --- workers of neighbouring stages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward(Message):
    """The activations of a micro-batch, for the next stage."""

    op: ClassVar[str] = "forward"
    generation: int
    step: int
    training: bool  # False: a batch of the evaluation data
    allocation: int  # first step of the allocation in use
    index: int  # of the micro-batch
    tensors: dict[str, Array]  # live tensors and the label
    differentiable: tuple[str, ...]  # tensors whose gradient must be returned
    bfloat16: tuple[str, ...]  # tensors that are sent as bit patterns, (*) uint16; so are their gradients


@dataclass(frozen=True, slots=True)
class Backward(Message):
    """The gradients of a micro-batch, for the previous stage; empty in evaluation."""

    op: ClassVar[str] = "backward"
    generation: int
    step: int
    index: int
    gradients: dict[str, Array]
    loss_scale: float | None = None  # of the mean loss that they are gradients of; None: they are of the sum of losses


# --- all links --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe(Message):
    """Says nothing; its stamp shows whether messages before it were lost (`sequence`)."""

    op: ClassVar[str] = "probe"


FromMember: TypeAlias = (
    Join | Pulse | Ready | CopiedAhead | Done | Failed | Leaving | Checkpointed | Damaged | Evaluated
)
Order: TypeAlias = Go | Commit | NewAllocation | Checkpoint | Evaluate  # to members of the generation in force
FromCoordinator: TypeAlias = Generation | Order | CopyAhead | Shutdown | Rejoin
ToServer: TypeAlias = Define | Pull | PullDense | Push | CopyShard | CopyRows
FromServer: TypeAlias = Defined | Rows | Dense | Ack
BetweenServers: TypeAlias = ShardState | ShardRows  # answers
BetweenWorkers: TypeAlias = Forward | Backward

MESSAGES: dict[str, type[Message]] = {
    kind.op: kind
    for group in (FromMember, FromCoordinator, ToServer, FromServer, BetweenServers, BetweenWorkers)
    for kind in get_args(group)
} | {Probe.op: Probe}
