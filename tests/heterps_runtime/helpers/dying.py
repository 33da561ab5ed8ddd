"""`python -m tests.heterps_runtime.helpers.dying POINT STEP ROLE ...`: a process of a job that dies within a step.

It is the program that jobs run, `heterps-runtime ROLE ...`, with one function that kills its own process (SIGKILL) in
that step, before or after it has done its work.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps_runtime.__main__ import main
from heterps_runtime.ps.shard import Shard
from heterps_runtime.worker.rows.servers import ServerClient
from heterps_runtime.worker.steps.delivery import Delivery
from heterps_runtime.worker.steps.engine import Engine


@dataclass(frozen=True)
class Point:
    """A place in the program.

    Args:
        owner: a class.
        name: of its method.
        step: from the method's arguments, the step that it is about; None: of none yet.
        after: whether the method has done its work.
    """

    owner: type
    name: str
    step: Callable[..., int | None]
    after: bool = False


POINTS = {
    "a worker has begun to compute": Point(Engine, "_forward", lambda engine, work: work.run.step, after=True),
    "a worker is about to push": Point(ServerClient, "push", lambda client, step, *_: step),
    "a worker's push has arrived": Point(Delivery, "_report", lambda delivery, run: run.step if run.pushed else None),
    "a worker hears of a commit": Point(Engine, "commit", lambda engine, order: order.step),
    "a worker has made a commit": Point(Engine, "commit", lambda engine, order: order.step, after=True),
    "a server has a push": Point(Shard, "push", lambda shard, step, *_: step, after=True),
    "a server hears of a commit": Point(Shard, "commit_dense", lambda shard, step, size: step),
    "a server is in a commit": Point(Shard, "commit_dense", lambda shard, step, size: step, after=True),
    "a server has made a commit": Point(Shard, "commit_rows", lambda shard, step, size: step, after=True),
    "a server saves a checkpoint": Point(Shard, "snapshot", lambda shard, *_: shard.committed, after=True),
}


def die_at(point: Point, step: int) -> None:
    """From now on, this process dies there, in this step or the next one that comes there."""
    original = getattr(point.owner, point.name)

    @functools.wraps(original)
    def dying(*arguments: Any, **options: Any) -> Any:
        about = point.step(*arguments, **options)
        now = about is not None and about >= step  # a checkpoint is left out while the one before is being written
        result = None if now and not point.after else original(*arguments, **options)
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(point.owner, point.name, dying)


if __name__ == "__main__":
    die_at(POINTS[sys.argv[1]], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
