"""A plug-in of pytest that runs the files with the slowest tests first.

Processes of pytest-xdist take whole files. It hands out files with many tests first, which are the quick ones here: one
process would end with a slow file while the others have nothing left to do.
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by their number of slow tests, then by their number of tests."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path]))
