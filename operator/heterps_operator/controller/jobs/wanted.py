"""The current spec of a job and of its pools."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from heterps_operator.api.admission import cluster_problems, pod_configuration
from heterps_operator.api.manifest import Manifest, read_job, read_objects
from heterps_operator.controller.capacity.pool_file import PoolFile
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.jobs.owned_objects import InvalidJobError, NotReadyError
from heterps_operator.controller.stores.objects import ObjectStore
from heterps_operator.documents import Json
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.reading.pools import namespace_limits

__all__ = ["Wanted", "profiles_in_use"]


@dataclass(frozen=True)
class Wanted:
    """A HeterPSJob with the pools that it names.

    Args:
        job: the HeterPSJob.
        pools: its DevicePools in order; None for missing ones.
        store: the store of all DevicePools.
        file: the file that they come from, if not from the API server.
    """

    job: Json
    pools: tuple[Json | None, ...]
    store: ObjectStore
    file: PoolFile | None = None

    @classmethod
    def read(cls, job: Json, store: ObjectStore, file: PoolFile | None = None) -> Wanted:
        """Find the job's pools in the store."""
        return cls(job, tuple(store.get("", str(pool["name"])) for pool in job["spec"]["pools"]), store, file)

    @property
    def complete(self) -> bool:
        """Whether all pools exist."""
        return None not in self.pools

    @property
    def versions(self) -> tuple[Any, ...]:
        """A value that changes with the spec of the job or of one of its pools."""
        # The uid, because a recreated pool has generation 1 again.
        pools = tuple(pool and (pool["metadata"].get("uid"), pool["metadata"].get("generation")) for pool in self.pools)
        return (self.job["metadata"].get("generation"), *pools)

    def manifest(self) -> Manifest:
        """Return the job and its pools, validated and with their defaults.

        Raises:
            InvalidJobError: the job is invalid, whatever its pools are.
            NotReadyError: a pool is missing or invalid, the namespace may not use one, or the job does not fit them.
        """
        try:
            return self._with_pools()
        except NotReadyError:
            self._check_job()  # what is wrong with the job itself comes first: its pools cannot mend it
            raise

    def _check_job(self) -> None:
        """Validate the job without its pools.

        Raises:
            InvalidJobError: it is invalid.
        """
        try:
            problems = cluster_problems(read_job({**self.job}))
        except ManifestError as error:
            raise InvalidJobError(str(error)) from error
        if problems:
            raise InvalidJobError("; ".join(map(str, problems)))

    def _with_pools(self) -> Manifest:
        missing = [
            str(entry["name"])
            for entry, pool in zip(self.job["spec"]["pools"], self.pools, strict=True)
            if pool is None
        ]
        if missing:
            raise NotReadyError("PoolNotFound", self._not_found(missing[0]))
        namespace = str(self.job["metadata"]["namespace"])
        for index, pool in enumerate(self.pools):
            allowed = None if pool is None else namespace_limits(pool)
            if allowed is not None and namespace not in allowed:
                name = self.job["spec"]["pools"][index]["name"]
                text = f"spec.pools[{index}].name: namespace {namespace} may not use the DevicePool {name}; use another"
                fix = f"pool, or let its administrator add the namespace to spec.namespaces of the DevicePool {name}"
                raise NotReadyError("PoolNotAllowed", f"{text} {fix}")
        try:
            manifest = read_objects({**self.job}, [dict(pool) for pool in self.pools if pool is not None])
        except ManifestError as error:
            raise NotReadyError("InvalidSpec", str(error)) from error
        if problems := cluster_problems(manifest.job):
            raise NotReadyError("InvalidSpec", "; ".join(map(str, problems)))
        return manifest

    def _not_found(self, name: str) -> str:
        """Say that a pool does not exist, and what to do."""
        known = sorted(str(pool["metadata"]["name"]) for pool in self.store.all())
        hint = difflib.get_close_matches(name, known, 1)
        have = ", ".join(known) or "none"
        text = f"spec.pools: there is no DevicePool {name}; create it, or correct the name (the cluster has {have})"
        if self.file is not None:
            if problem := self.file.refused.get(name):
                return f"spec.pools: DevicePool {name} in `pools` of the operator's chart is invalid: {problem}"
            fix = f"add it there, or correct the name (there is {have})"
            text = f"spec.pools: there is no DevicePool {name} in `pools` of the operator's chart; {fix}"
        return text + (f"; did you mean {hint[0]}?" if hint else "")


def profiles_in_use(cluster: OperatorContext, namespace: str) -> frozenset[str]:
    """Return the names of the profiles that the jobs of a namespace may read.

    A job whose present spec cannot be carried out has none: what it reads when it is corrected is not known.
    """
    found = set[str]()
    for job in cluster.jobs.all():
        if job["metadata"].get("namespace") == namespace:
            try:
                manifest = Wanted.read(job, cluster.pools, cluster.pool_file).manifest()
            except NotReadyError:
                continue
            cache = ConfigMapProfileCache(cluster.api, namespace, pod_configuration(manifest))
            found.update(cache.name(str(pool["metadata"]["name"])) for pool in manifest.pools)
    return frozenset(found)
