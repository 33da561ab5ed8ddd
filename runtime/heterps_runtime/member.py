"""The part that parameter servers and workers have in common: following the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod

from heterps_runtime.process import log
from heterps_runtime.wire.link import ControlLink
from heterps_runtime.wire.messages import Generation, Order, Rejoin, Shutdown

__all__ = ["Member"]


class Member(ABC):
    """A process that takes part in a job, one generation after another.

    Args:
        link: line to the coordinator.
    """

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._ended = False

    def _follow_coordinator(self) -> None:
        """Handle every message of the coordinator that has arrived."""
        while not self._ended and (message := self._link.receive()) is not None:
            match message:
                case Generation():
                    self._begin_generation(message)
                case Shutdown():
                    log(f"ending: {message.reason}")
                    self._ended = True
                case Rejoin():
                    if self._link.must_rejoin(message):
                        log("joining again: the coordinator had given this process up for lost")
                        self._join()
                case _:
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
