"""The operator, but it dies like a crash: `python -m tests.cluster.faulty_operator MOMENT NUMBER ...`.

    before    when a decision is kept, and its NUMBER-th action is not done yet
    after     when that action is done, and nothing more

Actions are counted over the life of the operator. Production code knows nothing of this: the moments lie between the
loop's own steps.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from heterps_operator import __main__, loop

CODE = 86
ACT = loop.ControlLoop._act


class Crash:
    """Stands in for `ControlLoop._act`.

    Args:
        moment: before | after.
        number: of the action.
    """

    def __init__(self, moment: str, number: int) -> None:
        self._moment = moment
        self._left = number

    def act(self, control: loop.ControlLoop, action: Any, now: float) -> None:
        """Carry an action out, or die."""
        self._left -= 1
        if self._left == 0 and self._moment == "before":
            self._die(action)
        ACT(control, action, now)
        if self._left == 0:
            self._die(action)

    def _die(self, action: Any) -> None:
        sys.stderr.write(f"dies {self._moment} {type(action).__name__}\n")
        os._exit(CODE)


if __name__ == "__main__":
    crash = Crash(sys.argv[1], int(sys.argv[2]))
    loop.ControlLoop._act = lambda control, action, now: crash.act(control, action, now)  # type: ignore[method-assign, assignment]
    sys.exit(__main__.main(sys.argv[3:]))
