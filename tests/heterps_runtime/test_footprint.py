"""What the roles load: none but workers and profilers load torch, and a coordinator is up before kernels are."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "numba", "llvmlite", "pyarrow.compute")
PROGRAM = f"""
import importlib, json, sys
loaded = {{}}
for module in sys.argv[1:]:
    importlib.import_module(module)
    loaded[module] = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps(loaded))
"""


def test_each_role_loads_only_what_it_needs() -> None:
    coordinator, data, server = (f"heterps_runtime.{name}" for name in ("coordinator.server", "data", "ps.server"))
    command = [sys.executable, "-c", PROGRAM, "heterps_runtime.__main__", coordinator, data, server]
    loaded = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert loaded["heterps_runtime.__main__"] == []
    assert loaded[coordinator] == []
    assert loaded[data] == ["pyarrow.compute"]
    assert "torch" not in loaded[server]
