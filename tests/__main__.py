"""`python -m tests PART...`: run parts of the tests one after the other, in spite of failures, and summarise them."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.cluster.errors import ClusterError
from tests.cluster.preparing import prepare_tests
from tests.cluster.requirements import install_packages, obstacles
from tests.summary import Results, closing_line, results_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "tests"


@dataclass(frozen=True)
class Part:
    """Tests in one run of pytest."""

    name: str
    arguments: tuple[str, ...]  # pytest arguments
    prepare: Callable[[], None] = lambda: None  # raises ClusterError


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def prepare_local() -> None:
    """Install what tests in namespaces need, where that is possible: elsewhere they explain why they are skipped."""
    try:
        install_packages(say, ("iptables", "iproute2", "util-linux"))
    except ClusterError as error:
        say(str(error))


def prepare_cluster() -> None:
    """Build what the tests need, where a cluster can run: elsewhere the tests explain why they are skipped."""
    if reasons := obstacles():
        say("\n".join(["No cluster can run on this machine:", *reasons]))
    else:
        prepare_tests(say)


# Files in parallel: tests of whole jobs spend most of their time waiting for processes and pods to start.
FILES = ("--dist", "loadfile", "--no-loadscope-reorder", "-p", "tests.ordering", "-p", "tests.garbage")
PARTS = (
    Part("local", ("-n", "4", *FILES), prepare_local),
    Part("cluster", ("-n", "2", *FILES, "tests/cluster"), prepare_cluster),
)


def run(parts: Sequence[Part], folder: Path) -> int:
    """Run parts, write the closing line to `summary.txt` in a folder and to stdout, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.txt"
    summary.unlink(missing_ok=True)
    started = time.monotonic()
    results = Results()
    for part in parts:
        ended_by, ran = _run_part(part, folder)
        results += ran
        if ended_by is not None:
            results += Results(problems=(f"ended by {ended_by.name}",))
            break
    line = closing_line(results, time.monotonic() - started)
    summary.write_text(f"{line}\n")
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return 0 if results.good else 1


def _run_part(part: Part, folder: Path) -> tuple[signal.Signals | None, Results]:
    """Run a part; return the signal that ended this run, if any, and the results."""
    try:
        part.prepare()
    except ClusterError as error:
        say(f"error: {error}")
        return None, Results(problems=(f"{part.name}: not run, {str(error).splitlines()[0].rstrip(':')}",))
    file = folder / f"{part.name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.recording", f"--results={file}", *part.arguments]
    # One thread each: several processes share the cores, and wait for each other's threads otherwise.
    ended_by, code = _call(command, {**os.environ, **_offline(folder), "OMP_NUM_THREADS": "1"})
    return ended_by, results_of(part.name, file, code)


def _offline(folder: Path) -> dict[str, str]:
    """Return an environment in which package clients neither fetch nor find packages on the machine.

    The build provides everything that tests need. A test that needs more fails everywhere, not only on new machines.
    """
    return {"GOPROXY": "off", "GOMODCACHE": str(folder / "no-modules"), "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}


def _call(command: Sequence[str], environment: dict[str, str]) -> tuple[signal.Signals | None, int]:
    """Run a program to its end, which a signal may request; return the signal, if any, and the exit code."""
    process = subprocess.Popen(command, env=environment)
    received: list[int] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(number)
        # Ctrl-C reaches every program of a terminal directly; a second signal would interrupt the cleanup.
        if number == signal.SIGTERM:
            process.terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (signal.Signals(received[0]) if received else None), code


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m tests", description="Run tests, and sum them up in one line.")
    parser.add_argument("part", nargs="+", choices=names)
    wanted = parser.parse_args().part
    return run([part for part in PARTS if part.name in wanted], FOLDER)


if __name__ == "__main__":
    sys.exit(main())
