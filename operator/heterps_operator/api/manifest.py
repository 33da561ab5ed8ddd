"""Manifests from files: one HeterPSJob and its DevicePools, validated as a cluster validates them.

A job file holds several YAML documents, so that `kubectl apply -f` accepts it unchanged. `load_manifest` reports
everything that is wrong with a file at once, each problem with its line. Problems that only a cluster or the model
itself can reveal (an entrypoint that does not import, no feasible plan) appear later.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps_operator.addresses import is_uri
from heterps_operator.api.defaults import complete_job, complete_pool
from heterps_operator.api.schema import Fault, load_schemas
from heterps_operator.api.yaml_source import Document, read_documents
from heterps_operator.errors import MISSING, FieldError, ManifestError
from heterps_runtime.contract import API_GROUP, API_VERSION, RUN_CONFIG_VERSION, DenseExchange

__all__ = ["Manifest", "ValidObject", "check_objects", "load_manifest", "load_objects", "read_job", "read_objects"]

_LARGEST_FILE = 3 * 2**20  # bytes; the limit of an API server for one request


@dataclass(frozen=True)
class Manifest:
    """A job and its pools, valid and with all defaults."""

    job: dict[str, Any]  # the HeterPSJob, with absolute paths
    pools: list[dict[str, Any]]  # the DevicePools that the job names, in its order and with its own maxUnits
    folder: Path  # folder of the file, from which user code is imported

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.job["metadata"]["name"])

    def run_configuration(self, work_directory: Path | str, python_path: Sequence[Path | str] = ()) -> dict[str, Any]:
        """Return the run configuration, which all processes of a job read.

        Args:
            work_directory: default folder for everything that the job writes.
            python_path: import folders after the manifest's own.
        """
        paths = [str(self.folder), *(os.path.abspath(path) for path in python_path)]
        return {
            "version": RUN_CONFIG_VERSION,
            "job": copy.deepcopy(self.job),
            "pools": copy.deepcopy(self.pools),
            "workDirectory": os.path.abspath(work_directory),
            "pythonPath": list(dict.fromkeys(paths)),
        }


@dataclass(frozen=True)
class ValidObject:
    """A valid HeterPSJob or DevicePool.

    Attributes:
        kind: HeterPSJob or DevicePool.
        written: the object as its author wrote it, without a status.
        value: the same with the defaults of its schema.
    """

    kind: str
    written: dict[str, Any]
    value: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.value["metadata"]["name"])


def load_manifest(path: Path | str) -> Manifest:
    """Read and validate a job file.

    Raises:
        ManifestError: the file cannot be read, or something in it is wrong.
    """
    job, pools = _completed(load_objects(path))
    folder = Path(os.path.abspath(path)).parent
    return Manifest(_with_paths(job, folder), pools, folder)


def read_objects(job: dict[str, Any], pools: Sequence[dict[str, Any]]) -> Manifest:
    """Validate a job and its pools from an API server, whose CRDs may be older than these.

    Raises:
        ManifestError: something is wrong with them, alone or together.
    """
    documents = [Document({**item, "metadata": _identity(item)}) for item in (job, *pools)]
    return Manifest(*_completed(_validate(documents, [])), Path("/"))


def read_job(job: dict[str, Any]) -> dict[str, Any]:
    """Validate a job from an API server, whatever its pools are; return it with its defaults.

    Raises:
        ManifestError: something is wrong with it that no pool can change.
    """
    document = Document({**job, "metadata": _identity(job)})
    [valid] = _validate([document], [], pools_required=False)
    return complete_job(valid.value)


def load_objects(path: Path | str, *, pools_required: bool = True) -> tuple[ValidObject, ...]:
    """Read and validate the job and the pools of a job file.

    Args:
        path: the file.
        pools_required: whether the job's pools must be in it.

    Raises:
        ManifestError: the file cannot be read, or something in it is wrong.
    """
    file = Path(path)
    documents, problems = read_documents(_read(file), file.name)
    return _validate(documents, problems, file.name, pools_required=pools_required)


def check_objects(objects: Sequence[Any]) -> tuple[ValidObject, ...]:
    """Validate a job as a program gives it, with or without its pools.

    Raises:
        ManifestError: something is wrong with the objects, alone or together.
    """
    values = [dict(value) if isinstance(value, Mapping) else value for value in objects]
    documents = [Document(value, f"objects[{index}]") for index, value in enumerate(values)]
    return _validate(documents, [], pools_required=False)


@dataclass(frozen=True)
class _Object:
    """A document and what is wrong with it by itself."""

    document: Document
    kind: str  # "" for an unknown kind
    title: str  # kind and name
    value: Any  # with the schema's defaults
    problems: list[FieldError] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        return self.kind != "" and not self.problems


def _validate(
    documents: Sequence[Document], problems: list[FieldError], name: str = "", *, pools_required: bool = True
) -> tuple[ValidObject, ...]:
    """Validate documents, alone and together.

    Args:
        documents: the documents.
        problems: what is already known to be wrong with them.
        name: name of their file.
        pools_required: whether the job's pools must be among them.

    Raises:
        ManifestError: something is wrong; it holds every problem.
    """
    objects = [_check(document) for document in documents]
    for item in objects:
        problems += item.problems
    problems += _set_problems(objects, name, pools_required)
    if problems:
        raise ManifestError(sorted(problems, key=_line))
    return tuple(
        ValidObject(item.kind, copy.deepcopy(_without_status(item.document.value)), item.value) for item in objects
    )


def _completed(objects: Sequence[ValidObject]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The job and its pools, with every default."""
    [job] = [item.value for item in objects if item.kind == "HeterPSJob"]
    pools = {item.name: item.value for item in objects if item.kind == "DevicePool"}
    return complete_job(job), _pools_of(job, pools)


