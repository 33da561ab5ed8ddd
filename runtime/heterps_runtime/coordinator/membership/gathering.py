"""Changes of membership that happen at the same time form one generation.

Hundreds of members may leave or join at once, when a switch fails. Each announcement goes to all members, so one for
each change would be quadratic in their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heterps_runtime.coordinator.membership.membership import Membership

__all__ = ["Gathering"]


class Gathering:
    """Decides whether a generation is announced at once.

    Args:
        membership: of the job.
        form: forms a generation.
    """

    def __init__(self, membership: Membership, form: Callable[[], None]) -> None:
        self._membership = membership
        self._form = form
        self._open = False  # whether further changes may follow
        self._waits = False  # whether a generation waits for them

    def defer(self) -> bool:
        """Whether to leave the generation that forms to the end of `together`, which calls `form` again."""
        self._waits = self._open
        return self._open

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within this context, what the core is told has happened at the same time."""
        outermost, self._open = not self._open, True
        try:
            yield
        finally:
            if outermost:
                waits, self._open, self._waits = self._waits, False, False
                if waits and self._membership.forming:  # not if others have left since
                    self._form()
