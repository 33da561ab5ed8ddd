"""An entrant's process that behaves as its settings say, without training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
from benchmarks._peers.programs.protocol import Task, emit, started_as


def main(task: Task, role: str, index: int) -> None:
    behaviour: str = task.behaviour
    if role == "server":
        signal.pause()
    if behaviour == "hangs":
        emit("begin", time=time.monotonic())
        signal.pause()
    if behaviour == "has children":
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        with open(task.fifo, "w") as told:
            told.write(f"{os.getpid()} {child.pid}\n")
        signal.pause()
    if behaviour == "fails":
        emit("begin", time=time.monotonic())
        sys.stderr.write("ValueError: no such table\n")
        sys.exit(3)
    if behaviour == "says nothing":
        return
    sys.stdout.write("a library's warning\n")
    emit("begin", time=100.0 + index)
    emit("end", time=104.0 + index, samples=1000)
    if index == 0 and behaviour == "trains":
        task.save_logits(np.array([-1.0, 2.0, 0.5, -3.0], np.float32))


if __name__ == "__main__":
    main(*started_as())
