"""`python -m tests.hostile --objects 10000`: healthy jobs beside hostile ones, in one operator without a cluster.

An operator's supervisor, with its threads, works on an in-memory API server. A few healthy jobs are woken regularly,
and the time from each wake to the end of the turn is measured: first alone, then while a seeded generator reports
malformed pods, jobs, pools and nodes as watches do, jobs of another namespace have damaged ConfigMaps, and their
coordinators answer with anything, or one byte at a time over a real connection.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps_operator.api.manifest import load_manifest
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.objects import Key
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.names import COORDINATOR_PORT
from heterps_operator.kubernetes.reading.readable import JOB, NODE, POD, POOL
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.loop.substrate import Coordinator
from heterps_operator.measure.metrics import OperatorMetrics
from heterps_operator.state.values import Action
from tests.heterps_operator.helpers.documents import running
from tests.heterps_operator.helpers.hostile_server import drips, hostile
from tests.heterps_operator.helpers.job_world import FLIGHTS, Server
from tests.heterps_operator.helpers.mutants import GOOD, MISSING, WRONG, changed, paths

Json = dict[str, Any]

HEALTHY, WAKES_PER_SECOND = 8, 20.0
OBJECTS_PER_SECOND = 250.0  # an API server seldom takes more writes of one client
_ANSWERS = 50  # of a hostile coordinator
SECONDS = 60.0  # limit of waiting for a turn
STATUS: Json = {"phase": "Profiling", "members": [], "stages": [], "committedSteps": 0, "events": []}
NOISE: tuple[Any, ...] = (*WRONG, float("nan"), 10**400, 1e308, [[]] * 100, {"a": {"b": [None, {"c": "\ud800"}]}})


# --- the generator ----------------------------------------------------------------------------------------------------


def malformed(good: Json, draw: random.Random) -> Any:
    """Return a copy of a document with one to four fields replaced or removed."""
    made: Any = copy.deepcopy(good)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = list(paths(made))
        path, value = draw.choice(places), draw.choice(NOISE)
        if path or (value is not MISSING and draw.random() < 0.05):
            made = changed(made, path, value)
    return made


def strangers(draw: random.Random) -> Iterator[tuple[str, Any, bool]]:
    """Yield malformed objects without end: kind, object, and whether it is deleted."""
    good = {kind: make() for kind, make in GOOD.items()}
    while True:
        kind = draw.choice((POD, POD, POD, JOB, NODE, POOL))
        item = malformed(good[kind], draw)
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and draw.random() < 0.9:
            metadata["name"] = f"stranger-{draw.randrange(5000)}"
            if kind in (POD, JOB):
                metadata["namespace"] = "evil"
                metadata["uid"] = metadata["name"]
        yield kind, item, draw.random() < 0.2


# --- the world --------------------------------------------------------------------------------------------------------


class Locked(Server):
    """An in-memory API server for several threads; events are only counted."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self.events = 0
        self.pool_of: Callable[[str], Json | None] = lambda name: None  # returns a DevicePool

    def get(self, path: str) -> Json | None:
        with self._lock:
            return super().get(path)

    def list(
        self, path: str, label_selector: str = "", field_selector: str = "", limit: int = 0
    ) -> tuple[list[Json], str]:
        return [], "1"

    def each(self, path: str, label_selector: str = "", limit: int = 0) -> Iterator[Json]:
        return iter(())

    def create(self, path: str, body: Mapping[str, Any], *, strict: bool = False) -> Json:
        json.dumps(body)  # as it is sent
        with self._lock:
            if path.endswith("/events"):
                self.events += 1
                return dict(body)
            return super().create(path, body, strict=strict)

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        json.dumps(body)
        with self._lock:
            return super().replace(path, body)

    def apply(self, path: str, body: Any, *arguments: Any, **options: Any) -> Json:
        json.dumps(body)
        with self._lock:
            if body["kind"] == "DevicePool":
                return {**(self.pool_of(body["metadata"]["name"]) or {}), **body}
            return super().apply(path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        self.events += 1
        return dict(body)

    def delete(self, path: str, *arguments: Any, **options: Any) -> None:
        with self._lock:
            super().delete(path)

    def _record(self, verb: str, path: str) -> None:
        pass


class Healthy:
    """A coordinator that waits for profiles."""

    def __init__(self, address: str) -> None:
        self.address = address

    def status(self) -> Json:
        return dict(STATUS)

    def profiles(self) -> Json:
        return {}

    def metrics(self, names: Iterable[str]) -> str:
        return ""

    def send(self, action: Action) -> None:
        pass


class Hostile(Healthy):
    """A coordinator that answers with anything that JSON may contain."""

    def __init__(self, address: str, draw: random.Random) -> None:
        super().__init__(address)
        flood = [{"time": time.time(), "type": "Warning", "reason": "Noise", "message": str(n)} for n in range(200)]
        profile = {"batchSize": 1, "samples": 1, "layers": [{"name": "x"}]}
        self._status = itertools.cycle([malformed({**STATUS, "events": flood}, draw) for _ in range(_ANSWERS)])
        self._profiles = itertools.cycle([malformed({"cpu": profile}, draw) for _ in range(_ANSWERS)])

    def status(self) -> Json:
        made = next(self._status)
        return made if isinstance(made, dict) else {}

    def profiles(self) -> Json:
        made = next(self._profiles)
        return made if isinstance(made, dict) else {}


class Dripping(Healthy):
    """A coordinator whose answer comes one byte at a time, from another address."""

    def __init__(self, address: str, drip: str) -> None:
        super().__init__(address)
        self._client = CoordinatorClient(drip, "token")

    def status(self) -> Json:
        return self._client.status()


class Turns(OperatorMetrics):
    """Measures the seconds from a wake to the end of the next turn."""

    def __init__(self) -> None:
        super().__init__("hostile")
        self._changed = threading.Condition()
        self._woken: dict[Key, float] = {}
        self.seconds: list[float] = []

    def wake(self, key: Key, wake: Callable[[Key], None]) -> None:
        with self._changed:
            self._woken.setdefault(key, time.perf_counter())
        wake(key)

    def on_turn(self, job: Key, seconds: float, error: Exception | None) -> None:
        super().on_turn(job, seconds, error)
        with self._changed:
            began = self._woken.pop(job, None)
            if began is not None:
                self.seconds.append(time.perf_counter() - began)
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until each job that was woken has had its turn."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._woken, SECONDS):
                raise RuntimeError(f"no turn within {SECONDS:g} s: {sorted(self._woken)}")


@dataclass
class Outcome:
    """Seconds from wakes to the ends of healthy jobs' turns, and what the flood was."""

    before: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    objects: int = 0
    events: int = 0
    megabytes: float = 0.0

    def __str__(self) -> str:
        def shown(seconds: list[float]) -> str:
            ordered = sorted(seconds)
            last = ordered[int(0.95 * (len(ordered) - 1))]
            return f"median {statistics.median(ordered) * 1e3:.1f} ms, 95 % within {last * 1e3:.1f} ms"

        factor = statistics.median(self.beside) / statistics.median(self.before)
        return (
            f"turns of healthy jobs, alone:  {shown(self.before)} ({len(self.before)} turns)\n"
            f"beside hostile neighbours:     {shown(self.beside)} ({len(self.beside)} turns, median x {factor:.2f})\n"
            f"objects {self.objects}, events written {self.events}, highest memory {self.megabytes:.0f} MB"
        )


class World:
    """A supervisor with healthy and hostile jobs.

    Args:
        folder: folder of planners.
        seed: of everything that is drawn.
        drippers: hostile jobs whose coordinator sends one byte at a time.
        stack: ends the drippers' servers.
    """

    def __init__(self, folder: Path, seed: int, drippers: int, stack: ExitStack) -> None:
        self._draw = random.Random(seed)
        self._drip = [stack.enter_context(hostile(drips(b"HTTP/1.1 200 OK\r\n", b"X"))) for _ in range(drippers)]
        self._hostile: dict[str, Callable[[str], Coordinator]] = {}
        self.server, self.turns = Locked(), Turns()
        self.cluster = OperatorContext(self.server, folder, metrics=self.turns, connect=self._connect)
        self.server.pool_of = lambda name: self.cluster.pools.get("", name)  # type: ignore[assignment,return-value]
        self.supervisor = Supervisor(self.cluster, jitter=self._draw.random)
        self._manifest = load_manifest(FLIGHTS)
        self._pods = 0
        self.healthy: list[Key] = []

    def _connect(self, address: str, token: str) -> Coordinator:
        return self._hostile.get(address, Healthy)(address)

    def add_job(self, namespace: str, name: str) -> Key:
        """Add a valid job, as its watch does."""
        job: Json = copy.deepcopy(self._manifest.job)
        job["metadata"] |= {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "generation": 1}
        job["spec"]["checkpoint"]["path"] = "/shared"
        job["spec"]["data"] |= {"train": "/data/train", "evaluation": "/data/test"}
        self.supervisor.reflector.job_seen(job)
        return namespace, name

    def start(self) -> None:
        """Start the operator and the healthy jobs, and run their coordinators."""
        self.supervisor.start()
        for pool in self._manifest.pools:
            spec = {**pool["spec"], "autoscaled": True, "maxUnits": 10_000}  # there are no nodes
            self.supervisor.reflector.pool_seen(
                {**pool, "metadata": {**pool["metadata"], "generation": 1}, "spec": spec}
            )
        self.supervisor.pools.refresh()
        self.healthy = [self.add_job("healthy", f"job-{number}") for number in range(HEALTHY)]
        self.run_pods(self.healthy)

    def add_hostile(self) -> None:
        """Add jobs with hostile coordinators and damaged ConfigMaps."""
        answering = [self.add_job("evil", f"lies-{number}") for number in range(8)]
        self.run_pods(answering, lambda address: Hostile(address, self._draw))
        for number, drip in enumerate(self._drip):
            key = self.add_job("evil", f"drips-{number}")

            def slow(address: str, drip: str = drip) -> Coordinator:
                return Dripping(address, drip)

            self.run_pods([key], slow)
        for number in range(8):
            name = f"damaged-{number}"
            reference = {"apiVersion": "heterps.io/v1alpha1", "kind": "HeterPSJob", "controller": True,
                         "uid": f"evil-{name}"}  # fmt: skip
            data = {key: json.dumps(self._draw.choice(NOISE[1:-4])) for key in ("status.json", "controller.json")}
            self.server.put(
                f"/apis/heterps.io/v1alpha1/namespaces/evil/heterpsjobstates/{name}",
                data=data,
                metadata={"ownerReferences": [reference]},
            )
            self.add_job("evil", name)

    def run_pods(self, keys: list[Key], client: Callable[[str], Coordinator] | None = None) -> None:
        """Wait until these jobs have coordinators' pods, and report them as running."""
        for key in keys:
            path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}-coordinator-1-1"
            for _ in range(100):
                self.turns.wake(key, self.supervisor.queue.wake)
                self.turns.wait()
                if (pod := self.server.get(path)) is not None:
                    break
            if pod is None:
                status = self.server.get(f"/apis/heterps.io/v1alpha1/namespaces/{key[0]}/heterpsjobs/{key[1]}/status")
                raise RuntimeError(f"{key} has no coordinator: {(status or {}).get('status', {}).get('message')}")
            self._pods += 1
            ip = f"10.0.{self._pods // 250}.{self._pods % 250}"
            if client is not None:
                self._hostile[f"http://{ip}:{COORDINATOR_PORT}"] = client
            ready = {"type": "Ready", "status": "True"}
            status = {"phase": "Running", "podIP": ip, "conditions": [ready], "containerStatuses": running(time.time())}
            self.supervisor.reflector.pod_seen({**pod, "status": status})

    def measure(self, rounds: int) -> list[float]:
        """Wake the healthy jobs in turn, and return how long each took to its turn's end."""
        self.turns.seconds = []
        for number in range(rounds):
            self.turns.wake(self.healthy[number % HEALTHY], self.supervisor.queue.wake)
            time.sleep(1 / WAKES_PER_SECOND)
        self.turns.wait()
        return self.turns.seconds

    def draw_flood(self, number: int) -> list[tuple[str, str, bool]]:
        """Return malformed objects, as text: drawing them takes longer than reading them."""
        drawn = itertools.islice(strangers(self._draw), number)
        return [(kind, json.dumps(item), gone) for kind, item, gone in drawn]

    def flood(self, objects: list[tuple[str, str, bool]], per_second: float) -> None:
        """Report malformed objects, as watches do."""
        reflector = self.supervisor.reflector
        seen = {POD: reflector.pod_seen, NODE: reflector.node_seen, POOL: reflector.pool_seen, JOB: reflector.job_seen}
        began = time.perf_counter()
        for count, (kind, text, gone) in enumerate(objects):
            seen[kind](json.loads(text), gone=gone)
            time.sleep(max(0.0, began + count / per_second - time.perf_counter()))


