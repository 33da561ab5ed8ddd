"""Members that were told to end from outside, by an eviction for example, and work on until they are dismissed."""

from __future__ import annotations

__all__ = ["Leaving"]

# All pods of a node are told at once. If a server is among them, the job needs a checkpoint, and for that a worker of
# each stage, so workers are not dismissed before such a server has been heard.
_OTHERS_SPEAK_SECONDS = 1.0


class Leaving:
    """The leaving workers, and when they said so."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, name: str, now: float) -> None:
        """Note that a worker leaves."""
        self._since.setdefault(name, now)

    def forget(self, name: str) -> None:
        """Note that it has left."""
        self._since.pop(name, None)

    def due(self, now: float) -> list[str]:
        """Workers to dismiss, if no checkpoint needs them."""
        return [name for name, since in self._since.items() if now - since >= _OTHERS_SPEAK_SECONDS]
