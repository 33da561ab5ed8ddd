"""Places in the user's code, for messages.

Frames of torch, of the standard library and of this package are skipped. Other packages count as the user's code,
because a model may come from one.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

__all__ = ["error_location", "frame_location", "function_location"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep


@cache  # asked for each frame of each operation that is traced
def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.abspath(filename)
    if path.startswith((_TORCH, _OURS)):
        return False
    return not path.startswith(_STDLIB) or "site-packages" in path or "dist-packages" in path


def frame_location() -> str:
    """`file:line` of the innermost frame of the user's code, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def error_location(error: BaseException, *, outside: str = "") -> str:
    """`file:line` of the user's code where `error` was raised, or an empty string.

    Args:
        error: a caught exception.
        outside: a file whose frames are skipped too.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename) and frame.filename != outside:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def function_location(function: Any) -> str:
    """`file:line` where a function, method or class is defined, or an empty string."""
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__init__", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""
