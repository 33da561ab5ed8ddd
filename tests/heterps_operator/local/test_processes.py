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

from heterps_operator.control.environment import process_variables
from heterps_operator.documents import read_json, write_json
from heterps_operator.local import processes
from heterps_operator.local.children import guarded
from heterps_operator.local.processes import ProcessSubstrate, end_leftovers, read_last_lines, start_identity
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.misbehaving import PROGRAM

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["spawned", "forked"])
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether workers fork."""
    if request.param == "forked":
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(processes, "RUNTIME_COMMAND", PROGRAM)
        monkeypatch.setattr(processes, "_RUNTIME_FUNCTION", "tests.heterps_operator.helpers.misbehaving:run")
        monkeypatch.setattr(processes, "_COMPUTING_MODULES", ())
    return bool(request.param == "forked")


@pytest.fixture
def substrate(forked: bool, tmp_path: Path) -> Iterator[ProcessSubstrate]:
    made = ProcessSubstrate(tmp_path, tmp_path / "run.json", "secret", runtime_command=PROGRAM)
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


def await_pid(substrate: ProcessSubstrate, name: str) -> int:
    """A forked process may do something before its server has said which pid it has."""
    while not (pid := view(substrate, name).pid):
        substrate.wait(0.01)
    return pid


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
    await_pid(substrate, "worker-0-0")
    substrate.stop("worker-0-0", 0.05)
    assert view(substrate, "worker-0-0").stopping
    assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGKILL


def test_a_process_that_obeys_is_not_killed(substrate: ProcessSubstrate) -> None:
    substrate.stop("coordinator", 60.0)
    assert await_end(substrate, "coordinator").exit_code == -signal.SIGTERM


def test_a_worker_that_obeys_is_not_killed(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "obedient"))
    await_file(substrate, tmp_path / "up")
    await_pid(substrate, "worker-0-0")
    substrate.stop("worker-0-0", 60.0)
    assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGTERM


def test_a_worker_looks_the_same_to_other_programs(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "obedient"))
    await_file(substrate, tmp_path / "up")
    pid = await_pid(substrate, "worker-0-0")
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert words == [*PROGRAM, "worker", "--pool", "obedient"]
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    recorded = (read_json(tmp_path / "processes.json") or {})["processes"]
    assert {"name": "worker-0-0", "pid": pid, "identity": start_identity(pid)} in recorded


@pytest.fixture
def importing(
    forked: bool, tmp_path: Path, substrate: ProcessSubstrate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """A worker whose server imports a module until this descriptor is closed, at the end of the test."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "slow_to_import.py").write_text(f"open({str(tmp_path / 'fifo')!r}).read()")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    monkeypatch.setitem(substrate._environment, "PYTHONPATH", path)
    monkeypatch.setattr(processes, "_COMPUTING_MODULES", ("slow_to_import",))
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "talker"))
    descriptor = os.open(tmp_path / "fifo", os.O_WRONLY)
    assert view(substrate, "worker-0-0").running
    assert view(substrate, "worker-0-0").pid == 0
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("forked", ["forked"], indirect=True)
def test_a_worker_is_told_to_end_while_its_server_imports(substrate: ProcessSubstrate, importing: int) -> None:
    substrate.stop("worker-0-0", 0.05)
    assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGKILL


@pytest.mark.parametrize("forked", ["forked"], indirect=True)
def test_an_import_that_hangs_holds_up_no_end(substrate: ProcessSubstrate, importing: int) -> None:
    substrate.kill_all()
    assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGKILL


@pytest.mark.parametrize("forked", ["forked"], indirect=True)
def test_workers_end_with_their_fork_server_and_new_ones_start(substrate: ProcessSubstrate, tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "up").unlink(missing_ok=True)
        substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "stubborn"))
        await_file(substrate, tmp_path / "up")
        pid = substrate._servers[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await_end(substrate, "worker-0-0").exit_code == -signal.SIGKILL


@pytest.mark.parametrize("forked", ["forked"], indirect=True)
def test_a_module_that_cannot_be_imported_does_not_end_the_server(
    substrate: ProcessSubstrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_COMPUTING_MODULES", ("no_such_module",))
    substrate.start(ProcessSpec("worker-0-0", Role.WORKER, "talker"))
    assert await_end(substrate, "worker-0-0").exit_code == 7, "it does not need that module"


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
    other = ProcessSubstrate(tmp_path / "b", tmp_path / "run.json", "t", runtime_command=PROGRAM)
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


FORKS = """
import importlib, os, sys, torch
def asked(*_):
    raise AssertionError("a driver was asked, and a forked process could not use it any more")
for name in ("_cuda_init", "_cuda_getDeviceCount", "_xpu_init", "_xpu_getDeviceCount"):
    if hasattr(torch._C, name):
        setattr(torch._C, name, asked)
for module in sys.argv[1:]:
    importlib.import_module(module)
for task in os.listdir("/proc/self/task"):
    print(open(f"/proc/self/task/{task}/comm").read().strip())
"""


def test_what_workers_need_leaves_their_server_fit_to_fork() -> None:
    """It has one thread, besides the allocator's, which survives a fork, and it has not asked a driver for cards."""
    variables = process_variables(ProcessSpec("worker-0-0", Role.WORKER))
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *processes._COMPUTING_MODULES],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len([thread for thread in done.stdout.split() if thread != "jemalloc_bg_thd"]) == 1, done.stdout
