"""A fixture of the tests of the operator's shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.heterps_operator.helpers.life import Life


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A job that trains and is looked at by one operator."""
    life = Life(tmp_path)
    life.train()
    life.settle()
    return life
