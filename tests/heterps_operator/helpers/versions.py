"""What operators of other versions would store of a job, as changes of what this one stores."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["newer", "older"]

# Keys of these are names of processes or pools, or a user's own.
_BY_NAME = {
    "attempts",
    "not_before",
    "restarts",
    "planned_with",
    "refused_with",
    "claim",
    "crowded",
    "speeds",
    "before",
    "spec",
    "prices",
    "judged_prices",
}
# Fields that say what a job is. An operator that stored others before them wrote these already.
_NEEDED = {"phase", "plan", "plan_revision", "incarnation", "started"}


def older(data: dict[str, str]) -> dict[str, str]:
    """Return the state as an operator would have written it that knew only what is needed."""
    status = json.loads(data["status.json"])
    controller = json.loads(data["controller.json"])
    del controller["version"], controller["pools"]
    processes = [{key: view[key] for key in ("spec", "started")} for view in json.loads(data["processes.json"])]
    return {
        "status.json": json.dumps({key: value for key, value in status.items() if key in _NEEDED}),
        "bill.json": data["bill.json"],
        "processes.json": json.dumps(processes),
        "controller.json": json.dumps(controller),
    }


def newer(data: dict[str, str]) -> dict[str, str]:
    """Return the state as a later operator would write it, with unknown fields in every object."""

    def extended(value: Any, inside: str = "") -> Any:
        if isinstance(value, dict):
            open_ended = inside in _BY_NAME
            more = {} if open_ended else {"laterField": {"x": [1]}}
            return {**{key: extended(item, key) for key, item in value.items()}, **more}
        return [extended(item, inside) for item in value] if isinstance(value, list) else value

    controller = json.loads(data["controller.json"])
    changed = {name: json.dumps(extended(json.loads(text))) for name, text in data.items()}
    return {
        **changed,
        "controller.json": json.dumps({**controller, "laterField": 1}),
        "later.json": "{}",
    }
