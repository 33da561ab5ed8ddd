"""The part that parameter servers and workers have in common: following the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from heterps_runtime.checkpoint.errors import DamagedError
from heterps_runtime.contract import REASON_LEAVING
from heterps_runtime.errors import ProtocolError, TransientError
from heterps_runtime.processes.process import log
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import (
    Commit,
    CopyAhead,
    Damaged,
    Failed,
    Generation,
    Leaving,
    Order,
    Rejoin,
    Shutdown,
)

__all__ = ["Member"]

_MAX_JOINS_WITHOUT_COMMIT = 50  # then the process ends with the reason, which counts to `runPolicy.backoffLimit`


class Member(ABC):
    """A process that takes part in a job, one generation after another.

    Args:
        link: line to the coordinator.
        wake: makes the poll of the member's thread return; may be called from a signal handler.

    Attributes:
        interrupted: whether it ends too early, because this process or another one of the job was told to end.
    """

    def __init__(self, link: ControlLink, wake: Callable[[], None]) -> None:
        self.interrupted = False
        self._link = link
        self._wake = wake
        self._ended = False
        self._joins_without_commit = 0
        self._leaves = False  # it was told to end, and works on until the coordinator dismisses it
        self._said_so = False

    def run(self) -> None:
        """Take part until the coordinator ends this process; the coordinator is told of an error."""
        try:
            self._take_part()
        except Exception as error:
            self._link.send(Failed(type(error).__name__, str(error), permanent=isinstance(error, ValueError)))
            self._link.close()
            raise

    @abstractmethod
    def _take_part(self) -> None:
        """Join, and follow the coordinator to the end."""

    def leave(self) -> bool:
        """Leave the job, once the coordinator can do without this process; for signal handlers.

        Returns:
            False if it takes part in no generation: then it holds nothing that the job needs.
        """
        self._leaves = self.takes_part
        self._wake()
        return self._leaves

    @property
    @abstractmethod
    def takes_part(self) -> bool:
        """Whether it is set up for a generation."""

    def _follow_coordinator(self) -> None:
        """Handle every message of the coordinator that has arrived; join again if others may be lost.

        Raises:
            TransientError: the process had to join again too often.
        """
        lost = ""
        try:
            self._take_messages()
        except ProtocolError as error:
            lost = str(error)
        if self._leaves and not self._said_so:
            self._said_so = True
            self._link.send(Leaving())
        # After the commits that have arrived, since the join says which ones this process holds.
        if self._link.broke():
            lost = "the connection to the coordinator broke"
        if lost and not self._ended:
            self._join_again(lost)
        self._link.probe()

    def _join_again(self, why: str) -> None:
        """Leave the generation, which can no longer be relied on, and ask for another one.

        Raises:
            TransientError: this happened too often without a commit in between.
        """
        if self._leaves:  # a generation would have to wait for its replacement anyway
            log(f"ending: told to end, and {why}")
            self._ended = self.interrupted = True
            return
        self._joins_without_commit += 1
        if self._joins_without_commit > _MAX_JOINS_WITHOUT_COMMIT:
            raise TransientError(f"joined again {_MAX_JOINS_WITHOUT_COMMIT} times without a commit; last reason: {why}")
        log(f"joining again: {why}")
        self._join()

    def _cannot_restore(self, generation: int, folder: str, error: DamagedError) -> None:
        """Leave a generation because a checkpoint is damaged; the coordinator announces one with another checkpoint."""
        self._link.send(Damaged(generation, folder, error.file, str(error)))
        self._join_again(f"{folder} cannot be restored: {error}")

    def _take_messages(self) -> None:
        while not self._ended and (message := self._link.receive()) is not None:
            match message:
                case Generation():
                    self._begin_generation(message)
                case Shutdown():
                    log(f"ending: {message.reason}")
                    self._ended, self.interrupted = True, self._leaves or message.reason == REASON_LEAVING
                case Rejoin():
                    if self._link.must_rejoin(message):
                        self._join_again("the coordinator had given this process up for lost")
                case _:
                    if isinstance(message, Commit):
                        self._joins_without_commit = 0
                    self._carry_out(message)

    @abstractmethod
    def _join(self) -> None:
        """Leave the generation, and ask to take part again with the state that this process holds."""

    @abstractmethod
    def _begin_generation(self, announced: Generation) -> None:
        """Set up for a new generation, and report when ready."""

    @abstractmethod
    def _carry_out(self, order: Order | CopyAhead) -> None:
        """Carry out an order, if it is for the generation that this process takes part in."""
