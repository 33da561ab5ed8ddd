"""Values of PriorityClasses: read once a minute, and never a reason for a turn to fail."""

from __future__ import annotations

from heterps_operator.kubernetes.names import PRIORITY_CLASSES
from heterps_operator.kubernetes.priorities import Priorities
from tests.heterps_operator.helpers.fake_server import FakeServer, forbidden


def test_a_value_is_read_again_after_a_minute_and_kept_while_it_cannot_be() -> None:
    server, now = FakeServer(), [0.0]
    priorities = Priorities(server, lambda: now[0])
    server.put(f"{PRIORITY_CLASSES}/high", value=1000)
    assert [priorities.value(name) for name in ("high", "high", "missing", None, "")] == [1000, 1000, 0, 0, 0]
    assert len(server.requests) == 2
    server.put(f"{PRIORITY_CLASSES}/high", value=7)
    now[0] = 61.0
    server.refusals["get"] = [forbidden("get", "priorityclasses")]
    assert priorities.value("high") == 1000
    now[0] = 122.0
    assert priorities.value("high") == 7
    server.put(f"{PRIORITY_CLASSES}/odd", value="1000")
    assert priorities.value("odd") == 0
