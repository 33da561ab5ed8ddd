"""Options of `heterps model`. Imports only cheap modules, as every command builds this parser."""

from __future__ import annotations

from argparse import ArgumentParser

from heterps_operator.cli.options.checkpoint import add_place

__all__ = ["add_model_options"]


def add_model_options(parser: ArgumentParser) -> None:
    """Add the actions of `heterps model`, and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    export = actions.add_parser(
        "export", help="export a checkpoint", description="Write the model of a checkpoint for use without HeterPS."
    )
    add_place(export)
    export.add_argument("--checkpoint", metavar="C", help="its step or its folder (default: the newest valid one)")
    export.add_argument("--to", metavar="MODEL", required=True, help="folder or address of the model")

    delta = actions.add_parser(
        "delta", help="write what changed", description="Write what changed from one exported model to another."
    )
    delta.add_argument("before", metavar="BEFORE", help="folder or address of a model")
    delta.add_argument("after", metavar="AFTER", help="folder or address of a newer one")
    delta.add_argument("--to", metavar="DELTA", required=True, help="folder or address of the delta")

    apply = actions.add_parser(
        "apply", help="bring a model up to date", description="Replace a model by the one that a delta makes of it."
    )
    apply.add_argument("model", metavar="MODEL", help="folder or address of a model")
    apply.add_argument("delta", metavar="DELTA", help="folder or address of a delta that fits it")
    for action in (delta, apply):
        action.add_argument("--output", "-o", choices=("text", "json"), default="text", help="(default: text)")
