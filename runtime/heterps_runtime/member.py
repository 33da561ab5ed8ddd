"""The part that parameter servers and workers have in common: following the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod

from heterps_runtime.errors import ProtocolError, TransientError
from heterps_runtime.process import log
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Commit, Generation, Order, Rejoin, Shutdown

__all__ = ["Member"]

_MAX_JOINS_WITHOUT_COMMIT = 50  # then the process ends with the reason, which counts to `runPolicy.backoffLimit`


class Member(ABC):
    """A process that takes part in a job, one generation after another.

    Args:
        link: line to the coordinator.
    """

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._ended = False
        self._joins_without_commit = 0

    def _follow_coordinator(self) -> None:
        """Handle every message of the coordinator that has arrived; join again if others may be lost.

        Raises:
            TransientError: the process had to join again too often.
        """
        try:
            self._take_messages()
        except ProtocolError as error:
            self._join_again(str(error))
        # After the commits that have arrived, since the join says which ones this process holds.
        if not self._ended and self._link.broke():
            self._join_again("the connection to the coordinator broke")

    def _join_again(self, why: str) -> None:
        """Leave the generation, which can no longer be relied on, and ask for another one.

        Raises:
            TransientError: this happened too often without a commit in between.
        """
        self._joins_without_commit += 1
        if self._joins_without_commit > _MAX_JOINS_WITHOUT_COMMIT:
            raise TransientError(f"joined again {_MAX_JOINS_WITHOUT_COMMIT} times without a commit; last reason: {why}")
        log(f"joining again: {why}")
        self._join()

    def _take_messages(self) -> None:
        while not self._ended and (message := self._link.receive()) is not None:
            match message:
                case Generation():
                    self._begin_generation(message)
                case Shutdown():
                    log(f"ending: {message.reason}")
                    self._ended = True
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
    def _carry_out(self, order: Order) -> None:
        """Carry out an order, if it is for the generation that this process takes part in."""
