"""`heterps-runtime profile --pool P`: measure the model's layers on this pool and report to the coordinator."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ENV_CONFIG, PATH_PROFILES, PROFILE_VERSION, DenseExchange
from heterps_runtime.errors import UserError
from heterps_runtime.processes.process import log
from heterps_runtime.profiler.rehearsal import Rehearsal, RehearsalError
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import Failed

__all__ = ["run_profiler"]

Say = Callable[[str], None]


def run_profiler(config: RunConfig, pool: str) -> None:
    """Measure a pool and report its profile to the job's coordinator.

    Raises:
        ValueError: model or data are wrong; the coordinator is told, as by a worker.
        TransientError: a process of the measurement failed.
    """
    credentials = Credentials.from_environment(encrypted=config.encrypted)
    link = ControlLink(credentials, f"profile-{pool}")

    def say(text: str) -> None:
        log(text)
        link.status = text

    try:
        if pool not in config.pools:
            raise UserError(f"--pool: no pool named {pool!r}; there are {sorted(config.pools)}")
        document = json.loads(Path(os.environ[ENV_CONFIG]).read_text())
        profile = _measure_precisions(config, document, pool, say, link)
        credentials.request("PUT", f"{PATH_PROFILES}/{quote(pool)}", profile)
        say(f"profile of pool {pool} delivered")
    except Exception as error:
        permanent = isinstance(error, ValueError)
        reason = error.reason if isinstance(error, RehearsalError) else type(error).__name__
        link.send(Failed(reason, str(error), permanent))
        raise
    finally:
        link.close()


def _measure(document: dict[str, Any], pool: str, say: Say, link: ControlLink) -> dict[str, Any]:
    """Measure a pool in the one variant of a run configuration."""
    with Rehearsal(document, pool) as rehearsal:
        # Importing torch takes seconds, during which the rehearsal's coordinator starts.
        from heterps_runtime.profiler.measure import measure_pool

        return measure_pool(RunConfig.from_json(document), pool, rehearsal, say, link)


def _measure_precisions(
    config: RunConfig, document: dict[str, Any], pool: str, say: Say, link: ControlLink
) -> dict[str, Any]:
    """Measure a pool in each precision that the job allows, one after the other."""
    if not config.allowed_precisions:
        return _measure_exchanges(config, document, pool, say, link)
    measured: dict[str, dict[str, Any]] = {}
    for precision in config.allowed_precisions:
        twin = _twin(config, pool, precision, measured)
        if twin is not None:
            say(f"pool {pool} computes {precision} as {twin}")
            measured[precision] = measured[twin]
            continue
        say(f"profiling pool {pool} in {precision}")
        profile = _measure_exchanges(config, _in_precision(document, precision), pool, say, link)
        measured[precision] = _with_memory_of(next(iter(measured.values()), profile), profile)
    return {"version": PROFILE_VERSION, "precisions": measured}


def _measure_exchanges(
    config: RunConfig, document: dict[str, Any], pool: str, say: Say, link: ControlLink
) -> dict[str, Any]:
    """Measure a pool with each exchange of dense gradients that the planner may choose there."""
    if config.dense_exchange is not None or config.pools[pool].device_type != "CPU":
        return _measure(document, pool, say, link)
    measured: dict[str, dict[str, Any]] = {}
    for exchange in DenseExchange:
        say(f"profiling pool {pool} with dense gradients by {exchange}")
        profile = _measure(_with_exchange(document, exchange), pool, say, link)
        measured[exchange] = _with_memory_of(next(iter(measured.values()), profile), profile)
    return {"version": PROFILE_VERSION, "denseExchanges": measured}


def _with_memory_of(first: dict[str, Any], profile: dict[str, Any]) -> dict[str, Any]:
    """The profile with the memory of the one that was measured first.

    What a worker takes before it computes can only be seen before this process has computed.
    """
    if "denseExchanges" in profile:
        parts = {name: _with_memory_of(first, part) for name, part in profile["denseExchanges"].items()}
        return profile | {"denseExchanges": parts}
    while "denseExchanges" in first:
        first = next(iter(first["denseExchanges"].values()))
    return profile | {"memory": first["memory"]}


def _twin(config: RunConfig, pool: str, precision: str, measured: Collection[str]) -> str | None:
    """A measured precision that the pool's device computes in the same way."""
    if not measured:
        return None
    from heterps_runtime.worker.model import arithmetic, choose_device

    device = choose_device(config.pools[pool], 0)
    return next((one for one in measured if arithmetic(one, device) == arithmetic(precision, device)), None)


def _in_precision(document: dict[str, Any], precision: str) -> dict[str, Any]:
    """The run configuration of a job that computes in this precision."""
    changed = copy.deepcopy(document)
    training = changed["job"]["spec"]["training"]
    training["precision"] = precision
    del training["allowedPrecisions"]
    return changed


def _with_exchange(document: dict[str, Any], exchange: DenseExchange) -> dict[str, Any]:
    """The run configuration of a job whose stages on CPU pools exchange dense gradients in this way."""
    changed = copy.deepcopy(document)
    changed["job"]["spec"]["training"]["denseExchange"] = exchange.value
    return changed
