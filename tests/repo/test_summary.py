"""Running and summarising the tests: real pytest runs over tests with every kind of result."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.__main__ import PARTS, ROOT, Part, run
from tests.cluster.errors import ClusterError
from tests.summary import Results, closing_line

EVERY_ENDING = """
import pytest

@pytest.fixture
def broken():
    raise ValueError

@pytest.fixture
def breaks_later():
    yield
    raise ValueError

@pytest.mark.parametrize("number", range(3))
def test_passes(number): pass
def test_fails(): assert 1 == 2
def test_fails_and_breaks_later(breaks_later): assert 1 == 2
def test_has_no_fixture(broken): pass
def test_breaks_later(breaks_later): pass
@pytest.mark.parametrize("number", range(2))
def test_is_skipped(number): pytest.skip("no CUDA device")
@pytest.mark.skipif(True, reason="needs\\n  root")
def test_needs_root(): pass
"""
PASSES = "def test_passes(): pass"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('not here')"


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """No installed plugin is needed here, and each pytest run starts in half the time without them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")


def part(folder: Path, name: str, text: str) -> Part:
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return Part(name, (str(file), "-p", "no:cacheprovider", f"--rootdir={folder}", f"--confcutdir={folder}"))


def unprepared() -> None:
    raise ClusterError("go build ended with exit code 1 in kubernetes:\nmain.go:1: expected 'package'")


def last_line(shown: str) -> str:
    """Return the last line, without the time."""
    return re.sub(r" in \d+\.\d\ds", " in T", shown.splitlines()[-1])


def test_the_line_is_of_pytests_form() -> None:
    results = Results(4102, 1, 0, Counter({"needs root": 1, "no CUDA device": 2}))
    line = closing_line(results, 1226.313)
    assert (
        line
        == "=== 4102 passed, 1 failed, 3 skipped in 1226.31s (2 skipped: no CUDA device; 1 skipped: needs root) ==="
    )
    assert closing_line(Results(7), 1.0) == "=== 7 passed, 0 failed, 0 skipped in 1.00s ==="


def test_every_ending_is_counted_over_all_parts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parts = [part(tmp_path, "endings", EVERY_ENDING), part(tmp_path, "more", PASSES)]
    assert run(parts, tmp_path / "results") == 1
    line = capfd.readouterr().out.splitlines()[-1]
    assert (tmp_path / "results" / "summary.txt").read_text() == f"{line}\n"
    # A test that fails again in teardown counts twice, as in pytest.
    assert last_line(line) == (
        "=== 5 passed, 2 failed, 3 skipped, 3 errors in T (2 skipped: no CUDA device; 1 skipped: needs root) ==="
    )


@pytest.mark.parametrize(
    ("text", "counts"),
    [(PASSES, "1 passed, 0 failed, 0 skipped in T"), (SKIPS, "0 passed, 0 failed, 1 skipped in T (1")],
)
def test_a_run_in_which_nothing_fails_is_good(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, counts: str
) -> None:
    assert run([part(tmp_path, "good", text)], tmp_path / "results") == 0
    assert last_line(capfd.readouterr().out).startswith(f"=== {counts}")


def test_runs_that_break_off_are_told_and_the_next_part_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parts = [
        part(tmp_path, "dies", "import os\ndef test_dies(): os._exit(7)"),
        part(tmp_path, "killed", "import os\ndef test_is_killed(): os.kill(os.getpid(), 9)"),
        part(tmp_path, "empty", ""),
        part(tmp_path, "ends", f"{PASSES}\nimport pytest\ndef test_ends(): pytest.exit('enough', 4)"),
        part(tmp_path, "good", PASSES),
    ]
    assert run(parts, tmp_path / "results") == 1
    told = [
        "dies: pytest ended with exit code 7 and left no results",
        "killed: pytest was killed by SIGKILL and left no results",
        "empty: pytest ran no test",
        "ends: pytest ended with exit code 4",
    ]
    line = f"=== 2 passed, 0 failed, 0 skipped, 4 errors in T ({'; '.join(told)}) ==="
    assert last_line(capfd.readouterr().out) == line


def test_objects_of_imports_are_exempt_from_garbage_collection(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "import gc\ndef test_exempt(): assert gc.isenabled() and gc.get_freeze_count() > 1_000"
    here = part(tmp_path, "garbage", text)
    assert run([replace(here, arguments=(*here.arguments, "-p", "tests.garbage"))], tmp_path / "results") == 0
    assert run([here], tmp_path / "results") == 1
    assert all("tests.garbage" in one.arguments for one in PARTS)
    capfd.readouterr()


def test_results_of_an_earlier_run_do_not_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    assert run([part(tmp_path, "same", PASSES)], results) == 0
    assert run([part(tmp_path, "same", "import os\nos._exit(3)")], results) == 1
    assert "0 passed" in last_line(capfd.readouterr().out)


def test_a_failed_build_is_told_beside_the_tests_that_ran(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unbuilt = part(tmp_path, "cluster", PASSES)
    parts = [part(tmp_path, "local", PASSES), Part("cluster", unbuilt.arguments, unprepared)]
    assert run(parts, tmp_path / "results") == 1
    shown = capfd.readouterr()
    told = "cluster: not run, go build ended with exit code 1 in kubernetes"
    assert last_line(shown.out) == f"=== 1 passed, 0 failed, 0 skipped, 1 error in T ({told}) ==="
    assert "main.go:1: expected 'package'" in shown.err


def test_tests_can_fetch_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = """
import os, pathlib

def test_fetches_nothing():
    assert os.environ["GOPROXY"] == "off"
    assert not pathlib.Path(os.environ["GOMODCACHE"]).exists()
    assert os.environ["PIP_NO_INDEX"] == os.environ["UV_OFFLINE"] == "1"
"""
    assert run([part(tmp_path, "offline", text)], tmp_path / "results") == 0, capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_ends_its_tests_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    """SIGINT reaches all programs of a terminal, SIGTERM only the first one."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Not signal.pause(): it sleeps on if the signal comes just before it.
    waiting = f"""
import os, select, signal
def test_waits():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    open({str(fifo)!r}, "w").close()
    select.select([reading], [], [])
"""
    parts = [part(tmp_path, "long", waiting), part(tmp_path, "next", PASSES)]
    # A shell's background job ignores SIGINT, and so would its children.
    program = f"""
import signal, sys
from pathlib import Path
from tests.__main__ import Part, run
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(run([Part(*part) for part in {[(part.name, part.arguments) for part in parts]}], Path({str(tmp_path)!r})))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        with fifo.open() as reached:
            reached.read()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        shown, _ = process.communicate()
    assert process.returncode == 1
    assert f"ended by {number.name}" in last_line(shown)
    assert "1 passed" not in shown
