"""`python -m tests.pauses`: pause processes of real jobs for up to a minute.

Each job is run by `heterps run` and counts how often each sample is applied (counting.py). One of its processes is
stopped (SIGSTOP) for each of the times in turn, and continued (SIGCONT). Afterwards training must continue by itself:
the process takes part again, or another one has replaced it. A table shows which, and how long that took.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file

from tests.counting import assert_every_sample_counted, counting_columns, counting_spec
from tests.heterps_operator.helpers.real_job import BATCH, ROWS, RealJob

STEPS = 25 * ROWS // BATCH
PROCESSES = {"worker": "worker-0-1", "ps": "ps-0", "coordinator": "coordinator"}
CONSISTENCIES = ("sync", "hybrid", "async")
SECONDS = (1.0, 10.0, 28.0, 60.0)
# After the pause: the slowest recovery is a full restart from the checkpoint.
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Outcome:
    """Result of a pause."""

    role: str
    consistency: str
    seconds: float
    how: str
    back_after: float  # seconds from SIGCONT to the second step after it

    def row(self) -> str:
        return f"{self.role:12} {self.consistency:12} {self.seconds:7.0f} {self.back_after:14.1f}   {self.how}"


def pause(job: RealJob, command: subprocess.Popen[str], role: str, consistency: str, seconds: float) -> Outcome:
    """Stop a process of a job for some time, and wait until training continues."""
    name = PROCESSES[role]
    held = job.folder / "held"
    held.touch()  # steps are as slow again as at the start
    before = job.await_status(command, lambda s: bool(s["running"] and s["committedSteps"] > 0))
    pid = job.pid(name)
    assert pid is not None
    handle = os.pidfd_open(pid)  # the pid may belong to another process by the second signal
    try:
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        time.sleep(seconds)
        at_end = job.status() if role != "coordinator" else before
        signal.pidfd_send_signal(handle, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it was replaced before it continued
    finally:
        os.close(handle)
    held.touch()
    began = time.monotonic()
    step = int((at_end or before)["committedSteps"])
    after = job.status()
    while after is None or not after["running"] or after["committedSteps"] < step + 2:
        assert command.poll() is None, f"{role}, {consistency}, {seconds:g} s: the job has ended: {job.logs()}"
        assert time.monotonic() - began < PATIENCE_SECONDS, f"{role}, {consistency}, {seconds:g} s: {job.logs()}"
        time.sleep(0.1)
        after = job.status()
        if after is not None and after["resumedFromStep"] is not None:  # everything was restarted
            step = min(step, int(after["resumedFromStep"]))
    if job.pid(name) != pid:
        how = "another process took its place"
    elif after["generation"] != before["generation"]:
        how = "it joined again"
    else:
        how = "it went on as if nothing had happened"
    return Outcome(role, consistency, seconds, how, time.monotonic() - began)


def run(folder: Path, role: str, consistency: str, seconds: tuple[float, ...]) -> list[Outcome]:
    """Run one job, one process, one pause after the other; then count the samples."""
    held = folder / "held"
    fields = counting_spec("small_model", ROWS, BATCH, consistency, str(held))
    fields |= {"training.steps": STEPS, "scheduling.stages": [{"pool": "cpu", "lastLayer": "output", "units": 2}]}
    fields |= {"runPolicy.backoffLimit": len(seconds), "checkpoint.everySteps": 10}
    job = RealJob(
        folder,
        counting_columns(ROWS),
        max_units=3,
        **{path.replace(".", "__"): value for path, value in fields.items()},
    )
    held.touch()
    command = job.start("run", "job.yaml")
    try:
        outcomes = [pause(job, command, role, consistency, each) for each in seconds]
    except BaseException as error:
        command.send_signal(signal.SIGINT)
        raise AssertionError(f"{role}, {consistency}: {job.finish(command).text}\n{job.logs()}") from error
    held.unlink()
    result = job.finish(command)
    assert result.code == 0, result.text
    model = load_file(job.work / "model" / "model.safetensors")
    assert_every_sample_counted(model, BATCH, seed=0, steps=STEPS)
    return outcomes


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pauses", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=SECONDS, help="default: %(default)s")
    parser.add_argument("--roles", choices=PROCESSES, nargs="+", default=tuple(PROCESSES))
    parser.add_argument("--consistency", choices=CONSISTENCIES, nargs="+", default=CONSISTENCIES)
    parser.add_argument("--jobs", type=int, default=3, help="that run at the same time (default: %(default)s)")
    arguments = parser.parse_args()
    cases = [(role, consistency) for role in arguments.roles for consistency in arguments.consistency]
    say(f"{'stopped':12} {'consistency':12} {'for, s':>7} {'back after, s':>14}   what happened")
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run, Path(root) / f"{r}-{c}", r, c, tuple(arguments.seconds)) for r, c in cases]
        for each in runs:
            for outcome in each.result():
                say(outcome.row())
    say(f"each of the {ROWS} samples was applied {STEPS * BATCH // ROWS} times in each of {len(cases)} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
