"""Predicted against measured throughput, for plans of the flights model and of the click model.

    python -m benchmarks.prediction [--model flights|clicks|both] [--steps 80] [--rounds 2] [--output table|json]

Each pool is profiled as `heterps profile` does it, the cost model predicts each plan's throughput from the profiles,
and the plan is run by the real processes. Profiles and runs alternate over the rounds, and medians are compared, since
a shared machine changes its speed within minutes.

The cost model gives every unit a core of its own and lets stages overlap completely. So plans are reported in groups:
those that fit this machine; those whose processes need more cores than there are (`busy cores`: what the plan would
keep busy by its own prediction); and those in which a stage with dense parameters precedes another, so that the
pipeline drains at every step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._processes import Processes, pool_document, stage_document

from heterps_operator.job import JobSpec
from heterps_operator.manifest import load_manifest
from heterps_operator.profiles import build_problem
from heterps_planner import Plan, Problem, evaluate
from heterps_runtime.contract import PATH_PROFILES, PATH_STATUS, JobPhase
from heterps_runtime.data.synthetic import FIELDS, LABEL, NUMBERS, ClickLogSpec, write_click_log

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 300
CLICK_ROWS = 200_000

Case = tuple[list[dict[str, Any]], int]  # stages as in spec.scheduling.stages, parameter servers


@dataclass
class Result:
    """One plan: what was predicted and what came of it, per round, in samples per second."""

    name: str
    busy: float
    drains: bool
    predicted: list[float]
    measured: list[float]

    def error(self, predicted: list[float]) -> float:
        """Relative error of a median prediction."""
        return statistics.median(predicted) / statistics.median(self.measured) - 1


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
    "cpu ..relu1 | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "relu1", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
}
# Plans in which a stage with dense parameters precedes another.
DRAINING = {"cpu ..relu1 | accelerator rest", "cpu ..fc.0 | accelerator rest"}
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
    "cpu ..fc.0 | accelerator rest": (
        [{"pool": "cpu", "lastLayer": "fc.0", "units": 1}, {"pool": "accelerator", "units": 1}],
        1,
    ),
}


class Job:
    """A job whose processes this script starts itself, one plan at a time."""

    def __init__(self, folder: Path, manifest: Path, python_path: Path, steps: int) -> None:
        loaded = load_manifest(manifest)
        document = loaded.run_configuration(folder, [python_path])
        spec = document["job"]["spec"]
        spec["training"]["steps"] = steps
        spec["training"].pop("epochs", None)
        spec["data"].pop("evaluation", None)
        spec["checkpoint"] = {"everySteps": 10**6, "keep": 1}
        self._document = document
        self.folder = folder
        job = {**loaded.job, "spec": {**loaded.job["spec"], "objective": {}}}
        self.spec = JobSpec.from_manifests(job, loaded.pools)

    def profiles(self) -> dict[str, Any]:
        """Measure all pools, one after the other."""
        with self._processes() as processes:
            for pool in self.spec.pools:
                processes.start("profile", "--pool", pool.name).wait()
                processes.check()
            return dict(processes.request("GET", PATH_PROFILES))

    def _processes(self) -> Processes:
        """A coordinator that knows nothing of earlier runs."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        self._document["job"]["spec"]["checkpoint"]["path"] = str(folder / "checkpoints")
        return Processes(self._document, folder)

    def problem(self, profiles: Mapping[str, Any]) -> Problem:
        """The planning problem of some profiles, without a floor or limits."""
        problem = Problem.from_json(build_problem(self.spec, profiles))
        return replace(problem, pools=tuple(replace(pool, max_units=64) for pool in problem.pools))

    def run(self, plan: Plan, servers: int) -> float:
        """Train by a plan; returns samples per second."""
        stages: list[dict[str, Any]] = []
        for stage in plan.stages:
            first = stages[-1]["lastLayer"] + 1 if stages else 0
            stages.append(stage_document(len(stages), stage.pool, first, stage.last_layer, stage.units, stage.pods))
        with self._processes() as processes:
            processes.train(stages, servers, plan.stages[0].pool)
            deadline = time.monotonic() + PATIENCE_SECONDS
            seen: list[tuple[float, int]] = []
            while time.monotonic() < deadline:
                status = processes.request("GET", PATH_STATUS)
                # The first steps compile, create rows and fill caches: what counts is the rate after them.
                if status["phase"] == JobPhase.TRAINING and status["committedSteps"] > status["totalSteps"] // 4:
                    seen.append((time.monotonic(), status["samples"]))
                if status["phase"] in (*JobPhase.FINAL, JobPhase.EXPORTING, JobPhase.EVALUATING):
                    if status["phase"] == JobPhase.FAILED:
                        raise SystemExit(f"the run failed: {status['error']}")
                    (t0, n0), (t1, n1) = seen[0], seen[-1]
                    return (n1 - n0) / (t1 - t0)
                processes.check()
                time.sleep(0.02)
        raise SystemExit("the run does not end")


