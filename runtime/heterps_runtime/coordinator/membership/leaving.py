"""Members that were told to end from outside, by an eviction for example, and work on until they are dismissed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["Leaving"]

# All pods of a node are told at once. If a server that holds something alone is among them, the job needs a checkpoint,
# and for that a worker of each stage, so none is dismissed before such a server has been heard.
_OTHERS_SPEAK_SECONDS = 1.0


class Leaving:
    """The leaving members, and when they said so."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, name: str, now: float) -> None:
        """Note that a member leaves."""
        self._since.setdefault(name, now)

    def forget(self, name: str) -> None:
        """Note that it has left."""
        self._since.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        """Members that have not left yet."""
        return tuple(self._since)

    def due(self, now: float, can_spare: Callable[[str], bool]) -> Iterator[str]:
        """Yield the members to dismiss, if no checkpoint needs them.

        Args:
            now: in the time of `note`.
            can_spare: whether a member may end; asked after those before have been dismissed.
        """
        for name, since in list(self._since.items()):
            if now - since >= _OTHERS_SPEAK_SECONDS and can_spare(name):
                yield name
