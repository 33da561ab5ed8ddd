"""A cache of compiled kernels that is older than their sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import heterps_runtime
from heterps_runtime.partition.splitmix import mix64
from heterps_runtime.store.kernel_cache import digest_of

SOURCES = Path(heterps_runtime.__file__).parent
KEYS = 8
SHARDS = f"""
import numpy as np
from heterps_runtime.store.keys import NUM_SLOTS, shard_of
print(*shard_of(np.arange({KEYS}), np.arange(NUM_SLOTS, dtype=np.int32)))
"""  # the kernel is in keys.py; it calls a function of another module, and that one of a third
EXPECTED = [int(mix64(np.array([key], np.uint64))[0]) % 1024 for key in range(KEYS)]


def install(place: Path, change: Callable[[Path], None] = lambda package: None) -> None:
    """Install the kernels' sources, as an update does: all files but caches are replaced."""
    package = place / "heterps_runtime"
    for file in package.rglob("*.py"):
        file.unlink()
    without_caches = shutil.ignore_patterns("__pycache__")
    for part in ("store", "partition"):
        shutil.copytree(SOURCES / part, package / part, ignore=without_caches, dirs_exist_ok=True)
    shutil.copy(SOURCES / "errors.py", package)
    (package / "__init__.py").write_text("")
    change(package)


def shards(place: Path, cache: str) -> list[int]:
    """Run a kernel of these sources in another process, and return its results; a cache "" is beside the sources."""
    return [int(word) for word in run(place, cache, SHARDS).split()]


def run(place: Path, cache: str, script: str) -> str:
    """Run a script with these sources in another process, and return what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": cache and str(place / cache),
    }
    found = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def older_place(package: Path) -> None:
    """The module of the hash has another name."""
    (package / "partition" / "splitmix.py").rename(package / "splitmix.py")
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        text = text.replace("heterps_runtime.partition.splitmix", "heterps_runtime.splitmix")
        text = text.replace("from heterps_runtime.partition import splitmix", "from heterps_runtime import splitmix")
        file.write_text(text, encoding="utf-8")


def older_hash(package: Path) -> None:
    """The hash is another function."""
    file = package / "partition" / "splitmix.py"
    text = file.read_text(encoding="utf-8")
    assert "0xBF58476D1CE4E5B9" in text
    file.write_text(text.replace("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB"), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("older", "cache"), [(older_place, "cache"), (older_hash, "cache"), (older_hash, "")])
def test_an_update_does_not_use_machine_code_of_older_sources(
    tmp_path: Path, older: Callable[[Path], None], cache: str
) -> None:
    install(tmp_path, older)
    before = shards(tmp_path, cache)
    assert (before == EXPECTED) == (older is older_place)
    assert [file for file in tmp_path.rglob("keys._shards*.nbi") if (cache or "__pycache__") in file.parts]
    install(tmp_path)
    assert shards(tmp_path, cache) == EXPECTED


def test_machine_code_of_the_same_sources_is_used_again(tmp_path: Path) -> None:
    install(tmp_path)
    assert shards(tmp_path, "cache") == EXPECTED
    cached = {file: file.stat().st_mtime_ns for file in tmp_path.glob("cache/**/*.nb?")}
    assert any(file.name.startswith("keys._shards") for file in cached)
    install(tmp_path)
    assert shards(tmp_path, "cache") == EXPECTED
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("cache/**/*.nb?")} == cached


COMPILES_LATER = """
import sys
import numpy as np
from heterps_runtime.store.keys import NUM_SLOTS, shard_of
found = list(shard_of(np.arange(8), np.arange(NUM_SLOTS, dtype=np.int32)))
before = [name for name in ("numba.np.arraymath", "scipy.linalg") if name in sys.modules]
from heterps_runtime.store.kernel import kernel, mix64
sums = [float(kernel(lambda values: values.sum())(np.arange(4, dtype=dtype))) for dtype in (np.float32, np.float64)]
assert int(mix64(np.uint64(1))) == int(mix64.py_func(np.uint64(1)))
print(before, sums, *found)
"""


def test_machine_code_is_loaded_without_what_compiles_it(tmp_path: Path) -> None:
    """And a kernel that is not in the cache is compiled afterwards as ever."""
    install(tmp_path)
    assert shards(tmp_path, "cache") == EXPECTED
    expected = f"[] [6.0, 6.0] {' '.join(map(str, EXPECTED))}\n"
    assert run(tmp_path, "cache", COMPILES_LATER) == expected


def test_the_version_follows_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    seen = set[str]()
    for name, text in (("x.py", "1"), ("y.py", "1"), ("x.py", ""), ("y.py", "2")):
        (folder / name).write_text(text)
        seen.add(digest_of([folder]))
    assert len(seen) == 4
    (folder / "z.nbi").write_text("")
    assert digest_of([folder]) in seen
