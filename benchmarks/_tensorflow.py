"""TensorFlow in an environment of its own, where its packages do not meet ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["install_tensorflow"]

_ROOT = Path(__file__).resolve().parents[1]
_ENVIRONMENT = _ROOT / ".cache" / "benchmarks" / "tensorflow"
_LOCK = _ROOT / "benchmarks" / "tensorflow.lock"


def install_tensorflow() -> Path:
    """Install TensorFlow unless it is there; return its Python.

    Raises:
        subprocess.CalledProcessError: pip or venv failed.
    """
    python, done = _ENVIRONMENT / "bin" / "python", _ENVIRONMENT / ".installed"
    if not done.exists():
        sys.stderr.write(f"Installing TensorFlow into {_ENVIRONMENT.relative_to(_ROOT)} (300 MB to fetch, once)\n")
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(_LOCK)]
        subprocess.run(install, check=True)
        done.touch()
    return python
