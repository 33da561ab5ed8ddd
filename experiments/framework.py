"""Execution of experiments: cells, sequential or parallel, each stored as soon as it is finished.

An experiment is a list of cells and a pure function from a cell to rows. A cell is a small JSON object: the varied
settings, and the seed. Its rows are stored under a hash of the experiment, the cell and the code that computes it, so
that a stopped run resumes, and a change of the planner leads to new results.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Cell", "Experiment", "Progress", "Row", "Settings", "Store", "code_version", "run_experiment"]

ROOT = Path(__file__).resolve().parent.parent
Value = str | float | int | bool | None
Row = dict[str, Value]
Cell = dict[str, Any]  # JSON values only

_CODE = (".py", ".json", ".safetensors", ".yaml")  # files that results depend on
# One thread each: cells run in parallel, and a time must not depend on their number.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Settings:
    """The user's settings."""

    seeds: int = 5
    quick: bool = False  # a small part of everything: a check, not a measurement


@dataclass(frozen=True)
class Experiment:
    """One experiment."""

    name: str
    subject: str  # its subject, for `--list` and the progress line
    cells: Callable[[Settings], Sequence[Cell]]
    run: Callable[[Cell], list[Row]]
    seconds: Callable[[Cell], float] = lambda cell: 1.0  # estimated time of a cell; long ones run first
    # files, relative to the root and besides the planner, whose change invalidates results
    sources: tuple[str, ...] = ()
    alone: bool = False  # starts its own processes: one cell at a time, and nothing in parallel
    lacking: Callable[[Settings], str] = lambda settings: ""  # what this machine lacks for it; empty: nothing
    once: bool = False  # too long for a run of all experiments: runs only if it is named


class Store:
    """Rows of finished cells on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, experiment: Experiment, cell: Cell) -> Path:
        """Path of a cell's rows."""
        key = json.dumps([experiment.name, cell, code_version(experiment.sources)], sort_keys=True)
        return self._folder / experiment.name / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def load(self, experiment: Experiment, cell: Cell) -> list[Row] | None:
        """Return the rows of a cell, or None if there is no complete file."""
        try:
            rows = json.loads(self.path(experiment, cell).read_text())
        except (OSError, ValueError):
            return None
        return rows if isinstance(rows, list) else None

    def save(self, experiment: Experiment, cell: Cell, rows: list[Row]) -> None:
        """Store rows atomically."""
        path = self.path(experiment, cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(rows))
        partial.replace(path)


@functools.cache
def code_version(sources: tuple[str, ...]) -> str:
    """Hash of the planner, the clusters, their profiles, and further files or folders, at the first call."""
    common = (
        "operator/heterps_planner",
        "experiments/clusters.py",
        "experiments/devices.py",
        "experiments/profiles",
    )
    digest = hashlib.sha256()
    for name in (*common, *sources):
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix in _CODE:
                digest.update(f"{name}/{file.name}".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


class Progress:
    """Progress line with the state of a run and its remaining time."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._shown = -math.inf
        self._done = 0.0  # expected seconds of the cells computed in this run

    def start(self) -> None:
        """Start counting from here."""
        self._began, self._done, self._shown = self._clock(), 0.0, -math.inf

    def show(self, name: str, finished: int, total: int, expected_done: float, expected_left: float) -> None:
        """Show the state, at most twice a second on a terminal and twice a minute elsewhere."""
        now = self._clock()
        terminal = self._stream.isatty()
        if now - self._shown < (0.5 if terminal else 30) and finished < total:
            return
        self._shown = now
        self._done = expected_done
        left = ""
        if self._done > 0 and finished < total:
            left = f", about {_duration((now - self._began) / self._done * expected_left)} left"
        line = f"{name}: {finished} of {total} cells{left}"
        end = "\n" if not terminal or finished == total else ""
        self._stream.write((f"\r\x1b[2K{line}" if terminal else line) + end)
        self._stream.flush()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min"


def run_experiment(
    experiment: Experiment, settings: Settings, store: Store, *, jobs: int = 1, progress: Progress | None = None
) -> list[Row]:
    """Run the cells that are not in the store, and return the rows of all, in the order of the cells.

    Args:
        experiment: what to run.
        settings: seeds and size.
        store: store of finished cells.
        jobs: number of processes; 1: this process.
        progress: updated after every cell.

    Raises:
        KeyboardInterrupt: the user stopped it; finished cells are in the store.
    """
    cells = list(experiment.cells(settings))
    results: dict[int, list[Row]] = {}
    for i, cell in enumerate(cells):
        rows = store.load(experiment, cell)
        if rows is not None:
            results[i] = rows
    open_cells = sorted((i for i in range(len(cells)) if i not in results), key=lambda i: -experiment.seconds(cells[i]))
    total = sum(experiment.seconds(cells[i]) for i in open_cells)
    done = 0.0
    if progress is not None:
        progress.start()
        progress.show(experiment.name, len(results), len(cells), done, total)
    for i, rows in _compute(experiment, cells, open_cells, 1 if experiment.alone else jobs):
        store.save(experiment, cells[i], rows)
        results[i] = rows
        done += experiment.seconds(cells[i])
        if progress is not None:
            progress.show(experiment.name, len(results), len(cells), done, total - done)
    return [row for i in range(len(cells)) for row in results[i]]


def _compute(
    experiment: Experiment, cells: Sequence[Cell], order: Sequence[int], jobs: int
) -> Iterable[tuple[int, list[Row]]]:
    """Yield (index, rows) as cells finish."""
    if jobs == 1 or len(order) <= 1:
        for i in order:
            yield i, _run_cell(experiment.run, cells[i])
        return
    environment = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_ignore_interrupts)
        waiting: dict[Future[list[Row]], int] = {}
        try:
            waiting = {executor.submit(_run_cell, experiment.run, cells[i]): i for i in order}
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield waiting.pop(future), future.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            executor.shutdown()
    finally:
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the terminal sends to all processes, except in the one that can end cleanly."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_cell(run: Callable[[Cell], list[Row]], cell: Mapping[str, Any]) -> list[Row]:
    try:
        return run(dict(cell))
    except Exception as error:
        error.add_note(f"in cell {json.dumps(cell)}")
        raise
