"""Predicted against measured throughput, for plans of several models.

    python -m benchmarks.prediction [--model flights clicks wide bf16 streamed] [--rounds 3] [--output table|json]

`flights` is the example's job, `clicks` a deep network on synthetic clicks, `wide` one with one small layer; `bf16` is
`clicks` in that precision, and `streamed` is `wide` on data that are not cached. Each pool is profiled as by
`heterps profile`, the plan's throughput is predicted from the profiles, and the real processes run the plan. Profiles
and runs alternate over the rounds, and the error is the median of the rounds' ratios, since a shared machine changes
its speed within minutes.

There are two predictions: with a core for each unit, as on a cluster (`own cores`), and with this machine's cores,
which all processes share (`here`: heterps_planner/plans/machine.py). Plans are reported in groups: those that fit this
machine; those that need more cores (`busy cores`: cores that the plan would keep busy if available); and those in which
a stage with dense parameters precedes another, so that the stages wait for each other at every step.

The prediction for this machine is based on processor milliseconds per batch of all processes, which are reported too.
Other programs change them little, although they take cores away from the measured job.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._jobs import Job, Run
from benchmarks._processes import pool_document
from examples.paper.prepare import FIELDS, LABEL, NUMBERS, ClickLogSpec, write_click_log

from heterps_operator.api.manifest import load_manifest
from heterps_planner import Plan, evaluate
from heterps_planner.plans.machine import share_cores
from heterps_runtime.cores import usable_cores

ROOT = Path(__file__).resolve().parent.parent
CLICK_ROWS = 200_000

Case = tuple[list[dict[str, Any]], int]  # stages as in spec.scheduling.stages, parameter servers


@dataclass(frozen=True)
class Round:
    """Prediction and result of one plan in one round."""

    busy: float  # cores that the plan would keep busy
    own_cores: float  # samples per second, predicted with a core for each unit
    here: float  # the same on this machine
    measured: float  # samples per second
    processor: float  # processor seconds per sample, predicted
    measured_processor: float


@dataclass
class Result:
    """Results of one plan over all rounds."""

    name: str
    drains: bool
    rounds: list[Round]

    def median(self, name: str) -> float:
        """Return the median of a field over the rounds."""
        return statistics.median(float(getattr(entry, name)) for entry in self.rounds)

    def error(self, predicted: str, measured: str = "measured") -> float:
        """Return the relative error of a prediction: the median of the rounds."""
        return statistics.median(float(getattr(r, predicted)) / float(getattr(r, measured)) - 1 for r in self.rounds)


FLIGHTS: dict[str, Case] = {
    "cpu x1": ([{"pool": "cpu", "units": 1}], 1),
    "cpu x1, 2 servers": ([{"pool": "cpu", "units": 1}], 2),
    "accelerator x1": ([{"pool": "accelerator", "units": 1}], 1),
    "cpu tables+concat | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "concat", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
    "cpu tables | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "time_tables", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
    "accelerator tables+concat | cpu rest": (
        [{"pool": "accelerator", "lastLayer": "concat", "units": 1}, {"pool": "cpu", "units": 1}],
        1,
    ),
    "cpu x2": ([{"pool": "cpu", "units": 2}], 1),
    "cpu x3": ([{"pool": "cpu", "units": 3}], 1),
    "cpu x4": ([{"pool": "cpu", "units": 4}], 1),
    "accelerator x3": ([{"pool": "accelerator", "units": 3}], 1),
    "cpu tables x2 | accelerator rest x2, 2 servers": (
        [{"pool": "cpu", "lastLayer": "concat", "units": 2}, {"pool": "accelerator", "units": 2}],
        2,
    ),
    "cpu ..relu1 | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "relu1", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
}
# Plans in which a stage with dense parameters precedes another.
DRAINING = {"cpu ..relu1 | accelerator rest", "cpu ..fc.0 | accelerator rest", "cpu ..fc.1 | accelerator rest"}
CLICKS: dict[str, Case] = {
    "cpu x1": ([{"pool": "cpu", "units": 1}], 1),
    "cpu x1, 2 servers": ([{"pool": "cpu", "units": 1}], 2),
    "accelerator x1": ([{"pool": "accelerator", "units": 1}], 1),
    "cpu tables | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "concat", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
    "accelerator tables | cpu rest": (
        [{"pool": "accelerator", "lastLayer": "concat", "units": 1}, {"pool": "cpu", "units": 1}],
        1,
    ),
    "cpu x2": ([{"pool": "cpu", "units": 2}], 1),
    "cpu x3": ([{"pool": "cpu", "units": 3}], 1),
    "cpu x4": ([{"pool": "cpu", "units": 4}], 1),
    "accelerator x3": ([{"pool": "accelerator", "units": 3}], 1),
    "cpu tables x2 | accelerator rest x2, 2 servers": (
        [{"pool": "cpu", "lastLayer": "concat", "units": 2}, {"pool": "accelerator", "units": 2}],
        2,
    ),
    "cpu ..fc.0 | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "fc.0", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
    "cpu ..fc.1 | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "fc.1", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
}
_SOME = (
    "cpu x1",
    "cpu x1, 2 servers",
    "cpu x2",
    "cpu x3",
    "cpu tables | accelerator rest",
    "cpu tables x2 | accelerator rest x2, 2 servers",
)
SOME: dict[str, Case] = {name: CLICKS[name] for name in _SOME}


def flights(folder: Path) -> Job:
    """The example job."""
    home = ROOT / "examples" / "flights"
    return Job(load_manifest(home / "job.yaml"), folder, home)


def clicks(folder: Path, *, layers: int = 8, hidden: int = 400, precision: str = "fp32", access: str = "Cached") -> Job:
    """The benchmark model on synthetic clicks."""
    data = write_click_log(ROOT / ".cache" / "benchmarks" / "clicks", ClickLogSpec(seed=3), CLICK_ROWS)
    pools = [
        pool_document("cpu", "CPU", "cpu", 2, "0.04"),
        pool_document("accelerator", "GPU", "nvidia.com/gpu", 1, "2.42"),
    ]
    job = {
        "apiVersion": "heterps.io/v1alpha1",
        "kind": "HeterPSJob",
        "metadata": {"name": "clicks"},
        "spec": {
            "image": "ghcr.io/heterps/runtime:0.1.0",
            "model": {
                "entrypoint": "examples.paper.clicks.ctrdnn:build",
                "arguments": {"layers": layers, "hidden": hidden, "embedding_dim": 16},
                "loss": "torch.nn.functional:binary_cross_entropy_with_logits",
                "embeddingInit": {"distribution": "normal", "mean": "0", "std": "0.05"},
            },
            "data": {
                "format": "parquet",
                "train": str(data / "train"),
                "access": access,
                "windowRows": 65536,
                "label": LABEL,
                "dense": list(NUMBERS),
                "sparse": list(FIELDS),
            },
            "training": {
                "globalBatchSize": 4096,
                "microBatches": 4,
                "epochs": 1,
                "precision": precision,
                "consistency": "hybrid",
                "maxStaleness": 4,
                "optimizer": {
                    "dense": {"name": "adam", "learningRate": "0.001"},
                    "sparse": {"name": "rowwise-adagrad", "learningRate": "0.05"},
                },
                "seed": 17,
            },
            "pools": [{"name": "cpu"}, {"name": "accelerator"}],
        },
    }
    manifest = folder / "job.yaml"
    manifest.write_text("---\n".join(json.dumps(part) + "\n" for part in [*pools, job]))
    return Job(load_manifest(manifest), folder, ROOT)


@dataclass(frozen=True)
class Scenario:
    """A job, its plans, and how long they run."""

    make: Callable[[Path], Job]
    cases: Mapping[str, Case]
    run: Run


# The first steps compile, create rows and fill caches: the rate after them counts.
SCENARIOS = {
    "flights": Scenario(flights, FLIGHTS, Run(75, 300, 15.0)),
    "clicks": Scenario(clicks, CLICKS, Run(15, 100, 15.0)),
    "wide": Scenario(partial(clicks, layers=6, hidden=16), SOME, Run(75, 600, 15.0)),
    "bf16": Scenario(partial(clicks, precision="bf16"), SOME, Run(15, 100, 15.0)),
    "streamed": Scenario(partial(clicks, layers=6, hidden=16, access="Streamed"), SOME, Run(75, 600, 15.0)),
}


def compare(
    job: Job, cases: Mapping[str, Case], rounds: int, cores: float, run: Run
) -> tuple[list[Result], list[dict[str, Any]]]:
    """Profile and run, `rounds` times; return results by plan and each round's calibration."""
    results = {name: Result(name, name in DRAINING, []) for name in cases}
    calibrations = []
    for _ in range(rounds):
        profiles = job.profiles()
        calibrations.append({pool: p["calibration"] for pool, p in profiles.items()})
        problem = job.problem(profiles)
        for name, (stages, servers) in cases.items():
            plan = evaluate(problem, stages)
            assert isinstance(plan, Plan)
            here = share_cores(problem, plan, cores)
            assert here.machine is not None
            measured = job.run(plan, run, servers)
            rate, used = measured.samples_per_second, measured.processor_seconds
            busy = here.machine.busy_cores
            entry = Round(busy, plan.throughput, here.throughput, rate, busy / plan.throughput, used)
            results[name].rounds.append(entry)
            print(
                f"  {name}: predicted {plan.throughput:,.0f}, here {here.throughput:,.0f}, measured {rate:,.0f}; "
                f"processor {entry.processor * 1e6:.1f} us per sample, measured {used * 1e6:.1f}; "
                f"{used * rate:.2f} cores were used",
                flush=True,
            )
    return list(results.values()), calibrations


