"""The process substrate, with misbehaving real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_operator.documents import write_json
from heterps_operator.local.children import guarded
from heterps_operator.local.processes import ProcessSubstrate, end_leftovers, read_last_lines, start_identity
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.contract import Role

# The coordinator listens; what another process does is the name of its pool.
PROGRAM = """
import os, signal, sys, time
role = sys.argv[sys.argv.index('--pool') + 1] if '--pool' in sys.argv else sys.argv[1]
if role == 'coordinator':
    ready = sys.argv[sys.argv.index('--ready-file') + 1]
    if '--mute' not in sys.argv:
        import json
        open(ready + '.tmp', 'w').write(json.dumps({'http': 'http://127.0.0.1:1', 'pid': os.getpid()}))
        os.replace(ready + '.tmp', ready)
    print('listening', flush=True)
    signal.pause()
elif role == 'stubborn':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('up', 'w').close()
    while True: signal.pause()
elif role == 'talker':
    for i in range(100): print('line', i)
    print(os.environ['OMP_NUM_THREADS'], os.environ['HETERPS_COORDINATOR'], os.environ['HETERPS_TOKEN'])
    sys.exit(7)
elif role == 'parent':
    import subprocess
    child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])
    open('child.tmp', 'w').write(str(child.pid))
    os.replace('child.tmp', 'child')
    signal.pause()
"""


@pytest.fixture
def substrate(tmp_path: Path) -> Iterator[ProcessSubstrate]:
    command = (sys.executable, "-c", PROGRAM)
    made = ProcessSubstrate(tmp_path, tmp_path / "run.json", "secret", runtime_command=command)
    made.start(ProcessSpec("coordinator", Role.COORDINATOR))
    while made.coordinator_address() is None:
        made.wait(0.01)
    yield made
    made.close()


def view(substrate: ProcessSubstrate, name: str) -> ProcessView:
    return next(v for v in substrate.processes() if v.name == name)


def await_end(substrate: ProcessSubstrate, name: str) -> ProcessView:
    while view(substrate, name).running:
        substrate.wait(1.0)
    return view(substrate, name)


def await_file(substrate: ProcessSubstrate, path: Path) -> str:
    while not path.exists():
        substrate.wait(0.01)
    return path.read_text()


def await_pid_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


def test_a_process_ends_with_its_exit_code_and_last_lines(substrate: ProcessSubstrate) -> None:
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "talker", threads=3))
    ended = await_end(substrate, "worker-0-0")
    assert ended.exit_code == 7
    assert len(ended.last_lines) == 20
    assert ended.last_lines[-1] == "3 http://127.0.0.1:1 secret"
    assert ended.ended is not None
    assert ended.ended >= ended.started


def test_a_process_killed_by_a_signal_says_which(substrate: ProcessSubstrate) -> None:
    os.kill(view(substrate, "coordinator").pid, signal.SIGKILL)
    assert await_end(substrate, "coordinator").exit_code == -signal.SIGKILL
    assert substrate.coordinator_address() is None, "a dead coordinator has no address, though its file is there"


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "stubborn"))
    await_file(substrate, tmp_path / "up")
    substrate.stop("worker-0-0", 0.05)
    assert view(substrate, "worker-0-0").stopping
    assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGKILL


def test_a_process_that_obeys_is_not_killed(substrate: ProcessSubstrate) -> None:
    substrate.stop("coordinator", 60.0)
    assert await_end(substrate, "coordinator").exit_code == -signal.SIGTERM


def test_what_a_process_started_ends_with_it(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "parent"))
    child = int(await_file(substrate, tmp_path / "child"))
    os.kill(view(substrate, "worker-0-0").pid, signal.SIGKILL)
    await_end(substrate, "worker-0-0")
    await_pid_gone(child)


def test_each_attempt_has_its_own_log(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    for _ in range(3):
        substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "talker"))
        await_end(substrate, "worker-0-0")
    names = sorted(path.name for path in (tmp_path / "logs").glob("worker*"))
    assert names == ["worker-0-0.1.log", "worker-0-0.2.log", "worker-0-0.log"]


def test_closing_ends_everything(tmp_path: Path, substrate: ProcessSubstrate) -> None:
    other = ProcessSubstrate(
        tmp_path / "b", tmp_path / "run.json", "t", runtime_command=(sys.executable, "-c", PROGRAM)
    )
    other.start(ProcessSpec("coordinator", Role.COORDINATOR))
    pid = other.processes()[0].pid
    other.close()
    assert start_identity(pid) is None


def test_children_die_with_a_controller_that_is_killed(tmp_path: Path) -> None:
    controller = (
        "import subprocess, sys, signal\n"
        "from heterps_operator.local.children import guarded\n"
        "program = [sys.executable, '-c', 'import signal; print(1, flush=True); signal.pause()']\n"
        "child = subprocess.Popen(guarded(program), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", controller], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    await_pid_gone(child)
    assert start_identity(child) is None


def test_leftovers_are_ended_only_if_they_are_the_same_process(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    ours, other = (subprocess.Popen(program, start_new_session=True) for _ in range(2))
    entries = [
        {"name": "worker-0-0", "pid": ours.pid, "identity": start_identity(ours.pid)},
        {"name": "worker-0-1", "pid": other.pid, "identity": "another boot/1"},
        {"name": "worker-0-2", "pid": 2**22 - 1, "identity": "gone/1"},
    ]
    write_json(tmp_path / "processes.json", {"processes": entries})
    try:
        assert end_leftovers(tmp_path / "processes.json") == ("worker-0-0",)
        assert ours.wait() == -signal.SIGTERM
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_guarded_program_keeps_its_arguments_and_exit_code() -> None:
    done = subprocess.run(
        guarded([sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(5)", "a b", "--", "c"]),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("['a b', '--', 'c']\n", 5)


def test_the_last_lines_of_a_log_skip_blank_ones_and_survive_odd_bytes(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n\n  \ntwo \xff\nthree\n")
    assert read_last_lines(tmp_path / "log", 2) == ("two \ufffd", "three")
    assert read_last_lines(tmp_path / "none", 2) == ()
