"""TensorFlow's processes, in an environment of their own."""

from __future__ import annotations

from pathlib import Path

from benchmarks._environments import TENSORFLOW

__all__ = ["tensorflow_command", "tensorflow_variables"]

_ROOT = Path(__file__).resolve().parents[1]


def tensorflow_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module there; it may import other modules that need TensorFlow only.

    Raises:
        subprocess.CalledProcessError: TensorFlow cannot be installed.
    """
    return [str(TENSORFLOW.install()), "-m", module, *arguments]


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
