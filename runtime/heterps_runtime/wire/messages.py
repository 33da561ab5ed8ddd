"""Every message between the processes of a job, by the name that it has on the wire.

Members (workers and servers) talk to their coordinator, workers to the parameter servers, and workers to the workers of
the next stage. docs/protocol.md tells when each is sent. A message is a value: `codec` turns it into frames and back,
and checks every field against the type that is declared here.

A field of type `Array`, wherever it stands, travels as a frame of its own. The sender of a message to or from the
coordinator is known by its connection (see `link.member_identity`), so these messages do not name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np

from heterps_runtime.allocation import Allocation
from heterps_runtime.checkpoint.format import FileEntry
from heterps_runtime.contract import PlanDocument, Role

Array: TypeAlias = np.ndarray[Any, Any]


class Message:
    """Base of all messages."""

    __slots__ = ()
    op: ClassVar[str]  # name on the wire


# --- values that messages carry ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table of the model."""

    index: int  # the upper 16 bits of its rows' keys
    name: str  # the qualified name of the parameter in the user's module
    num_embeddings: int
    dim: int
    padding_idx: int | None


@dataclass(frozen=True, slots=True)
class Model:
    """What the coordinator must know of the model to write manifests and to export it."""

    tables: tuple[Table, ...]
    state_names: dict[str, str]  # name in the module's `state_dict()` -> name in a checkpoint


@dataclass(frozen=True, slots=True)
class DataSize:
    """Rows of the job's data sets."""

    train: int
    evaluation: int  # 0: there is no evaluation data


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of a generation as the other members see it."""

    name: str
    address: str  # tcp://host:port
    store_address: str  # host:port of its rendezvous for a process group; empty unless its stage all-reduces


@dataclass(frozen=True, slots=True)
class Restore:
    """The state that all members of a generation take up."""

    step: int  # commits that it holds
    folder: str | None  # of the checkpoint; None: begin with the initial values


@dataclass(frozen=True, slots=True)
class Chunk:
    """Gradients of some rows, summed over samples."""

    dim: int
    keys: Array  # (U,) int64
    gradients: Array  # (U, dim), in the wire's precision


# --- members to the coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join(Message):
    """A process asks to take part, and says what it is and which state it holds."""

    op: ClassVar[str] = "join"
    role: Role  # worker or ps
    index: int  # among the workers of its stage, or among the servers
    pool: str
    address: str  # tcp://host:port, where other members reach it
    metrics_port: int
    lineage: int  # of its state: times that the job had taken its state from a checkpoint; 0: it never took part
    version: int  # commits that its state holds; -1: it holds none
    joins: int = 0  # times that this process has joined, this one included; the link counts them
    stage: int = -1  # of a worker
    store_address: str = ""  # as in `Peer`
    model: Model | None = None  # of a worker
    data: DataSize | None = None  # of a worker that reads the data


@dataclass(frozen=True, slots=True)
class Pulse(Message):
    """A process is alive; sent every second, over a connection of its own."""

    op: ClassVar[str] = "pulse"
    joins: int  # as in `Join`; 0: it has not joined yet
    status: str  # what it is doing, for people
    totals: dict[str, float]  # counters since the process started


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The member is set up for a generation."""

    op: ClassVar[str] = "ready"
    generation: int


@dataclass(frozen=True, slots=True)
class Done(Message):
    """A worker's share of a step is computed, and its gradients are where they must be."""

    op: ClassVar[str] = "done"
    generation: int
    step: int
    loss_sum: float  # over this worker's samples; 0 but in the last stage
    finite: bool  # whether its gradients are
    figures: dict[str, float]  # seconds per activity since the last report


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """Why a process ends."""

    op: ClassVar[str] = "failed"
    reason: str  # CamelCase, for programs
    message: str  # for people
    permanent: bool  # wrong input: starting again cannot help


@dataclass(frozen=True, slots=True)
class Checkpointed(Message):
    """A member's part of a checkpoint is written, or could not be."""

    op: ClassVar[str] = "checkpointed"
    generation: int
    step: int
    folder: str
    entries: tuple[FileEntry, ...]
    error: str = ""  # empty: it is written


@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """A worker's share of the evaluation data is computed."""

    op: ClassVar[str] = "evaluated"
    generation: int
    metrics: dict[str, Array]  # sums and histograms that merge (see `data.Metrics`)


