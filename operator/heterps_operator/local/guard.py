"""Start a program that the kernel ends together with its parent: `python -I -S guard.py PARENT_PID -- COMMAND...`.

If `heterps run` is killed with SIGKILL it cannot end its children, and orphans would go on computing and holding ports.
A pipe that the children watch would need every child to be well and watching. Linux does it whatever state the
child is in: PR_SET_PDEATHSIG delivers a signal when the parent ends, and it survives exec. It is set here, in a tiny
program that then becomes the real one, because code between fork and exec of a process with threads is not safe.

This file is run by its path, before any package is importable: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Bind this process's life to its parent's, then become the command."""
    parent, separator, *command = arguments
    assert separator == "--"
    assert command
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return  # the parent ended before the line above: nobody is left to run for
    os.execv(command[0], command)  # noqa: S606  # becoming the command is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
