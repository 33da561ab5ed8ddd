"""Virtual environments of benchmarks, for packages that must not meet ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PYTORCH_PEERS", "TENSORFLOW", "Environment"]

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / ".cache" / "benchmarks"


@dataclass(frozen=True)
class Environment:
    """The packages of a lock file, in an environment of their own."""

    name: str  # of the lock file and of the folder
    contents: str  # for people
    cost: str  # to fetch and to store

    def install(self) -> Path:
        """Install the packages unless these very ones are there; return the environment's Python.

        Raises:
            subprocess.CalledProcessError: pip or venv failed.
        """
        lock, folder = _ROOT / "benchmarks" / f"{self.name}.lock", _FOLDER / self.name
        python, done = folder / "bin" / "python", folder / ".installed"
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()
        if done.exists() and done.read_text() == digest:
            return python
        sys.stderr.write(f"Installing {self.contents} into {folder.relative_to(_ROOT)} ({self.cost}, once)\n")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        _install(python, lock)
        done.write_text(digest)
        return python


def _install(python: Path, lock: Path) -> None:
    """Install with uv, which links what it has fetched for another environment; with pip where uv fails."""
    # The lock names all packages. Without --no-deps those that it leaves out on purpose would be installed, too.
    options = ["--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
    pip = [str(python), "-m", "pip"]
    asked = subprocess.run([*pip, "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()  # uv does not read pip's settings
    variables = {"UV_DEFAULT_INDEX": index} if index else {}
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", str(python)]
    try:
        subprocess.run([*uv, *options], env=os.environ | variables, check=True)
    except (OSError, subprocess.CalledProcessError):
        subprocess.run([*pip, "install", *options], check=True)


TENSORFLOW = Environment("tensorflow", "TensorFlow", "300 MB to fetch and 1.5 GB on disk")
PYTORCH_PEERS = Environment("peers", "torchrec and a PyTorch that fits it", "up to 2.5 GB to fetch and 5 GB on disk")
