"""Settings of malloc, in processes of their own, as they stay for the life of one."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library is not glibc")

_LARGE = 64 << 20  # bytes: above the most from which glibc ever maps memory apart

_PROGRAM = f"""
import resource
{{setting}}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    before = faults()
    b"x" * {_LARGE}
    return faults() - before
fill()
print(fill() * resource.getpagesize() / {_LARGE})
"""


def _share_mapped_again(setting: str) -> float:
    """The share of a large object's memory that the kernel maps when it is made for the second time."""
    program = _PROGRAM.format(setting=setting)
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def test_freed_memory_is_used_again() -> None:
    assert _share_mapped_again("") > 0.9
    assert _share_mapped_again("from heterps_runtime.malloc import keep_freed_memory; keep_freed_memory()") < 0.1


def test_arenas_are_shared() -> None:
    """The memory of threads that live at the same time is in as many places as there are arenas."""
    program = """
import ctypes, threading
{setting}
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
places, barrier = set(), threading.Barrier(8)
def take():
    barrier.wait()
    places.add((malloc(1000) or 0) >> 26)  # a heap of 64 MB begins at a multiple of it; the first one may cross one
    barrier.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(places))
"""

    def places(setting: str) -> int:
        command = [sys.executable, "-c", program.format(setting=setting)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert places("") > 3
    assert places("from heterps_runtime.malloc import share_arenas; share_arenas(2)") <= 3
