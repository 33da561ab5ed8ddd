"""Start a program that the kernel ends together with its parent.

    python -I -S guard.py PARENT_PID [BYTES] -- COMMAND...

If `heterps run` is killed with SIGKILL, it cannot end its children, and orphans would keep computing and holding ports.
Watching a pipe would require every child to be responsive. Linux works for a child in any state: PR_SET_PDEATHSIG
delivers a signal when the parent ends, and it survives exec. A small program sets it and then execs the real one,
because running code between fork and exec of a multi-threaded process is not safe. It also limits the program's address
space to BYTES (RLIMIT_AS), which survives exec, too.

This file is run by its path, before any package is importable: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

__all__ = ["end_with_parent", "limit_memory"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends; return False if the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def limit_memory(bytes_: int) -> None:
    """Limit the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


def main(arguments: list[str]) -> None:
    """Bind this process's lifetime to its parent's, limit its memory, then exec the command."""
    separator = arguments.index("--")
    (parent, *limits), command = arguments[:separator], arguments[separator + 1 :]
    assert command
    for limit in limits:
        limit_memory(int(limit))
    if end_with_parent(int(parent)):
        os.execv(command[0], command)  # noqa: S606  # replacing the process is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
