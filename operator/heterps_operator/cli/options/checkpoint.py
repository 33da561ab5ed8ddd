"""Options of `heterps checkpoint`. Imports only cheap modules, as every command builds this parser."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

__all__ = ["add_checkpoint_options", "add_place"]


def add_checkpoint_options(parser: ArgumentParser) -> None:
    """Add the actions of `heterps checkpoint`, and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    ls = actions.add_parser("ls", help="list them", description="List the checkpoints, newest first.")
    add_place(ls)

    verify = actions.add_parser("verify", help="check them", description="Read all files and compare their checksums.")
    add_place(verify)
    verify.add_argument("--checkpoint", metavar="C", help="verify only this one: its step or its folder")

    diff = actions.add_parser("diff", help="compare two", description="Say what changed between two checkpoints.")
    add_place(diff)
    diff.add_argument("--before", metavar="C", help="step or folder (default: the valid one before the other)")
    diff.add_argument("--after", metavar="C", help="step or folder (default: the newest valid one)")

    prune = actions.add_parser("prune", help="delete old ones", description="Delete all but the newest checkpoints.")
    add_place(prune)
    prune.add_argument("--keep", metavar="N", type=_positive, required=True, help="how many valid ones stay")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def add_place(parser: ArgumentParser) -> None:
    """Add the checkpoints of a job as a positional argument, and how to report."""
    parser.add_argument("place", metavar="WHERE", help="job file (.yaml), or folder or address of checkpoints")
    parser.add_argument("--work-directory", metavar="D", help="of a job of this machine (default: .heterps/NAME)")
    parser.add_argument("--output", "-o", choices=("table", "json"), default="table", help="(default: table)")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError(f"must be a whole number from 1 to 1,000,000, is {text!r}")
    return int(text)
