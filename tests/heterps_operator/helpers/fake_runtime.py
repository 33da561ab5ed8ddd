"""A fake of `python -m heterps_runtime`: the same command line and HTTP interface, no model.

The coordinator commits a step whenever all members are present; the JSON in $FAKE_SCENARIO defines failures:

    totalSteps: int           steps of the training (default 30)
    die: {NAME: {"how": "kill" | EXIT_CODE, "times": int, "atStep": int}}    members that exit by themselves
    error: {"reason", "message", "atStep"}    the coordinator fails the job
    ignoreStop: bool          the coordinator ignores requests to stop
    slowProfile: bool         profilers never deliver
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from argparse import ArgumentParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LAYERS = ("embedding", "concat", "mlp", "head")
SCENARIO = json.loads(os.environ.get("FAKE_SCENARIO", "{}"))
CONFIG = json.loads(Path(os.environ["HETERPS_CONFIG"]).read_text())
WORK = Path(CONFIG["workDirectory"])
TOKEN = os.environ["HETERPS_TOKEN"]
CHECKPOINT = WORK / "checkpoints" / "fake.json"
BATCH = CONFIG["job"]["spec"]["training"]["globalBatchSize"]
ROWS = 10_000
SPEEDS = {"fp64": 0.5, "fp32": 1.0, "bf16": 2.0}  # by precision
EXCHANGES = {"ParameterServer": 1.0, "AllReduce": 1.5}  # of cores, by exchange of dense gradients


def log(message: str) -> None:
    sys.stderr.write(message + "\n")


# --- coordinator ------------------------------------------------------------------------------------------------------


class Job:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.plan: dict[str, Any] | None = None
        self.phase = "Profiling"
        self.step = json.loads(CHECKPOINT.read_text())["step"] if CHECKPOINT.exists() else 0
        self.resumed = self.step or None
        self.kept = self.step
        self.total = SCENARIO.get("totalSteps", 30)
        self.members: dict[str, dict[str, Any]] = {}
        self.profiles: dict[str, Any] = {}
        self.error: dict[str, str] | None = None
        self.requests: list[str] = []
        self.lost: list[str] = []  # a name for each death that was told
        self.ended = threading.Event()

    def checkpoint(self) -> None:
        CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
        aside = CHECKPOINT.with_suffix(".tmp")
        aside.write_text(json.dumps({"step": self.step}))
        aside.replace(CHECKPOINT)
        self.kept = self.step

    def put_plan(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        for i in range(plan["parameterServer"]["replicas"]):
            self.members[f"ps-{i}"] = {"name": f"ps-{i}", "role": "ps", "state": "absent"}
        for s, stage in enumerate(plan["stages"]):
            share = BATCH // stage["pods"]
            for i in range(stage["pods"]):
                name = f"worker-{s}-{i}"
                self.members[name] = {
                    "name": name, "role": "worker", "state": "absent", "stage": s, "index": i, "pool": stage["pool"],
                    "batchSize": share, "stepSeconds": 0.01, "computeSeconds": 0.004 * (i + 1), "waitSeconds": 0.001,
                }  # fmt: skip
        self.phase = "Starting"

    def turn(self) -> None:
        with self.lock:
            if self.phase not in ("Starting", "Training"):
                return
            ready = all(m["state"] == "ready" for m in self.members.values())
            if self.phase == "Starting":
                self.phase = "Training" if ready else "Starting"
                return
            error = SCENARIO.get("error")
            if error is not None and self.step >= error["atStep"]:
                self.error, self.phase = {k: error[k] for k in ("reason", "message")}, "Failed"
            elif self.step >= self.total:
                self.checkpoint()
                self.phase = "Succeeded"
            elif ready and not self.awaits_a_death():
                self.step += 1
                if self.step % 10 == 0:
                    self.checkpoint()

    def awaits_a_death(self) -> bool:
        """Whether a member is to die at this step: steps take milliseconds, and it must die in one that remains."""
        return any(
            self.step >= die.get("atStep", 0) and self.lost.count(name) < die.get("times", 1)
            for name, die in SCENARIO.get("die", {}).items()
            if name in self.members
        )

    def status(self) -> dict[str, Any]:
        done = self.phase == "Succeeded"
        stages = self.plan["stages"] if self.plan else []
        return {
            "phase": self.phase, "time": time.time(), "message": "", "generation": 1,
            "committedSteps": self.step, "totalSteps": self.total,
            "epoch": 0, "epochs": 1, "globalBatchSize": BATCH, "samples": self.step * BATCH,
            "resumedFromStep": self.resumed, "loss": 0.7 / (1 + 0.01 * self.step),
            "samplesPerSecond": 50_000.0 if self.step else 0.0, "secondsTraining": self.step * 0.01, "numRows": ROWS,
            "expectedMembers": list(self.members), "members": list(self.members.values()),
            "stages": [{"name": s["name"], "pool": s["pool"], "samplesPerSecond": 61_000.0, "busyFraction": 0.8}
                       for s in stages],
            "checkpoint": {"lastStep": self.kept, "path": str(CHECKPOINT), "failures": 0, "lastError": ""},
            "evaluation": {"auc": 0.71, "logLoss": 0.49, "samples": 600} if done else None,
            "model": str(WORK / "model") if done else None, "events": [], "error": self.error,
            "requests": self.requests,
        }  # fmt: skip


def make_handler(job: Job) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            pass

        def answer(self, code: int, document: Any) -> None:
            text = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

        def handle_request(self) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer(401, {"error": "unauthorised"})
            body = self.body()
            with job.lock:
                if self.command != "GET" and not self.path.startswith("/fake/"):
                    job.requests.append(self.path)
                match self.command, self.path:
                    case "GET", "/v1/status":
                        return self.answer(200, job.status())
                    case "GET", "/v1/profiles":
                        return self.answer(200, job.profiles)
                    case "PUT", "/v1/plan":
                        job.put_plan(body)
                    case "PUT", "/v1/allocation":
                        for member in job.members.values():
                            if member["role"] == "worker":
                                member["batchSize"] = body["stages"][member["stage"]][member["index"]]
                    case "POST", "/v1/lost":
                        job.members[body["member"]]["state"] = "lost"
                        job.lost.append(body["member"])
                    case "POST", "/v1/checkpoint":
                        job.checkpoint()
                    case "POST", "/v1/stop":
                        if not SCENARIO.get("ignoreStop"):
                            job.checkpoint()
                            job.phase = "Stopped"
                    case "POST", "/v1/fail":
                        job.error, job.phase = body, "Failed"
                    case "POST", "/v1/shutdown":
                        job.ended.set()
                    case "POST", "/fake/join":
                        job.members[body["member"]]["state"] = "ready"
                    case "POST", "/fake/state":
                        ended = job.phase in ("Succeeded", "Stopped", "Failed")
                        return self.answer(200, {"step": job.step, "end": ended})
                    case "PUT", path if path.startswith("/v1/profiles/"):
                        job.profiles[path.rpartition("/")[2]] = body
                    case _:
                        return self.answer(404, {"error": "no such path"})
                self.answer(200, {})

        do_GET = do_PUT = do_POST = handle_request  # noqa: N815

    return Handler


def coordinator(host: str, port: int, ready_file: str) -> int:
    job = Job()
    die = SCENARIO.get("die", {}).get("coordinator")
    server = ThreadingHTTPServer((host, port), make_handler(job))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    aside = Path(ready_file + ".tmp")
    aside.write_text(json.dumps({"http": f"http://{host}:{server.server_port}", "pid": os.getpid()}))
    aside.replace(ready_file)
    while not job.ended.wait(0.005):
        job.turn()
        if die is not None and job.phase == "Training" and job.step >= die.get("atStep", 0):
            maybe_die("coordinator", die)
    server.shutdown()
    return 0


# --- members ----------------------------------------------------------------------------------------------------------


def call(method: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        os.environ["HETERPS_COORDINATOR"] + path,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.loads(response.read())


def maybe_die(name: str, die: dict[str, Any]) -> None:
    count = WORK / f"deaths-{name}"
    deaths = int(count.read_text()) if count.exists() else 0
    if deaths >= die.get("times", 1):
        return
    count.write_text(str(deaths + 1))
    log(f"{name}: about to end, as the scenario says")
    if die["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(die["how"]))


def member(name: str) -> int:
    die = SCENARIO.get("die", {}).get(name)
    call("POST", "/fake/join", {"member": name})
    log(f"{name}: joined")
    while True:
        try:
            state = call("POST", "/fake/state", {})
        except OSError:
            log(f"{name}: the coordinator is gone")
            return 1
        if state["end"]:
            return 0
        if die is not None and state["step"] >= die.get("atStep", 0):
            maybe_die(name, die)
        time.sleep(0.01)


def profile(pool: str) -> int:
    if SCENARIO.get("slowProfile"):
        threading.Event().wait()
    allowed = CONFIG["job"]["spec"]["training"].get("allowedPrecisions")
    document = with_exchanges(pool, 1.0)
    if allowed:
        document = {"version": 1, "precisions": {name: with_exchanges(pool, SPEEDS[name]) for name in allowed}}
    die = SCENARIO.get("die", {}).get(f"profile-{pool}")
    if die is not None:
        maybe_die(f"profile-{pool}", die)
    call("PUT", f"/v1/profiles/{pool}", document)
    return 0


def with_exchanges(pool: str, speed: float) -> dict[str, Any]:
    if pool != "cpu" or CONFIG["job"]["spec"]["training"].get("denseExchange") != "Auto":
        return measured(pool, speed)
    return {"version": 1, "denseExchanges": {name: measured(pool, speed * more) for name, more in EXCHANGES.items()}}


def measured(pool: str, precision_speed: float) -> dict[str, Any]:
    speed = (1.0 if pool == "cpu" else 4.0) * precision_speed
    layers = [
        {
            "name": name, "kind": "Linear", "inputBytes": 64, "weightBytes": 1e4, "computeSeconds": 0.01 / speed,
            "computeFixedSeconds": 0.0005, "parallelFraction": 0.9, "transferSeconds": 0.001,
            "transferFixedSeconds": 0.0001, "transferParallelFraction": 0.5, "spread": 0.01,
            "processorSeconds": 0.012 / speed, "processorFixedSeconds": 0.0005, "transferProcessorSeconds": 0.0015,
            "transferProcessorFixedSeconds": 0.0002,
        }
        for name in LAYERS
    ]  # fmt: skip
    stage = {"stageSeconds": 0.001, "stageFixedSeconds": 0.0005, "stageParallelFraction": 0.1,
             "stageProcessorSeconds": 0.002}  # fmt: skip
    return {
        "version": 1, "batchSize": BATCH, "layers": layers, "stage": stage, "samples": ROWS, "measured": {"pool": pool},
        "remeasured": 0, "warnings": ["layer mlp varies by 7 %"] if pool == "cpu" else [],
    }  # fmt: skip


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--ready-file")
    parser.add_argument("--index", type=int)
    parser.add_argument("--stage", type=int)
    parser.add_argument("--pool")
    parser.add_argument("--precision")
    parser.add_argument("--dense-exchange")
    options = parser.parse_args()
    match options.role:
        case "coordinator":
            return coordinator(options.host, options.port, options.ready_file)
        case "ps":
            return member(f"ps-{options.index}")
        case "worker":
            return member(f"worker-{options.stage}-{options.index}")
        case _:
            return profile(options.pool)


if __name__ == "__main__":
    sys.exit(main())
