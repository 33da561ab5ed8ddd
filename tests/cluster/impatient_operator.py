"""An operator that compares what it knows with lists every few seconds instead of every five minutes.

python -m tests.cluster.impatient_operator operator OPTIONS...
"""

from __future__ import annotations

import sys

from heterps_operator.__main__ import main
from heterps_operator.controller import reflector


def run() -> int:
    """Run `heterps` with these arguments."""
    reflector._RESYNC_SECONDS = 5.0
    return main()


if __name__ == "__main__":
    sys.exit(run())
