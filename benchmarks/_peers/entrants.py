"""The entrants: which program each one runs, in which environment, and what cannot be made equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks._clicks import NETWORKS
from benchmarks._environments import PYTORCH_PEERS, TENSORFLOW, Environment
from benchmarks._tensorflow import tensorflow_variables

__all__ = ["CEILING", "ENTRANTS", "HETERPS", "SINGLE", "WORKERS", "Entrant", "Role"]

WORKERS = 2
HETERPS, CEILING = "HeterPS", "ceiling"  # ratios are to these


@dataclass(frozen=True)
class Role:
    """Processes of one kind."""

    name: str
    count: int = 1
    first_index: int = 0
    ends: bool = True  # by itself; others are ended with the entrant


@dataclass(frozen=True)
class Entrant:
    """A way of training.

    Attributes:
        name: in tables.
        program: module of `_peers.programs`.
        roles: its processes.
        settings: what the program is told beside the common settings.
        environment: None: the one that the bench runs in.
        variables: environment variables of its processes.
        models: of NETWORKS.
        learns: its quality is that of the network.
        differs: what is not the same as with the others, for a note below the table.
    """

    name: str
    program: str
    roles: tuple[Role, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = tuple(NETWORKS)
    learns: bool = True
    differs: str = ""


def _ddp(name: str, processes: int, *, sparse: bool, models: tuple[str, ...] = tuple(NETWORKS)) -> Entrant:
    settings = {"workers": processes, "threads": WORKERS // processes, "sparse": sparse, "device": "cpu"}
    # Without it threads spin while they wait for each other, which takes the cores from them if other programs run.
    variables = {"OMP_WAIT_POLICY": "PASSIVE"}
    return Entrant(name, "ddp", (Role("worker", processes),), settings, variables=variables, models=models)


def _heterps(name: str, consistency: str, differs: str = "") -> Entrant:
    settings = {"consistency": consistency, "wire": "full"}
    return Entrant(name, "heterps", (Role("job"),), settings, differs=differs)


SINGLE = _ddp("single", 1, sparse=True)

ENTRANTS = (
    _heterps(HETERPS, "hybrid", "rows are read up to 4 steps old, in practice a step or two"),
    _heterps("HeterPS-sync", "sync"),
    _ddp("DDP", WORKERS, sparse=True),
    _ddp("DDP-dense", WORKERS, sparse=False, models=("deep",)),
    Entrant("torchrec", "torchrec", (Role("worker", WORKERS),), environment=PYTORCH_PEERS),
    Entrant(
        "torch-rpc",
        "rpc",
        (Role("worker", WORKERS), Role("server", 1, WORKERS)),
        {"staleness": 1},
        differs="rows are read up to a step old",
    ),
    Entrant(
        "TensorFlow",
        "tensorflow",
        (Role("ps", ends=False), Role("worker", WORKERS, ends=False), Role("chief")),
        environment=TENSORFLOW,
        variables=tensorflow_variables(),
        differs="asynchronous: every gradient is that of half a batch, and is applied when it is there",
    ),
    SINGLE,
    Entrant(
        CEILING,
        "ceiling",
        (Role("worker", WORKERS),),
        learns=False,
        differs="no embeddings: the fully connected layers under DDP on random numbers",
    ),
)