def flights(folder: Path, steps: int) -> Job:
    """The example job."""
    home = ROOT / "examples" / "flights"
    return Job(folder, home / "job.yaml", home, steps)


def clicks(folder: Path, steps: int) -> Job:
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
                "entrypoint": "heterps_runtime.models.ctrdnn:build",
                "arguments": {"layers": 8, "hidden": 400, "embedding_dim": 16},
                "loss": "torch.nn.functional:binary_cross_entropy_with_logits",
                "embeddingInit": {"distribution": "normal", "mean": "0", "std": "0.05"},
            },
            "data": {
                "format": "parquet",
                "train": str(data / "train"),
                "label": LABEL,
                "dense": list(NUMBERS),
                "sparse": list(FIELDS),
            },
            "training": {
                "globalBatchSize": 4096,
                "microBatches": 4,
                "steps": steps,
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
    return Job(folder, manifest, ROOT / "benchmarks", steps)


def compare(job: Job, cases: Mapping[str, Case], rounds: int) -> tuple[list[Result], list[dict[str, Any]]]:
    """Profile and run, `rounds` times; returns results by plan and each round's calibration."""
    results = {name: Result(name, 0.0, name in DRAINING, [], []) for name in cases}
    calibrations = []
    for _ in range(rounds):
        profiles = job.profiles()
        calibrations.append({pool: p["calibration"] for pool, p in profiles.items()})
        problem = job.problem(profiles)
        for name, (stages, servers) in cases.items():
            plan = evaluate(problem, stages)
            assert isinstance(plan, Plan)
            result = results[name]
            result.predicted.append(plan.throughput)
            # Each stage's share of the slowest stage's time, and about a tenth of a core per server.
            result.busy = sum(s.units * plan.throughput / s.throughput for s in plan.stages) + 0.1 * servers
            result.measured.append(job.run(plan, servers))
            print(
                f"  {name}: predicted {plan.throughput:,.0f}, measured {result.measured[-1]:,.0f}",
                flush=True,
            )
    return list(results.values()), calibrations


def print_table(model: str, results: list[Result], cores: int) -> None:
    """Print the plans in groups, with the errors of each group."""
    groups = {
        f"fits {cores} cores": [r for r in results if r.busy <= cores and not r.drains],
        f"needs more than {cores} cores": [r for r in results if r.busy > cores and not r.drains],
        "drains at every step": [r for r in results if r.drains],
    }
    print(f"\n| {model} | group | busy cores | predicted/s | measured/s | error |")
    print("|---|---|---|---|---|---|")
    for group, members in groups.items():
        for r in members:
            rates = [statistics.median(rates) for rates in (r.predicted, r.measured)]
            name = r.name.replace("|", "/")
            print(
                f"| {name} | {group} | {r.busy:.1f} | {rates[0]:,.0f} | {rates[1]:,.0f} | {r.error(r.predicted):+.1%} |"
            )
    for group, members in groups.items():
        errors = [abs(r.error(r.predicted)) for r in members]
        if errors:
            print(f"{group}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("flights", "clicks", "both"), default="both")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    models = {"flights": (flights, FLIGHTS), "clicks": (clicks, CLICKS)}
    cores = len(os.sched_getaffinity(0))
    report: dict[str, Any] = {"cores": cores}
    for name, (make, cases) in models.items():
        if options.model not in (name, "both"):
            continue
        with tempfile.TemporaryDirectory(prefix="heterps-prediction-") as folder:
            print(f"{name}:", flush=True)
            results, calibrations = compare(make(Path(folder), options.steps), cases, options.rounds)
        plans = [vars(r) | {"error": r.error(r.predicted), "fits": r.busy <= cores} for r in results]
        report[name] = {"plans": plans, "calibrations": calibrations}
        print_table(name, results, cores)
    if options.output == "json":
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
