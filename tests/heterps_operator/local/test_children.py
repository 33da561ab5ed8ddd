"""Children: one that is forked behaves as one with an interpreter of its own, and neither outlives its parent."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from heterps_operator.local import children, fork_server
from heterps_operator.local.children import Child, ForkServer
from tests.heterps_operator.helpers.given_program import ROOT, Given, make_server

SECONDS = 60.0  # more than anything here takes
HANGS = """
import os, signal
with open({fifo!r}, "w") as fifo:
    print(os.getpid(), file=fifo, flush=True)
signal.pause()
"""
# Of the open pipe no end is left when the child and its own child have ended.
HANGS_WITH_A_CHILD = """
import signal, subprocess
with open({fifo!r}, "w") as fifo:
    subprocess.Popen(["sleep", "3600"], pass_fds=[fifo.fileno()])
    print("ready", file=fifo, flush=True)
    signal.pause()
"""
FACTS = """
import json, os, resource, signal, threading
files = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")]
files = [file for file in files if os.path.lexists(file)]  # without that of the list
signals = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGPIPE")}
blocked = [line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn"))]
print(json.dumps({
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "memory": resource.getrlimit(resource.RLIMIT_AS),
    "files": {os.path.basename(file): os.path.basename(os.readlink(file)) for file in files},
    "signals": signals, "blocked": blocked, "threads": threading.active_count(), "folder": os.getcwd(),
}))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = make_server()
    with closing(made):
        yield made


def start(text: str, server: ForkServer | None, folder: Path, memory_bytes: int | None = None) -> Child:
    return Given(text, server).start([], folder / "output", folder / "messages", memory_bytes)


def run(text: str, server: ForkServer | None, folder: Path, memory_bytes: int | None = None) -> tuple[int, str, str]:
    """Run a program; return its exit code and what it printed."""
    code = start(text, server, folder, memory_bytes).wait(SECONDS)
    assert code is not None
    return code, (folder / "output").read_text(), (folder / "messages").read_text()


def make_fifo(folder: Path) -> Path:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    return fifo


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SECONDS)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("text", "code", "last"),
    [
        ("print('done')", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('heterps: layers: must not be empty')", 1, "heterps: layers: must not be empty"),
        ("{}['a key']", 1, "KeyError: 'a key'"),
        ("bytearray(1 << 33)", 1, "MemoryError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_every_end_looks_the_same(text: str, code: int, last: str, server: ForkServer, tmp_path: Path) -> None:
    for kind in (None, server):
        found, output, messages = run(text, kind, tmp_path, 1 << 32)
        assert (found, output) == (code, "done\n" if "done" in text else "")
        assert (messages.splitlines() or [""])[-1] == last


def test_a_forked_child_has_what_an_interpreter_has_and_nothing_of_the_server(
    server: ForkServer, tmp_path: Path
) -> None:
    other = start(HANGS.format(fifo=str(make_fifo(tmp_path))), server, tmp_path)  # its connection stays outside
    facts = [json.loads(run(FACTS, kind, tmp_path, 1 << 32)[1]) for kind in (None, server)]
    other.kill()
    assert facts[0] == facts[1]
    assert facts[0]["leads"]
    assert facts[0]["memory"] == [1 << 32, 1 << 32]
    names = {"0": "null", "1": "output", "2": "messages"}
    assert {key: name.removesuffix(" (deleted)") for key, name in facts[0]["files"].items()} == names


def test_children_share_nothing(server: ForkServer, tmp_path: Path) -> None:
    run("import string, os; string.digits = 'x'; os.environ['HETERPS_LEFT'] = '1'", server, tmp_path)
    assert run("import string, os; print(string.digits, 'HETERPS_LEFT' in os.environ)", server, tmp_path)[1] == (
        "0123456789 False\n"
    )


def test_the_server_has_one_thread_and_reaps_its_children(server: ForkServer, tmp_path: Path) -> None:
    run("", server, tmp_path)
    tasks = Path(f"/proc/{server.pid}/task")
    assert [task.name for task in tasks.iterdir()] == [str(server.pid)]
    while (tasks / str(server.pid) / "children").read_text():
        pass


@pytest.mark.parametrize("forked", [False, True])
def test_a_killed_child_ends_with_its_own_children(forked: bool, server: ForkServer, tmp_path: Path) -> None:
    fifo = make_fifo(tmp_path)
    child = start(HANGS_WITH_A_CHILD.format(fifo=str(fifo)), server if forked else None, tmp_path)
    with fifo.open() as held:
        assert held.readline() == "ready\n"
        assert child.wait() is None
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert held.read() == "", "the last end is closed"
    child.kill()


def test_a_child_whose_server_dies_starts_again_once(tmp_path: Path) -> None:
    fifo, server = make_fifo(tmp_path), make_server()
    # Open for writing, too: no end of file comes between the two children.
    with closing(server), open(os.open(fifo, os.O_RDWR)) as held:
        child = start(HANGS.format(fifo=str(fifo)), server, tmp_path)
        servers, pids = list[int](), list[int]()
        for _ in range(2):
            pids.append(int(held.readline()))
            assert server.pid is not None
            servers.append(server.pid)
            os.kill(server.pid, signal.SIGKILL)
        assert child.wait(SECONDS) == -signal.SIGKILL
        assert all(map(has_ended, pids))
        assert servers[0] != servers[1]
        assert run("print('as before')", server, tmp_path)[:2] == (0, "as before\n")


def test_a_server_that_is_dying_is_not_asked_again(tmp_path: Path) -> None:
    """The kernel closes its sockets one after the other: that of a child may be closed, and that of requests open."""
    fifo, server = make_fifo(tmp_path), make_server()
    with closing(server), open(os.open(fifo, os.O_RDWR)) as held:
        child = start(HANGS.format(fifo=str(fifo)), server, tmp_path)
        first, dying = int(held.readline()), server.pid
        assert isinstance(child, children._Restarting)
        child._forked._connection.shutdown(socket.SHUT_RD)
        assert int(held.readline()) != first
        assert dying is not None
        assert server.pid != dying
        assert all(map(has_ended, (dying, first)))
        child.kill()


def test_no_child_outlives_an_operator_that_is_killed(tmp_path: Path) -> None:
    fifo = make_fifo(tmp_path)
    program = f"""
import sys, time
from pathlib import Path
from tests.heterps_operator.helpers.given_program import Given, make_server
server = make_server()
child = Given({HANGS.format(fifo=str(fifo))!r}, server).start([], *map(Path, sys.argv[1:3]), None)
print(server.pid, flush=True)
child.wait(3600)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "output"), str(tmp_path / "messages")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as operator, fifo.open() as held:
        assert operator.stdout is not None
        server, child = int(operator.stdout.readline()), int(held.readline())
        operator.kill()
        operator.wait()
        assert has_ended(server)
        assert has_ended(child)


def test_a_server_that_cannot_import_the_program_is_an_end_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(ForkServer("heterps_operator.no_such_module:main")) as server:
        assert run("", server, tmp_path) == (-signal.SIGKILL, "", "")
    assert "No module named 'heterps_operator.no_such_module'" in capfd.readouterr().err


def test_a_child_that_cannot_be_forked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    requests, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    answers, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with requests, asked, answers, (tmp_path / "messages").open("wb") as messages:
        with connection:
            files = [connection.fileno(), messages.fileno(), messages.fileno()]
            socket.send_fds(requests, [b'{"arguments": [], "memory_bytes": null}'], files)
        assert fork_server._Server(asked, print)._take()
        assert [answers.recv(16) for _ in range(2)] == [b"0", b"1"]
    text = "heterps: a process cannot be forked: [Errno 11] Resource temporarily unavailable\n"
    assert (tmp_path / "messages").read_text() == text
