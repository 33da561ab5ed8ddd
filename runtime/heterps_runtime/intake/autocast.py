"""A module's own autocast: the regions of a trace, and their re-entry in the stage that runs them.

A graph has operations, not the contexts around them. So each node keeps the region that it was traced in, and a stage
enters it again around the node's operation.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

__all__ = ["Region", "current_region", "enter_region", "leave_region"]

_DEVICE_TYPES = ("cpu", "cuda", "xpu")

#: Device types on which autocast is on, with its type; () if it is switched off.
Region = tuple[tuple[str, torch.dtype], ...]


def current_region() -> Region | None:
    """The innermost region of `torch.autocast` that the caller is in; None outside of all."""
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting() == 0:
        return None
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _DEVICE_TYPES if torch.is_autocast_enabled(kind))


def enter_region(region: Region) -> ExitStack:
    """Enter a region; called by nodes of a stage's graph.

    One that is switched off is so on every device: models say `torch.autocast("cuda", enabled=False)` around what
    needs float32. If an operation fails before `leave_region`, the region stays open: that ends the worker.
    """
    stack = ExitStack()
    for kind, dtype in region:
        stack.enter_context(torch.autocast(kind, dtype))
    if not region:
        for kind in _DEVICE_TYPES:
            stack.enter_context(torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=False))
    return stack


def leave_region(stack: ExitStack) -> None:
    """Leave a region; called by nodes of a stage's graph."""
    stack.close()
