"""HeterPS beside its peers on this machine's cores: DistributedDataParallel, torchrec, torch rpc and TensorFlow.

    make benchmark-peers [ARGUMENTS="--models deep wide fields --precision fp32 bf16 --rounds 5 --only NAME ..."]

All train the same network on the same batches in the same order, from the same initial values, with Adagrad for
everything, with two threads of computation. Where that is not so, a note below the table says what differs. The ceiling
is the network's fully connected layers alone.

Rounds are interleaved and ratios are taken within a round, since a shared machine changes its speed within minutes.
Start-up and the first steps do not count. A peer that cannot be installed, and one that fails twice in a round, are
left out, and the tables say so. Finished rounds are kept in .cache/benchmarks/peers.json, so a second call goes on,
unless the code or the steps have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks._clicks import CACHE, NETWORKS
from benchmarks._heterps import SKIP
from benchmarks._peers.data import write_task
from benchmarks._peers.entrants import ENTRANTS, WORKERS, Entrant
from benchmarks._peers.plot import draw
from benchmarks._peers.rounds import Cell, Results, run_rounds
from benchmarks._peers.running import Outcome, run_entrant
from benchmarks._peers.tables import agreement, table

ROOT = Path(__file__).resolve().parents[1]
BATCH = 4096  # per worker
#: What figures depend on.
_SOURCES = (
    "runtime/heterps_runtime",
    "examples/paper",
    "benchmarks/_peers/programs",
    "benchmarks/_peers/data.py",
    "benchmarks/_peers/entrants.py",
    "benchmarks/_peers/running.py",
    "benchmarks/_clicks.py",
    "benchmarks/_fields.py",
    "benchmarks/_heterps.py",
    "benchmarks/_processes.py",
    "benchmarks/_tensorflow_model.py",
    "benchmarks/peers.lock",
    "benchmarks/tensorflow.lock",
)


def say(line: str) -> None:
    """Show progress."""
    print(f"  {line}", file=sys.stderr, flush=True)


def code_version() -> str:
    """Return a digest of the code that figures depend on."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def install(entrants: Sequence[Entrant]) -> dict[str, str]:
    """Install the entrants' environments; return why some entrants cannot run, by name."""
    reasons = {}
    for entrant in entrants:
        if entrant.environment:
            try:
                entrant.environment.install()
            except (OSError, subprocess.CalledProcessError) as error:
                reasons[entrant.name] = f"{entrant.environment.contents} could not be installed: {error}"
                say(f"{entrant.name} is left out: {reasons[entrant.name]}")
    return reasons


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    names = [entrant.name for entrant in ENTRANTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=tuple(NETWORKS), nargs="+", default=list(NETWORKS), help="default: all")
    parser.add_argument("--precision", choices=("fp32", "bf16"), nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--only", choices=names, nargs="+", default=names, help=f"some of: {', '.join(names)}")
    parser.add_argument("--plot", type=Path, default=CACHE / "peers.svg", help="default: .cache/benchmarks/peers.svg")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.steps <= SKIP:
        parser.error(f"--steps must be more than {SKIP}, the steps that do not count, is {options.steps}")
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, is {options.rounds}")
    return options


def measure(
    cells: Sequence[Cell],
    entrants: Mapping[str, Sequence[Entrant]],
    rounds: int,
    results: Results,
    run: Callable[[Entrant, Cell], Outcome],
) -> None:
    """Complete the rounds; Ctrl-C and SIGTERM end all processes and this one.

    Raises:
        SystemExit: with code 130, interrupted.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_rounds(cells, entrants, rounds, results, run, say)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with the round that has just been left")
        raise SystemExit(130) from None


def main() -> None:
    """Run the bench and print it."""
    options = options_of()
    wanted = [entrant for entrant in ENTRANTS if entrant.name in options.only]
    missing = install(wanted)
    entrants = [entrant for entrant in wanted if entrant.name not in missing]
    by_model = {model: [e for e in entrants if model in e.models] for model in options.models}
    cells = [Cell(model, precision) for model in options.models for precision in options.precision if by_model[model]]
    try:
        settings = {model: write_task(model, options.steps, BATCH * WORKERS, WORKERS) for model in options.models}
    except ValueError as error:
        raise SystemExit(f"--{error}") from None

    def run(entrant: Entrant, cell: Cell) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="heterps-peers-") as folder:
            return run_entrant(entrant, settings[cell.model] | {"precision": cell.precision}, Path(folder))

    common = {"code": code_version(), "steps": options.steps, "skip": SKIP, "batch": BATCH, "workers": WORKERS}
    results = Results(CACHE / "peers.json", common)
    measure(cells, by_model, options.rounds, results, run)
    rounds = {cell: results.rounds(cell, [e.name for e in by_model[cell.model]])[: options.rounds] for cell in cells}
    if options.output == "json":
        print(json.dumps([{"cell": str(cell), "rounds": found} for cell, found in rounds.items()], indent=1))
        return
    for model in options.models:
        of_model = {cell: found for cell, found in rounds.items() if cell.model == model}
        for cell, found in of_model.items():
            print("", *table(cell, by_model[model], found), sep="\n")
        print("", *agreement(by_model[model], {c.precision: r for c, r in of_model.items()}), sep="\n")
    for name, reason in missing.items():
        print(f"\n{name} is left out: {reason}")
    draw(options.plot, by_model, rounds)
    print(f"\nThe picture is {options.plot}")


if __name__ == "__main__":
    main()
