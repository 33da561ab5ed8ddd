"""Coordinators of hundreds of jobs in one process: `python -m tests.cluster.coordinators PORT`.

It answers on every address of this machine, as the coordinator of the pod with that address, with the protocol of
docs/runtime.md. No real job runs: members are ready at once, and a job trains forever, a hundred steps a second. It
does not know the jobs' tokens, so it accepts any.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from typing import Any

from aiohttp import web

from heterps_runtime import contract

Json = dict[str, Any]

GLOBAL_BATCH_SIZE = 4000
_STEPS_PER_SECOND = 100.0
_TOTAL_STEPS = 100_000_000
_PERIOD_SECONDS = 40.0  # period of the throughputs' variation


class Job:
    """One fake coordinator."""

    def __init__(self) -> None:
        self.phase = contract.JobPhase.PROFILING
        self.members: list[Json] = []
        self.stages: list[Json] = []
        self.began = time.time()

    def put_plan(self, plan: Json) -> None:
        """Make every member of a plan ready at once."""
        servers = [contract.ps_name(index) for index in range(plan["parameterServer"]["replicas"])]
        heard: Json = {"state": "ready", "silentSeconds": 0.5}  # or the operator would end them after a while
        self.members = [{"name": name, "role": "ps", **heard} for name in servers]
        self.stages = plan["stages"]
        for number, stage in enumerate(plan["stages"]):
            share = GLOBAL_BATCH_SIZE // stage["pods"]
            for index in range(stage["pods"]):
                self.members.append(
                    {"name": contract.worker_name(number, index), "role": "worker", **heard, "stage": number,
                     "index": index, "pool": stage["pool"], "batchSize": share, "stepSeconds": 0.01,
                     "computeSeconds": 0.008, "waitSeconds": 0.002,
                     "totals": {"memory": 5e8, "operations": 3e4, "round-trip": 0.004}}
                )  # fmt: skip
        self.phase, self.began = contract.JobPhase.TRAINING, time.time()

    def put_allocation(self, allocation: Json) -> None:
        """Apply new batch sizes."""
        for member in self.members:
            if member["role"] == "worker":
                member["batchSize"] = allocation["stages"][member["stage"]][member["index"]]

    @property
    def samples_per_second(self) -> float:
        """Return a value that varies, as in reality."""
        return 50_000.0 * (1 + 0.02 * math.sin(2 * math.pi * time.time() / _PERIOD_SECONDS))

    def status(self) -> Json:
        """Return the status document."""
        steps = int((time.time() - self.began) * _STEPS_PER_SECOND) if self.members else 0
        return {
            "phase": self.phase, "time": time.time(), "message": "", "generation": 1,
            "committedSteps": steps, "totalSteps": _TOTAL_STEPS,
            "epoch": 0, "epochs": 1, "globalBatchSize": GLOBAL_BATCH_SIZE, "samples": steps * GLOBAL_BATCH_SIZE,
            "resumedFromStep": None, "loss": 0.7 / (1 + 1e-4 * steps), "samplesPerSecond": self.samples_per_second,
            "expectedMembers": [member["name"] for member in self.members], "members": self.members,
            "stages": [{"name": stage["name"], "pool": stage["pool"], "samplesPerSecond": 61_000.0}
                       for stage in self.stages],
            "checkpoint": {"lastStep": steps // 10_000 * 10_000, "path": "/shared", "failures": 0, "lastError": ""},
            "evaluation": None, "model": None, "events": [], "error": None,
        }  # fmt: skip


JOBS: dict[str, Job] = {}


async def answer(request: web.Request) -> web.Response:
    """Answer as the coordinator of the requested address."""
    assert request.transport is not None
    job = JOBS.setdefault(request.transport.get_extra_info("sockname")[0], Job())
    match request.method, request.path:
        case "GET", contract.PATH_STATUS:
            return web.json_response(job.status())
        case "GET", contract.PATH_PROFILES:
            return web.json_response({})
        case "PUT", contract.PATH_PLAN:
            job.put_plan(await request.json())
        case "PUT", contract.PATH_ALLOCATION:
            job.put_allocation(await request.json())
        case "POST", contract.PATH_STOP:
            job.phase = contract.JobPhase.STOPPED
        case "POST", contract.PATH_FAIL:
            job.phase = contract.JobPhase.FAILED
    return web.json_response({})


async def serve(port: int) -> None:
    """Serve until the process ends."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
