"""Exported models and deltas: what was written, and where."""

from __future__ import annotations

from rich.text import Text

from heterps_operator.documents import Json
from heterps_operator.formatting import format_bytes

__all__ = ["render_applied", "render_delta", "render_export"]


def render_export(document: Json) -> Text:
    """Render the answer of `export`."""
    model = document["model"]
    return Text(
        f"{model['address']}: step {model['step']:,}, {document['rows']:,} rows, {format_bytes(document['bytes'])}, "
        f"from {document['checkpoint']}\n{model['identity']}"
    )


def render_delta(document: Json) -> Text:
    """Render the answer of `delta`."""
    before, after = document["before"], document["after"]
    size, whole = format_bytes(document["bytes"]), format_bytes(document["bytesOfModel"])
    lines = [f"{document['delta']}: from step {before['step']:,} to step {after['step']:,}, {size} of {whole}"]
    for table in document["tables"]:
        gone = f", {table['gone']:,} gone" if table["gone"] else ""
        lines.append(f"  {table['name']}: {table['rows']:,} rows{gone}")
    if document["tensors"]:
        lines.append(f"  {len(document['tensors']):,} tensors that are no tables")
    lines += [
        f"  {document['unchanged']:,} tables and tensors are equal in both",
        f"from {before['identity']}",
        f"to   {after['identity']}",
    ]
    return Text("\n".join(lines))


def render_applied(document: Json) -> Text:
    """Render the answer of `apply`."""
    before, after = document["before"], document["after"]
    if not document["applied"]:
        return Text(f"{after['address']}: is the model of step {after['step']:,} already\n{after['identity']}")
    return Text(f"{after['address']}: from step {before['step']:,} to step {after['step']:,}\n{after['identity']}")
