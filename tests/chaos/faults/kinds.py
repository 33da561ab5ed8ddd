"""The kinds of faults."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DISK", "KINDS", "MACHINE", "Kind"]

DISK, MACHINE = "disk", "machine"


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    Attributes:
        name: on the command line.
        of: `process`, `link`, `disk`, or the name of its only target.
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
_ALL = (
    Kind("kill", "process", "SIGKILL of a process", 120.0, ends_generation=True),
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
    Kind("power-loss", MACHINE, "all processes are killed, and what was not synced is lost", 120.0),
)
KINDS = {kind.name: kind for kind in _ALL}
