"""Job files and dictionaries as objects for an API server: validated as by `heterps run`, sent as written.

Defaults are left to the API server, so that fields that a user did not write have no owner.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_operator.api.admission import cluster_problems
from heterps_operator.api.manifest import load_manifest
from heterps_operator.api.schema import load_schemas
from heterps_operator.api.yaml_source import read_documents
from heterps_operator.documents import Json
from heterps_operator.errors import MISSING, FieldError, ManifestError
from heterps_runtime.contract import API_VERSION

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
        source: a job file; or a HeterPSJob as a dictionary, alone or with its DevicePools.

    Raises:
        ManifestError: the source is invalid; the error holds every problem.
    """
    if isinstance(source, str | Path):
        load_manifest(source)
        file = Path(source)
        documents, _ = read_documents(file.read_bytes().decode("utf-8-sig"), file.name)
        values: list[Any] = [document.value for document in documents]
    else:
        values = [source] if isinstance(source, Mapping) else list(source)
        _check(values)
    values = [{key: copy.deepcopy(item) for key, item in value.items() if key != "status"} for value in values]
    [job] = [value for value in values if value["kind"] == "HeterPSJob"]
    _check_for_cluster(job)
    # Submitting means running: without this, a cancelled job would stay suspended by the manager that set the field.
    job["spec"]["runPolicy"] = {"suspend": False} | (job["spec"].get("runPolicy") or {})
    return Submission(job, tuple(value for value in values if value["kind"] == "DevicePool"))


def _check(values: Sequence[Any]) -> None:
    """Validate dictionaries like the documents of a file."""
    schemas = load_schemas()
    problems: list[FieldError] = []
    for i, value in enumerate(values):
        kind = str(value.get("kind")) if isinstance(value, Mapping) else ""
        if kind not in schemas or value.get("apiVersion") != API_VERSION:
            fix = f"give objects with apiVersion {API_VERSION} and kind {' or '.join(sorted(schemas))}"
            problems.append(FieldError(f"objects[{i}]", MISSING, "is not a HeterPS object", fix))
            continue
        schema = schemas[kind]
        faults = schema.faults(schema.with_defaults({key: item for key, item in value.items() if key != "status"}))
        metadata = value.get("metadata")
        title = f"{kind} {metadata.get('name', '')}".strip() if isinstance(metadata, Mapping) else str(kind)
        problems += [fault.problem(title) for fault in faults]
    jobs = [value for value in values if isinstance(value, Mapping) and value.get("kind") == "HeterPSJob"]
    if len(jobs) != 1 and not problems:
        problems.append(FieldError("", MISSING, f"there are {len(jobs)} HeterPSJobs", "submit exactly one"))
    if problems:
        raise ManifestError(problems)


def _check_for_cluster(job: Json) -> None:
    """Check requirements of pods before anything is sent."""
    if problems := cluster_problems(load_schemas()["HeterPSJob"].with_defaults(job)):
        raise ManifestError(problems)
