"""`heterps-runtime profile --pool P`: measure the model's layers on this pool and report to the coordinator."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import ENV_CONFIG, PATH_PROFILES
from heterps_runtime.errors import UserError
from heterps_runtime.processes.process import log
from heterps_runtime.profiler.rehearsal import Rehearsal, RehearsalError
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import Failed

__all__ = ["run_profiler"]


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
        with Rehearsal(document, pool) as rehearsal:
            # Importing torch takes seconds, during which the rehearsal's coordinator starts.
            from heterps_runtime.profiler.measure import measure_pool

            profile = measure_pool(config, pool, rehearsal, say, link)
        credentials.request("PUT", f"{PATH_PROFILES}/{quote(pool)}", profile)
        say(f"profile of pool {pool} delivered")
    except Exception as error:
        permanent = isinstance(error, ValueError)
        reason = error.reason if isinstance(error, RehearsalError) else type(error).__name__
        link.send(Failed(reason, str(error), permanent))
        raise
    finally:
        link.close()
