"""The bench of the control plane: simulated members go through steps, losses, returns and reconnections to its end."""

from __future__ import annotations

from benchmarks.control_plane import measure


def test_members_commit_steps_are_lost_come_back_and_join_again() -> None:
    found = measure(workers=4, steps=2, generations=2)
    assert (found.workers, found.servers) == (4, 1)
    assert len(found.reports) == len(found.commits) == 2
    assert len(found.generations) == len(found.forming) == 2
    assert found.returned >= 1