# --- the coordinator to members ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation(Message):
    """A set of members is to work together: everything that each of them needs to set itself up."""

    op: ClassVar[str] = "generation"
    generation: int
    lineage: int  # of the state that its members hold
    committed: int  # steps that are part of the model
    total: int  # steps of the job
    num_rows: int  # of the training data
    plan: PlanDocument
    stages: tuple[tuple[Peer, ...], ...]  # workers of every stage, by rank
    servers: tuple[Peer, ...]  # by index
    allocation: Allocation
    restore: Restore | None  # None: members keep the state that they have


@dataclass(frozen=True, slots=True)
class Go(Message):
    """All members of the generation are ready."""

    op: ClassVar[str] = "go"
    generation: int


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """A step is part of the model."""

    op: ClassVar[str] = "commit"
    generation: int
    step: int
    batch_size: int  # samples of the step's global batch


@dataclass(frozen=True, slots=True)
class NewAllocation(Message):
    """Batch sizes change at a step that no worker has begun."""

    op: ClassVar[str] = "allocation"
    generation: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Checkpoint(Message):
    """Write the state as of this commit."""

    op: ClassVar[str] = "checkpoint"
    generation: int
    step: int  # commits
    folder: str  # below the checkpoint path


@dataclass(frozen=True, slots=True)
class Evaluate(Message):
    """Compute the evaluation data with the final model."""

    op: ClassVar[str] = "evaluate"
    generation: int
    rows: int  # of the evaluation data


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """End in order."""

    op: ClassVar[str] = "shutdown"
    reason: str


@dataclass(frozen=True, slots=True)
class Rejoin(Message):
    """The coordinator had given the process up for lost: join again."""

    op: ClassVar[str] = "rejoin"
    joins: int  # of the pulse that it answers


# --- workers to parameter servers, and the answers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define(Message):
    """Tables and initial dense parameters; a server that knows them keeps its values."""

    op: ClassVar[str] = "define"
    generation: int
    tables: tuple[Table, ...]
    dense: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Defined(Message):
    """Answers `Define`."""

    op: ClassVar[str] = "defined"


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Rows are wanted."""

    op: ClassVar[str] = "pull"
    generation: int
    request: int  # number that the answer repeats
    version: int  # commits that the rows must at least have seen
    keys: dict[int, Array]  # dim -> (U,) int64


@dataclass(frozen=True, slots=True)
class Rows(Message):
    """Answers `Pull`."""

    op: ClassVar[str] = "rows"
    request: int
    rows: dict[int, Array]  # dim -> (U, dim) in the wire's precision, in the order of the keys


@dataclass(frozen=True, slots=True)
class PullDense(Message):
    """Dense parameters are wanted."""

    op: ClassVar[str] = "pull-dense"
    generation: int
    request: int
    version: int  # commits that they must at least have seen
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dense(Message):
    """Answers `PullDense`."""

    op: ClassVar[str] = "dense"
    request: int
    values: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Push(Message):
    """A worker's gradients of a step, summed over its samples."""

    op: ClassVar[str] = "push"
    generation: int
    step: int
    worker: str  # name; a server adds pushes in the order of names
    chunks: tuple[Chunk, ...]
    dense: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """Answers `Push`: the server keeps the gradients."""

    op: ClassVar[str] = "ack"
    step: int


# --- workers of neighbouring stages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward(Message):
    """A micro-batch goes on to the next stage."""

    op: ClassVar[str] = "forward"
    generation: int
    step: int
    training: bool  # False: a batch of the evaluation data
    allocation: int  # first step of the allocation that cuts the step into micro-batches
    index: int  # of the micro-batch
    tensors: dict[str, Array]  # live tensors and the label
    differentiable: tuple[str, ...]  # those whose gradient is to come back


@dataclass(frozen=True, slots=True)
class Backward(Message):
    """The gradients of a micro-batch come back; in evaluation, an empty receipt."""

    op: ClassVar[str] = "backward"
    generation: int
    step: int
    index: int
    gradients: dict[str, Array]


FromMember: TypeAlias = Join | Pulse | Ready | Done | Failed | Checkpointed | Evaluated
Order: TypeAlias = Go | Commit | NewAllocation | Checkpoint | Evaluate  # to members of the generation in force
FromCoordinator: TypeAlias = Generation | Order | Shutdown | Rejoin
ToServer: TypeAlias = Define | Pull | PullDense | Push
FromServer: TypeAlias = Defined | Rows | Dense | Ack
BetweenWorkers: TypeAlias = Forward | Backward

MESSAGES: dict[str, type[Message]] = {
    kind.op: kind
    for line in (FromMember, FromCoordinator, ToServer, FromServer, BetweenWorkers)
    for kind in get_args(line)
}
