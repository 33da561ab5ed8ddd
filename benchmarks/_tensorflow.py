"""TensorFlow in an environment of its own, where its packages do not meet ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["install_tensorflow", "tensorflow_command", "tensorflow_variables"]

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


def tensorflow_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module there; it may import other modules that need TensorFlow only.

    Raises:
        subprocess.CalledProcessError: TensorFlow cannot be installed.
    """
    return [str(install_tensorflow()), "-m", module, *arguments]


def tensorflow_variables(threads: int = 1) -> dict[str, str]:
    """Return the environment variables of such a process.

    Args:
        threads: for the operators of a step.
    """
    return {
        "PYTHONPATH": str(_ROOT),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
