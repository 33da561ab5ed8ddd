"""Checkpoints: a table of all, what changed between two, what was deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps_operator.documents import Json
from heterps_operator.formatting import format_bytes

__all__ = ["render_checkpoints", "render_comparison", "render_pruned"]

_PADDING = (0, 2, 0, 0)
_WORDS: dict[str, Any] = {"overflow": "fold"}
_NUMBERS: dict[str, Any] = {"justify": "right", "no_wrap": True}
_COLOURS = {"Valid": "green", "Damaged": "red", "Incomplete": "yellow", "Newer": "yellow"}
_MOST_ARRAYS = 20  # a model may have thousands; JSON has all


def render_checkpoints(document: Json) -> RenderableType:
    """Render the answer of `ls` or `verify`."""
    checkpoints = document["checkpoints"]
    if not checkpoints:
        return Text(f"no checkpoints in {document['address']}")
    table = _table(("health",), ("step", "epoch", "samples", "loss", "rows", "size", "stored"), ("folder",))
    for one in checkpoints:
        table.add_row(
            Text(one["health"], style=_COLOURS.get(one["health"], "")),
            f"{one['step']:,}",
            *_facts(one),
            format_bytes(one["bytes"]),
            format_bytes(one["stored"]),
            Text(one["folder"]),
        )
    parts: list[RenderableType] = [Text(_title(document)), table]
    parts += [Text(f"{one['folder']}: {one['reason']}") for one in checkpoints if one["reason"]]
    if any(one["health"] == "Needed" for one in checkpoints):
        parts.append(Text("Needed: deleted, except for files that newer checkpoints need"))
    return Group(*parts)


def render_comparison(document: Json) -> RenderableType:
    """Render the answer of `diff`."""
    before, after = document["before"], document["after"]
    progress = _table(("",), ("step", "epoch", "samples", "loss"), ("folder",))
    for name, one in (("before", before), ("after", after)):
        epoch, samples, loss = _progress(one)
        progress.add_row(name, f"{one['step']:,}", epoch, samples, loss, Text(one["folder"]))
    parts: list[RenderableType] = [progress]
    if document["tables"]:
        head = ("before", "after", "added", "removed", "changed", "largest change")
        tables = _table(("table",), head)
        for one in document["tables"]:
            counts = [f"{one[key]:,}" for key in ("before", "after", "added", "removed", "changed")]
            tables.add_row(Text(one["name"]), *counts, _change(one["largest"]))
        parts += ["", tables]
    changed = sorted((one for one in document["arrays"] if one["changed"]), key=_size_of_change, reverse=True)
    if changed:
        arrays = _table(("array",), ("elements", "changed", "largest change"))
        for one in changed[:_MOST_ARRAYS]:
            arrays.add_row(Text(one["name"]), f"{one['elements']:,}", f"{one['changed']:,}", _change(one["largest"]))
        parts += ["", arrays]
        if len(changed) > _MOST_ARRAYS:
            parts += [Text(f"{len(changed) - _MOST_ARRAYS:,} more have changed less; --output json has all")]
    equal = len(document["arrays"]) - len(changed)
    parts += ["", Text(f"{equal:,} of {len(document['arrays']):,} arrays are equal in both")]
    if document["fields"]:
        fields = _table(("field", "before", "after"), ())
        for one in document["fields"]:
            fields.add_row(*(Text(one[key]) for key in ("field", "before", "after")))
        parts += ["", fields]
    return Group(*parts)


def render_pruned(document: Json) -> RenderableType:
    """Render the answer of `prune`."""
    deleted, size = document["deleted"], format_bytes(document["bytes"])
    lines = [f"{one['folder']}: left as it is, {one['reason']}" for one in document["passedOver"]]
    lines += [f"{name}: kept" for name in document["kept"] if name not in {o["folder"] for o in document["passedOver"]}]
    done = "would be deleted" if document["dryRun"] else "deleted"
    needed = dict.fromkeys(document["needed"], ", except for files that newer ones need")
    lines += [f"{name}: {done}{needed.get(name, '')}" for name in deleted]
    if document["dryRun"]:
        lines.append(f"{len(deleted)} checkpoints with {size} would be deleted; leave --dry-run out to delete them")
    else:
        lines.append(f"deleted {len(deleted)} checkpoints with {size}")
    return Text("\n".join(lines))


def _title(document: Json) -> str:
    owner = document["owner"]
    return f"{document['address']}, last used by {owner}" if owner else f"{document['address']}"


def _facts(one: Json) -> list[str]:
    """Epoch, samples, loss and rows; blank if the checkpoint cannot be read."""
    return [*_progress(one), f"{one['rows']:,}"] if "epoch" in one else ["", "", "", ""]


def _progress(one: Json) -> tuple[str, str, str]:
    loss = "" if one["loss"] is None else f"{one['loss']:.4f}"
    return f"{one['epoch']:,}", f"{one['samples']:,}", loss


def _change(largest: float | None) -> str:
    return "no common shape" if largest is None else f"{largest:.3g}"


def _size_of_change(one: Json) -> float:
    largest: float | None = one["largest"]
    return float("inf") if largest is None else largest


def _table(left: Iterable[str], right: Iterable[str], last: Iterable[str] = ()) -> Table:
    """Return a table with columns on the left, numbers, and columns on the left again."""
    table = Table(box=None, padding=_PADDING, header_style="bold")
    for names, options in ((left, _WORDS), (right, _NUMBERS), (last, _WORDS)):
        for name in names:
            table.add_column(name, **options)
    return table
