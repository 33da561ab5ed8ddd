"""One target in a process of its own, driven by libFuzzer: `python -m tests.fuzz.engine TARGET [libFuzzer options]`.

libFuzzer ends the process itself, so the campaign starts one for each target. Half of the mutations are libFuzzer's,
half are those of `mutation`, which keep an input's form.
"""

from __future__ import annotations

import random
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.mutation import mutate
from tests.fuzz.target import Target, execute, find

__all__ = ["MEMORY", "PROGRESS", "TooSlowError", "main"]

MEMORY = 512 * 1024 * 1024  # that an input may make the process take, in bytes of address space
PROGRESS = "executed"  # first word of a line with the number of executed inputs; libFuzzer's own are far apart
_PROGRESS_SECONDS = 5.0
_SECONDS = 0.5
_SECONDS_PER_BYTE = 50e-6
_INSTRUMENTED = ["heterps_operator", "heterps_planner", "heterps_runtime", "tests.fuzz.targets.control"]

_RUNTIME = Path(__file__).parents[2] / "runtime"
_COMPILED = re.compile(r"^@kernel$|^import numba$|^from numba ", re.MULTILINE)


class TooSlowError(Exception):
    """An input took more processor time than its size allows."""


def main(arguments: list[str]) -> None:
    """Fuzz a target until libFuzzer ends the process.

    Args:
        arguments: the program's name, the target and libFuzzer's options.
    """
    import atheris

    program, name, *options = arguments
    with atheris.instrument_imports(include=_INSTRUMENTED, exclude=_compiled()):
        target = find(name)
    for seed in target.seeds():  # loads schemas, compiles expressions
        execute(target, seed)
    taken = _address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (taken, taken))

    def change(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.5:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        return mutate(data, target.form, draw, most)

    executed, told = 0, time.monotonic()

    def execute_one(data: bytes) -> None:
        nonlocal executed, told
        executed += 1
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told = time.monotonic()
            sys.stderr.write(f"{PROGRESS}: {executed}\n")
            sys.stderr.flush()
        _execute_in_time(target, data)

    atheris.Setup([program, *options], execute_one, custom_mutator=change, internal_libfuzzer=True)
    atheris.Fuzz()


def _execute_in_time(target: Target, data: bytes) -> Any:
    began = time.thread_time()
    execute(target, data)
    seconds = time.thread_time() - began
    if seconds > _SECONDS + _SECONDS_PER_BYTE * len(data):
        raise TooSlowError(f"{seconds:.2f} s of processor time for {len(data)} bytes")


def _compiled() -> list[str]:
    """Modules with functions that Numba compiles, which it cannot do once they are instrumented."""
    files = (_RUNTIME / "heterps_runtime").rglob("*.py")
    found = [file for file in files if _COMPILED.search(file.read_text(encoding="utf-8"))]
    names = [".".join(file.relative_to(_RUNTIME).with_suffix("").parts) for file in found]
    return [*names, "heterps_runtime.partition.splitmix"]  # which `store.kernel` compiles


def _address_space() -> int:
    """Return the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv)
