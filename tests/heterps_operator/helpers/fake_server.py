"""An in-memory API server: objects by path with resourceVersions, watches that can break, logs of pods."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi

Json = dict[str, Any]

CREATED = "2026-03-01T10:00:00Z"


def copied(value: Any) -> Any:
    """Copy a document, of which JSON is faster copied than by `copy.deepcopy`: that remembers each value."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else copy.deepcopy(value)


class FakeServer(KubernetesApi):
    """An API server for the client, as the client that would speak to it.

    Attributes:
        refusals: errors that the next calls raise, by verb, in order.
        requests: every call, as (verb, path).
        streams: future responses of `lines`, by path: lists of lines, or an error at their end.
        steps: functions called one per watch, before its lines, to simulate concurrent changes.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.refusals: dict[str, list[ApiError]] = {}
        self.requests: list[tuple[str, str]] = []
        self.streams: dict[str, list[list[str | ApiError]]] = {}
        self.queries: list[Mapping[str, str]] = []
        self._versions = itertools.count(100)

    def put(self, path: str, **fields: Any) -> Json:
        """Store an object, as another client would."""
        collection, _, name = path.rpartition("/")
        parts = collection.split("/")
        metadata = {"name": name, "uid": f"uid-{name}", "generation": 1, "creationTimestamp": CREATED}
        if "namespaces" in parts:
            metadata["namespace"] = parts[parts.index("namespaces") + 1]
        value = {**copied(fields), "metadata": {**metadata, **copied(fields.get("metadata") or {})}}
        return self._store(path, value)

    def get(self, path: str) -> Json | None:
        self._record("get", path)
        found = self.objects.get(path)
        return None if found is None else copied(found)

    def list(
        self, path: str, label_selector: str = "", field_selector: str = "", limit: int = 0
    ) -> tuple[list[Json], str]:
        self._record("list", path)
        head, _, plural = path.rpartition("/")
        found = [
            copied(value)
            for place, value in self.objects.items()
            if place.rpartition("/")[0] == path
            or (
                "/namespaces/" not in path
                and place.startswith(f"{head}/namespaces/")
                and place.split("/")[-2] == plural
            )
        ]
        wanted = [condition.split("=") for condition in label_selector.split(",") if condition]
        fields = [condition.split("=") for condition in field_selector.split(",") if condition]
        found = [
            value
            for value in found
            if all((value["metadata"].get("labels") or {}).get(key) == item for key, item in wanted)
            and all(_field(value, key) == item for key, item in fields)
        ]
        return found, str(next(self._versions))

    def apply(
        self,
        path: str,
        body: Mapping[str, Any],
        field_manager: str = "",
        force: bool = True,
        *,
        dry_run: bool = False,
    ) -> Json:
        self._record("apply", path)
        assert field_manager == "heterps-client" or body["kind"] == "ConfigMap"
        before = self.objects.get(path)
        after = _merge(before or {}, body)
        if before is None:
            created: Json = {"uid": f"uid-{body['metadata']['name']}", "generation": 1, "creationTimestamp": CREATED}
            after["metadata"] = {**created, **after["metadata"]}
        elif before.get("spec") != after.get("spec"):
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return after if dry_run else self._store(path, after)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        self._record("patch", path)
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        after = _merge(self.objects[path], body)
        if after.get("spec") != self.objects[path].get("spec"):
            after["metadata"]["generation"] += 1
        return self._store(path, after)

    def delete(self, path: str, grace_seconds: int | None = None, uid: str | None = None) -> None:
        self._record("delete", path)
        if uid is None or self.objects.get(path, {}).get("metadata", {}).get("uid") == uid:
            self.objects.pop(path, None)

    def lines(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[str]:
        self._record("watch" if "watch" in query else "log", path)
        self.queries.append(dict(query))
        for line in self.streams[path].pop(0):
            if isinstance(line, ApiError):
                raise line
            yield line

    def event(self, kind: str, path: str, **changes: Any) -> str:
        """Return a watch event with the object at that path, after changing it."""
        if changes:
            self._store(path, _merge(self.objects[path], changes))
        return json.dumps({"type": kind, "object": self.objects[path]})

    def _store(self, path: str, value: Json) -> Json:
        value["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[path] = value
        answer: Json = copied(value)
        return answer

    def _record(self, verb: str, path: str) -> None:
        self.requests.append((verb, path))
        if self.refusals.get(verb):
            raise self.refusals[verb].pop(0)


def for_cluster(job_file: Path) -> Path:
    """Return a job file for clusters: without paths relative to the file."""
    text = job_file.read_text().replace("train: data,", "train: /data/train,")
    job_file.write_text(text + "  checkpoint: {path: /data/checkpoints}\n")
    return job_file


def forbidden(verb: str, resource: str, namespace: str = "") -> ApiError:
    """Return a refusal with an API server's wording."""
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    text = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" in API group "heterps.io"{where}'
    return ApiError(403, "Forbidden", text)


def _field(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _merge(old: Any, new: Any) -> Any:
    """Apply a merge patch; for whole objects this is close enough to server-side apply."""
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return copied(new)
    merged = {key: value if key in new else copied(value) for key, value in old.items()}
    for key, item in new.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), item) if isinstance(item, Mapping) else copied(item)
    return merged