def run(objects: int, seed: int, *, drippers: int = 8, per_second: float = OBJECTS_PER_SECOND) -> Outcome:
    """Measure the turns of healthy jobs, alone and beside hostile neighbours.

    Args:
        objects: malformed objects.
        seed: of everything that is drawn.
        drippers: coordinators that send one byte at a time.
        per_second: objects per second, at most.
    """
    with ExitStack() as stack:
        world = World(Path(stack.enter_context(tempfile.TemporaryDirectory())), seed, drippers, stack)
        stack.callback(world.supervisor.stop)
        world.start()
        rounds = max(3 * HEALTHY, int(objects / per_second * WAKES_PER_SECOND))
        outcome = Outcome(objects=objects)
        outcome.before = world.measure(min(rounds, 400))
        drawn = world.draw_flood(objects)
        world.add_hostile()
        flood = threading.Thread(target=world.flood, args=(drawn, per_second))
        flood.start()
        outcome.beside = world.measure(rounds)
        flood.join()
        trouble = world.supervisor.trouble()
        if trouble is not None:
            raise RuntimeError(trouble)
        outcome.events = world.server.events
    outcome.megabytes = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    return outcome


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--objects", type=int, default=10_000, help="malformed objects (default: 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: 1)")
    parser.add_argument(
        "--drippers", type=int, default=8, help="coordinators that send one byte at a time (default: 8)"
    )
    options = parser.parse_args()
    logging.getLogger("heterps.operator").setLevel(logging.CRITICAL)
    sys.stdout.write(f"{run(options.objects, options.seed, drippers=options.drippers)}\n")


if __name__ == "__main__":
    main()
