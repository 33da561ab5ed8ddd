"""A training system under test, and processes that are started again when they end."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BATCH", "CHECKPOINT_STEPS", "PATIENCE_SECONDS", "Peer", "Program", "System", "reset_connections"]

PATIENCE_SECONDS = 120.0
BATCH = 4096  # over both workers
CHECKPOINT_STEPS = 50


class System(ABC):
    """A training job of two workers that faults hit, as a context."""

    name: str
    faults: tuple[str, ...]  # that apply to it

    @abstractmethod
    def __enter__(self) -> System: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    def samples(self) -> float | None:
        """Return the samples that the model has been trained on; None while that is unknown.

        A system that returns to a checkpoint counts on from there.
        """

    @abstractmethod
    def pid(self, role: str) -> int:
        """Return the process of a role: `worker` (one of two), `ps` or `coordinator`."""

    def kill(self, role: str) -> None:
        """End a process as a crash does."""
        os.kill(self.pid(role), signal.SIGKILL)

    def log(self) -> str:
        """Return the end of what the system's processes have printed."""
        return ""


@dataclass(frozen=True)
class Program:
    """A program of a peer, in a process group of its own.

    Attributes:
        command: arguments.
        environment: variables beside those of this process.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


class Peer(System):
    """A peer's processes on this machine. A process that ends is started again at once, as a cluster would.

    Its programs write the number of samples into the file `samples` of the folder, as 8 bytes.
    """

    def __init__(self, folder: Path, programs: Mapping[str, Program]) -> None:
        self.folder = folder
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "samples").write_bytes(struct.pack("q", 0))

    def __enter__(self) -> Peer:
        self._tend()
        return self

    def __exit__(self, *error: object) -> None:
        for name in self._processes:
            self.end_pod(name)

    def samples(self) -> float | None:
        self._tend()
        return float(struct.unpack("q", (self.folder / "samples").read_bytes())[0])

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def _tend(self) -> None:
        for name, program in self._programs.items():
            process = self._processes.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                self.end_pod(name)
            with (self.folder / "log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    program.command, env={**os.environ, **program.environment}, stdout=log, stderr=log, process_group=0
                )

    def end_pod(self, name: str) -> None:
        """End a program with all its descendants, as the end of a pod does."""
        process = self._processes[name]
        for pid in [process.pid, *_descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


def _descendants(pid: int) -> list[int]:
    """Return children, their children and so on; some of them may have sessions of their own."""
    try:
        children = [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [d for child in children for d in (child, *_descendants(child))]


def reset_connections(pid: int) -> bool:
    """Reset all TCP connections of a process; return False if this kernel or machine cannot."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        listed = subprocess.run(["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=False)
        ends = [line.split()[2:4] for line in listed.stdout.splitlines() if f"pid={pid}," in line]
        killed = [
            subprocess.run(["ss", "-K", "-tnH", "src", here, "dst", there], capture_output=True, text=True, check=False)
            for here, there in ends
        ]
        if killed and all(k.returncode == 0 and k.stdout.strip() for k in killed):
            return True
    return False
