"""Copies of rows between servers that stand still for as long as a test holds them.

A held copy could go on, or leaves an answer of another server unread: its server would look at it again and again, and
take a core from the job. So it waits for everything else, until the test lets the copy go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import zmq

from heterps_runtime.ps.recovery import Recovery
from heterps_runtime.ps.server import ParameterServer


class HeldCopies:
    """Decides before each step of a copy whether it stands still.

    Args:
        monkeypatch: undoes it at the end of the test.
        holds: whether a copy stands still; called in its server's thread. What it raises, `Recovery.advance` raises.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holds: Callable[[Recovery], bool]) -> None:
        self._holds = holds
        self._server_of: dict[Recovery, ParameterServer] = {}
        self._polled: dict[Recovery, Sequence[Any]] = {}  # what the servers of held copies do not poll meanwhile
        make, advance, is_busy = ParameterServer._new_recovery, Recovery.advance, vars(Recovery)["is_busy"].fget

        def making(server: ParameterServer, *arguments: Any) -> Recovery:
            recovery = make(server, *arguments)
            self._server_of[recovery] = server
            return recovery

        def advancing(recovery: Recovery) -> bool:
            if self._holds(recovery):
                self._rest(recovery)
                return False
            self._resume(recovery)
            return advance(recovery)

        monkeypatch.setattr(ParameterServer, "_new_recovery", making)
        monkeypatch.setattr(Recovery, "advance", advancing)
        monkeypatch.setattr(Recovery, "is_busy", property(lambda copy: copy not in self._polled and is_busy(copy)))

    def look_again(self) -> None:
        """Let `holds` decide again about the copies that stand still."""
        for recovery in list(self._polled):
            self._server_of[recovery]._wakeup.wake()

    def _rest(self, recovery: Recovery) -> None:
        if recovery not in self._polled:
            for socket in recovery.pollables:
                self._server_of[recovery]._poller.unregister(socket)
            self._polled[recovery], recovery.pollables = recovery.pollables, ()

    def _resume(self, recovery: Recovery) -> None:
        if recovery in self._polled:
            recovery.pollables = self._polled.pop(recovery)
            for socket in recovery.pollables:
                self._server_of[recovery]._poller.register(socket, zmq.POLLIN)