def print_table(model: str, results: list[Result], cores: float, batch: int) -> None:
    """Print the plans in groups, with the errors of each group."""
    groups = {
        f"fits {cores:g} cores": [r for r in results if r.median("busy") <= cores and not r.drains],
        f"wants more than {cores:g} cores": [r for r in results if r.median("busy") > cores and not r.drains],
        "drains at every step": [r for r in results if r.drains],
    }
    print(f"\n| {model} | group | busy cores | own cores/s | here/s | measured/s | error | error here | processor ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for group, members in groups.items():
        for r in members:
            rates = " | ".join(f"{r.median(name):,.0f}" for name in ("own_cores", "here", "measured"))
            errors = " | ".join(f"{r.error(name):+.1%}" for name in ("own_cores", "here"))
            processor = " / ".join(f"{r.median(n) * batch * 1e3:.0f}" for n in ("processor", "measured_processor"))
            name = r.name.replace("|", "/")
            print(f"| {name} | {group} | {r.median('busy'):.1f} | {rates} | {errors} | {processor} |")
    for group, members in groups.items():
        for what, name in (("with a core for each unit", "own_cores"), ("on this machine", "here")):
            errors_here = [abs(r.error(name)) for r in members]
            if errors_here:
                median, worst = statistics.median(errors_here), max(errors_here)
                print(f"{group}, predicted {what}: median error {median:.1%}, worst {worst:.1%}")
        errors_processor = [abs(r.error("processor", "measured_processor")) for r in members]
        if errors_processor:
            print(f"{group}, processor time: median error {statistics.median(errors_processor):.1%}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=tuple(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    cores = usable_cores()
    report: dict[str, Any] = {"cores": cores}
    everything: list[Result] = []
    for name in options.model:
        scenario = SCENARIOS[name]
        with tempfile.TemporaryDirectory(prefix="heterps-prediction-") as folder:
            print(f"{name}:", flush=True)
            job = scenario.make(Path(folder))
            results, calibrations = compare(job, scenario.cases, options.rounds, cores, scenario.run)
        everything += results
        plans = [asdict(r) | {"error": r.error("own_cores"), "errorHere": r.error("here")} for r in results]
        report[name] = {"plans": plans, "calibrations": calibrations}
        print_table(name, results, cores, job.spec.global_batch_size)
    errors = [abs(result.error("here")) for result in everything]
    print(f"\nall {len(errors)} plans: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    if options.output == "json":
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