def _without_status(value: dict[str, Any]) -> dict[str, Any]:
    """An API server accepts no status from users, but `kubectl get -o yaml` prints one."""
    return {key: item for key, item in value.items() if key != "status"}


def _identity(item: dict[str, Any]) -> dict[str, Any]:
    """The part of an object's metadata that users write."""
    return {
        key: value for key, value in item["metadata"].items() if key in ("name", "namespace", "labels", "annotations")
    }


def _read(file: Path) -> str:
    def refuse(message: str, fix: str) -> ManifestError:
        return ManifestError([FieldError("", MISSING, message, fix, source=str(file))])

    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise refuse("the file does not exist", "check the path") from error
    except IsADirectoryError as error:
        raise refuse("is a folder", "name the job file in it") from error
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})", "check its permissions") from error
    if len(data) > _LARGEST_FILE:
        raise refuse(f"is larger than {_LARGEST_FILE} bytes", "name a job file, data does not belong in it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    return text


def _check(document: Document) -> _Object:
    """Validate one document by itself."""

    def refuse(path: tuple[str, ...], value: object, message: str, fix: str) -> _Object:
        fault = Fault(path, value, message, fix)
        return _Object(document, "", "", document.value, [fault.problem(source=document.source_of(path))])

    schemas = load_schemas()
    value = document.value
    if not isinstance(value, dict):
        return refuse((), MISSING, "the document is not a mapping of fields", "start it with apiVersion: and kind:")
    kind, version = value.get("kind", MISSING), value.get("apiVersion", MISSING)
    if not isinstance(kind, str) or kind not in schemas:
        return refuse(
            ("kind",),
            kind,
            f"must be one of {', '.join(sorted(schemas))}",
            "correct kind, or move the document to another file",
        )
    if version != API_VERSION:
        known = isinstance(version, str) and version.startswith(f"{API_GROUP}/")
        fix = "this version of HeterPS supports no other" if known else f"write apiVersion: {API_VERSION}"
        return refuse(("apiVersion",), version, f"must be {API_VERSION}", fix)
    schema = schemas[kind]
    value = schema.with_defaults(_without_status(value))
    metadata = value.get("metadata")
    title = f"{kind} {metadata['name']}" if isinstance(metadata, dict) and "name" in metadata else kind
    problems = [
        fault.problem(title, document.source_of(fault.path)) for fault in schema.faults(value, texts=document.texts)
    ]
    return _Object(document, kind, title, value, problems)


def _set_problems(objects: list[_Object], name: str, pools_required: bool) -> list[FieldError]:
    """Problems of the documents as a set."""
    problems: list[FieldError] = []
    what = "the file" if name else "the list of objects"
    jobs = [item for item in objects if item.kind == "HeterPSJob"]
    if not jobs and all(item.kind for item in objects):
        message = f"{what} has no HeterPSJob" if objects else f"{what} is empty"
        problems.append(FieldError("", MISSING, message, "add a document with kind: HeterPSJob", source=name))
    for extra in jobs[1:]:
        message = f"{what} already has a HeterPSJob, {_place(jobs[0].document)}"
        source = extra.document.source_of(())
        problems.append(FieldError("", MISSING, message, "put each job into its own file", extra.title, source))
    pools: dict[str, _Object] = {}
    for pool in (item for item in objects if item.kind == "DevicePool"):
        pool_name = _name(pool)
        if pool_name in pools:
            path = ("metadata", "name")
            message = f"a DevicePool of this name already exists, {_place(pools[pool_name].document)}"
            source = pool.document.source_of(path)
            problems.append(FieldError("metadata.name", pool_name, message, "rename or remove one", pool.title, source))
        elif pool_name is not None:
            pools[pool_name] = pool
    for job in jobs[:1]:
        faults = _pool_faults(job, pools, pools_required)
        problems += [fault.problem(job.title, job.document.source_of(fault.path)) for fault in faults]
    return problems


def _pool_faults(job: _Object, pools: dict[str, _Object], required: bool) -> list[Fault]:
    """Faults between a job and its pools. Parts that are faulty in themselves are skipped."""
    spec = job.value.get("spec")
    entries = spec.get("pools") if isinstance(spec, dict) else None
    faults: list[Fault] = []
    for i, entry in enumerate(entries if isinstance(entries, list) else []):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name not in pools and not required:
            return faults
        if name not in pools:
            found = f"the file has {', '.join(sorted(pools))}" if pools else "the file has none"
            fix = f"correct the name, or add a DevicePool document ({found})"
            faults.append(
                Fault(("spec", "pools", i, "name"), name, "must be the name of a DevicePool in this file", fix)
            )
        elif job.usable and pools[name].usable and "maxUnits" in entry:
            faults += _limit_faults(("spec", "pools", i, "maxUnits"), entry["maxUnits"], pools[name].value["spec"])
    if job.usable and not faults and all(pool.usable for pool in pools.values()):
        specs = {name: pool.value["spec"] for name, pool in pools.items()}
        faults += _stage_faults(job.value["spec"], specs)
        faults += _encryption_faults(job.value["spec"], specs)
    return faults


def _limit_faults(path: tuple[str | int, ...], units: int, pool: dict[str, Any]) -> list[Fault]:
    largest, smallest = pool["maxUnits"], pool["unitsPerPod"]
    if units > largest:
        message = f"must not be greater than the pool's own maxUnits, {largest}"
        return [Fault(path, units, message, "lower it, or raise the pool's")]
    if units < smallest:
        message = f"must hold one pod of the pool, unitsPerPod is {smallest}"
        return [Fault(path, units, message, f"raise it to {smallest} or more")]
    return []


def _stage_faults(spec: dict[str, Any], pools: dict[str, Any]) -> list[Fault]:
    """Stages given by hand must fit into their pools."""
    faults = []
    limits = {entry["name"]: entry.get("maxUnits", pools[entry["name"]]["maxUnits"]) for entry in spec["pools"]}
    used = dict.fromkeys(limits, 0)
    for i, stage in enumerate(spec["scheduling"]["stages"]):
        path = ("spec", "scheduling", "stages", i, "units")
        name, units = stage["pool"], stage.get("units")
        per_pod = pools[name]["unitsPerPod"]
        used[name] += per_pod if units is None else units
        if units is not None and units % per_pod:
            message = f"must be a multiple of the pool's unitsPerPod, {per_pod}"
            faults.append(Fault(path, units, message, f"use {units - units % per_pod + per_pod}, for example"))
        elif used[name] > limits[name]:
            message = f"the stages so far need {used[name]} units of {name}, the limit is {limits[name]}"
            faults.append(Fault(path, MISSING, message, "lower the units of a stage, or raise maxUnits of the pool"))
    return faults


def _encryption_faults(spec: dict[str, Any], pools: dict[str, Any]) -> list[Fault]:
    """Encryption needs pools without all-reduce: neither gloo nor NCCL encrypts."""
    if spec["encryption"] != "Required":
        return []
    faults = []
    for i, entry in enumerate(spec["pools"]):
        pool = pools[entry["name"]]
        exchange = DenseExchange.of_pool(pool["deviceType"])
        if pool["deviceType"] == "CPU":
            exchange = DenseExchange.of_job(spec["training"]["denseExchange"], encrypted=True) or exchange
        one_worker = entry.get("maxUnits", pool["maxUnits"]) < 2 * pool["unitsPerPod"]
        if exchange != DenseExchange.ALL_REDUCE or one_worker:
            continue
        message = f"must be Disabled, as all-reduce among workers of pool {entry['name']} is not encrypted"
        fix = f"set spec.pools[{i}].maxUnits to {pool['unitsPerPod']} (one worker), or "
        fix += (
            "set spec.training.denseExchange to ParameterServer"
            if pool["deviceType"] == "CPU"
            else "remove the pool from the job"
        )
        faults.append(Fault(("spec", "encryption"), spec["encryption"], message, fix))
    return faults


def _pools_of(job: dict[str, Any], pools: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pools that a job names, with the job's limits."""
    result = []
    for entry in job["spec"]["pools"]:
        pool = complete_pool(pools[entry["name"]])
        pool["spec"]["maxUnits"] = entry.get("maxUnits", pool["spec"]["maxUnits"])
        result.append(pool)
    return result


def _with_paths(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy of a job whose relative paths start at a folder."""
    result = copy.deepcopy(job)
    spec = result["spec"]
    for fields, key in (
        (spec["data"], "train"),
        (spec["data"], "evaluation"),
        (spec["data"]["cache"], "directory"),
        (spec["checkpoint"], "path"),
        (spec["model"].get("initFrom", {}), "path"),
        (spec["parameterServer"].get("spill", {}), "directory"),
    ):
        if key in fields and not is_uri(fields[key]):
            fields[key] = os.path.normpath(folder / fields[key])
    return result


def _name(item: _Object) -> str | None:
    metadata = item.value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def _place(document: Document) -> str:
    return f"on line {document.line}" if document.line else f"it is {document.source}"


def _line(problem: FieldError) -> int:
    """Line of a problem, for sorting in file order."""
    line = problem.source.rpartition(":")[2]
    return int(line) if line.isdigit() else 0
