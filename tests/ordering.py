"""A pytest plugin that runs the files with the slowest tests first.

pytest-xdist assigns whole files to processes, those with many tests first. Here these are the quick ones: one process
would end with a slow file while the others are idle.
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by their number of slow tests, then by their number of tests."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -tests[item.path]))
