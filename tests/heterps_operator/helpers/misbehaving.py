"""A runtime whose coordinator listens, and whose other processes do what the name of their pool says.

`python misbehaving.py ROLE...` runs it, and `run` is what a fork server calls.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

PROGRAM = (sys.executable, __file__)


def run(arguments: list[str]) -> None:
    """Run a process with the arguments of `heterps-runtime`."""
    role = arguments[arguments.index("--pool") + 1] if "--pool" in arguments else arguments[0]
    if role == "coordinator":
        ready = arguments[arguments.index("--ready-file") + 1]
        with open(ready + ".tmp", "w") as file:
            json.dump({"http": "http://127.0.0.1:1", "pid": os.getpid()}, file)
        os.replace(ready + ".tmp", ready)
        signal.pause()
    elif role == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open("up", "w"):
            pass
        while True:
            signal.pause()
    elif role == "obedient":
        with open("up", "w"):
            pass
        signal.pause()
    elif role == "talker":
        for i in range(100):
            print("line", i)  # noqa: T201
        names = ("OMP_NUM_THREADS", "HETERPS_COORDINATOR", "HETERPS_TOKEN")
        print(*(os.environ[name] for name in names))  # noqa: T201
        sys.exit(7)
    elif role == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        with open("child.tmp", "w") as file:
            file.write(str(child.pid))
        os.replace("child.tmp", "child")
        signal.pause()


if __name__ == "__main__":
    run(sys.argv[1:])
