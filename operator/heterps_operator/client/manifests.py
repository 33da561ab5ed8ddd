"""Job files and dictionaries as objects for an API server: validated as by `heterps run`, sent as written.

Defaults are left to the API server, so that fields that a user did not write have no owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_operator.api.admission import cluster_problems
from heterps_operator.api.manifest import check_objects, load_objects
from heterps_operator.documents import Json
from heterps_operator.errors import ManifestError

__all__ = ["Submission", "read_submission"]


@dataclass(frozen=True)
class Submission:
    """The objects of a submission."""

    job: dict[str, Any]
    pools: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str | None:
        """Namespace in the job's own metadata."""
        found = self.job["metadata"].get("namespace")
        return None if found is None else str(found)


def read_submission(source: str | Path | Json | Sequence[Json]) -> Submission:
    """Read and validate a job and its pools.

    Args:
        source: a job file, or a HeterPSJob as a dictionary; either alone or with its DevicePools.

    Raises:
        ManifestError: the source is invalid; the error holds every problem.
    """
    if isinstance(source, str | Path):
        objects = load_objects(source, pools_required=False)  # the cluster may have them
    else:
        objects = check_objects([source] if isinstance(source, Mapping) else list(source))
    [job] = [item for item in objects if item.kind == "HeterPSJob"]
    if problems := cluster_problems(job.value):
        raise ManifestError(problems)
    written = job.written
    # Submitting means running: without this, a cancelled job would stay suspended by the manager that set the field.
    written["spec"]["runPolicy"] = {"suspend": False} | (written["spec"].get("runPolicy") or {})
    return Submission(written, tuple(item.written for item in objects if item.kind == "DevicePool"))
