"""The kinds of faults."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "API",
    "CHANGES",
    "CLOCK",
    "DISK",
    "JOB",
    "KINDS",
    "MACHINE",
    "ON_CLUSTER",
    "ON_MACHINE",
    "OPERATOR",
    "STEPS",
    "Kind",
]

CLOCK, DISK, MACHINE = "clock", "disk", "machine"
API, OPERATOR, JOB = "api", "operator", "job"


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    Attributes:
        name: on the command line.
        of: `process`, `worker`, `link`, or the name of its only target.
        what: for people.
        allowed_seconds: by which it may delay the end of a job, besides twice its duration.
        lasting: whether it has a duration.
        ends_generation: whether the job always forms a new generation because of it.
        amounts: strengths to draw from.
        strength: a strength, for people.
    """

    name: str
    of: str
    what: str
    allowed_seconds: float
    lasting: bool = False
    ends_generation: bool = False
    amounts: tuple[float, ...] = ()
    strength: str = ""


_HANG_SECONDS = 150.0  # two hangs of 60 s are declared, or a member is replaced after its silence; then a restart
_ON_MACHINE = (
    Kind("kill", "process", "SIGKILL of a process", 120.0, ends_generation=True),
    Kind("terminate", "process", "SIGTERM of a process", 120.0, ends_generation=True),
    Kind("stop", "process", "SIGSTOP of a process, and SIGCONT", 120.0, lasting=True),
    Kind("reset", "link", "RST of a link's connections", _HANG_SECONDS),
    Kind("half-open", "link", "all packets of a link's connections are lost from now on", _HANG_SECONDS),
    Kind("partition", "link", "all packets of a link's connections are lost for a time", _HANG_SECONDS, lasting=True),
    Kind("delay", "link", "each chunk is late", 60.0, lasting=True, amounts=(0.02, 0.1, 0.5), strength="{:g} s"),
    Kind("slow", "link", "limited bandwidth", 60.0, lasting=True, amounts=(2e3, 2e4), strength="{:g} bytes/s"),
    Kind("corrupt", "link", "a flipped bit", _HANG_SECONDS, amounts=(0.0, 0.02, 0.5, 0.99), strength="at {:.0%}"),
    Kind("duplicate", "link", "a chunk arrives twice", _HANG_SECONDS),
    Kind("reorder", "link", "the halves of a chunk are swapped", _HANG_SECONDS),
    Kind("disk-full", DISK, "no space for the next checkpoints", 60.0, amounts=(1, 2), strength="{:g} checkpoints"),
    Kind("disk-error", DISK, "EIO when checkpoints are synced", 60.0, amounts=(1, 2), strength="{:g} checkpoints"),
    Kind("disk-torn", DISK, "EIO in the middle of a write", 60.0, amounts=(1, 2), strength="{:g} checkpoints"),
    Kind("disk-slow", DISK, "each write of a checkpoint is slow", 60.0, amounts=(0.2, 1.0), strength="{:g} s"),
    Kind(
        "clock",
        CLOCK,
        "the time of day steps, and steps back later",
        60.0,
        lasting=True,
        amounts=(-86400, -3600, -30, 30, 3600, 86400),
        strength="{:+g} s",
    ),
    Kind("power-loss", MACHINE, "all processes are killed, and what was not synced is lost", 120.0),
)
_CHANGES = (
    Kind("replan", JOB, "other stages or servers, while the job trains", 120.0, ends_generation=True),
    Kind(
        "edit", JOB, "the same in the manifest: SIGTERM of `heterps run`, and another one", 120.0, ends_generation=True
    ),
)
# A lost node is noticed after 14 s, and its pods tolerate that for 5 s; a new operator waits 15 s for the Lease; pods
# start in 10 s, and all of it takes several times as long on a busy machine.
_CLUSTER_SECONDS = 240.0
_ON_CLUSTER = (
    Kind("pod-kill", "process", "SIGKILL of a pod's processes", _CLUSTER_SECONDS, ends_generation=True),
    Kind("pod-delete", "process", "a pod is deleted without grace", _CLUSTER_SECONDS, ends_generation=True),
    Kind("pod-evict", "worker", "a worker is evicted (Eviction API)", _CLUSTER_SECONDS, ends_generation=True),
    Kind("node-drain", "worker", "cordon, and eviction of the node's workers", _CLUSTER_SECONDS, lasting=True),
    Kind("node-silent", "process", "the node's kubelet and containerd are stopped", _CLUSTER_SECONDS, lasting=True),
    Kind("node-lost", "process", "so are they, and the node's processes are killed", _CLUSTER_SECONDS, lasting=True),
    Kind("api-down", API, "the API server is killed", _CLUSTER_SECONDS, lasting=True),
    Kind("api-hang", API, "SIGSTOP of the API server, and SIGCONT", _CLUSTER_SECONDS, lasting=True),
    Kind("api-slow", API, "each request of an operator is late", _CLUSTER_SECONDS, lasting=True, amounts=(0.5, 2.0),
         strength="{:g} s"),
    Kind("api-errors", API, "409, 422, 429, 500, 503 and resets for operators", _CLUSTER_SECONDS, lasting=True,
         amounts=(2, 4), strength="one in {:g}"),
    Kind("watch-drop", API, "all watches of operators break", _CLUSTER_SECONDS),
    Kind("operator-kill", OPERATOR, "SIGKILL of the active operator", _CLUSTER_SECONDS),
    Kind("operator-stop", OPERATOR, "SIGSTOP for longer than the Lease, and SIGCONT", _CLUSTER_SECONDS, lasting=True),
    Kind("operator-twice", OPERATOR, "another one is active, with a Lease of its own", _CLUSTER_SECONDS, lasting=True),
    Kind("operator-clock", OPERATOR, "the time of day of the active operator steps, and steps back later",
         _CLUSTER_SECONDS, lasting=True, amounts=(-86400, -3600, -30, 30, 3600, 86400), strength="{:+g} s"),
    Kind("operator-clock-kill", OPERATOR, "that of all operators does, and the active one is killed meanwhile",
         _CLUSTER_SECONDS, lasting=True, amounts=(-86400, -3600, -30, 30, 3600, 86400), strength="{:+g} s"),
    Kind("floor", JOB, "another throughput floor in the spec", _CLUSTER_SECONDS, amounts=(1, 10**6),
         strength="{:g} samples/s"),
    Kind("resize", JOB, "another number of workers in the spec", _CLUSTER_SECONDS, ends_generation=True,
         amounts=(1, 3), strength="{:g} workers"),
)  # fmt: skip
STEPS = ("clock", "operator-clock", "operator-clock-kill")  # kinds that step a clock, which takes a C compiler
ON_MACHINE = tuple(kind.name for kind in _ON_MACHINE)
ON_CLUSTER = tuple(kind.name for kind in _ON_CLUSTER)
CHANGES = tuple(kind.name for kind in _CHANGES)  # of the plan, on a machine; they are not drawn as faults are
KINDS = {kind.name: kind for kind in (*_ON_MACHINE, *_CHANGES, *_ON_CLUSTER)}
