"""What a test does where the machine lacks something that it needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["unavailable"]


def unavailable(reason: str) -> NoReturn:
    """Skip the test; fail it in continuous integration, where everything must be tested."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{reason}, and CI is set", pytrace=False)
    pytest.skip(reason)
