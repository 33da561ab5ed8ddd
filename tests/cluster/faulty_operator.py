"""The operator, but it dies like a crash at a chosen moment: `python -m tests.cluster.faulty_operator MOMENT ...`.

    before    when a decision is kept, and nothing of it is done yet
    after     when one action is done, and nothing else

Asking the planner is no such action: it changes nothing outside, and whoever always dies there never has a plan.
Production code knows nothing of this: the moments lie between the loop's own steps.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from heterps_operator import __main__, loop
from heterps_operator.values import ComputePlan

CODE = 86
ACT = loop.ControlLoop._act


def die_before_an_action(self: Any, action: Any, now: float) -> None:
    """Instead of `ControlLoop._act`."""
    if isinstance(action, ComputePlan):
        return ACT(self, action, now)
    sys.stderr.write(f"dies before {type(action).__name__}\n")
    os._exit(CODE)


def die_after_an_action(self: Any, action: Any, now: float) -> None:
    """Instead of `ControlLoop._act`."""
    ACT(self, action, now)
    if isinstance(action, ComputePlan):
        return None
    sys.stderr.write(f"dies after {type(action).__name__}\n")
    os._exit(CODE)


MOMENTS = {"before": die_before_an_action, "after": die_after_an_action}

if __name__ == "__main__":
    loop.ControlLoop._act = MOMENTS[sys.argv[1]]  # type: ignore[method-assign]
    sys.exit(__main__.main(sys.argv[2:]))
