"""Measured profiles in ConfigMaps, so that a second job with the same model, data and pools trains at once.

They have no owner, as they must outlive the job that measured them. Namespaces do not share profiles. When a profile is
stored, those of its namespace are deleted that were not used for long, and the least recently used of too many; never
one that a job of the namespace names.

A profile is named after its inputs, and the image's name is one of them. A name may come to stand for another image:
each profile has the digest of the image that was measured, and is outdated once a pod of the pool runs another one.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from heterps_operator.control.profiles import is_profile, profile_digest
from heterps_operator.documents import Json
from heterps_operator.formatting import format_time
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.building.code import code_digest
from heterps_operator.kubernetes.building.pods import image_of
from heterps_operator.kubernetes.names import (
    ANNOTATION_IMAGE,
    ANNOTATION_LAST_USED,
    LABEL_POOL,
    config_map_path,
    config_maps_path,
    label_selector,
    object_path,
    profile_config_name,
)
from heterps_operator.kubernetes.reading.pools import unit_resource
from heterps_operator.kubernetes.reading.statuses import unix_seconds
from heterps_runtime.clock import steady_time

__all__ = ["ConfigMapProfileCache", "outdated_profiles"]

_LOG = logging.getLogger("heterps.operator")
_FILE = "profile.json"
_OUTDATED = "outdated"  # in place of the image
_DAY_SECONDS = 86_400.0
_KEPT_SECONDS = 30 * _DAY_SECONDS  # since it was used last
_MOST_KEPT = 200  # of a namespace, besides those in use; each has a few kB
_LABELS = {
    "app.kubernetes.io/name": "heterps",
    "app.kubernetes.io/component": "profile",
    "app.kubernetes.io/part-of": "heterps",
    "app.kubernetes.io/managed-by": "heterps",
}


def outdated_profiles(items: Iterable[Json], now: float) -> tuple[Json, ...]:
    """Return the profiles to delete unless they are in use: unused for 30 days, or the oldest of more than 200.

    Args:
        items: ConfigMaps of profiles of one namespace.
        now: Unix seconds.
    """
    found = sorted(items, key=_last_used, reverse=True)
    return tuple(
        item for place, item in enumerate(found) if place >= _MOST_KEPT or now - _last_used(item) > _KEPT_SECONDS
    )


class ConfigMapProfileCache:
    """Profiles of earlier jobs of a namespace, keyed by their inputs.

    Args:
        api: API server of the cluster.
        namespace: namespace of the job.
        configuration: the run configuration: manifests with defaults.
        clock: Unix seconds.
        in_use: returns the names of the profiles that jobs of the namespace may read; None: nothing is deleted.
        image_of: returns the image (`reading.images.image_id`) with which a pool is measured now.

    Attributes:
        images: by pool, the images of the profiles that were loaded or stored, as far as they are known.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        configuration: Json,
        *,
        clock: Callable[[], float] = steady_time,
        in_use: Callable[[], Collection[str]] | None = None,
        image_of: Callable[[str], str] = lambda pool: "",
    ) -> None:
        self.images: dict[str, str] = {}
        self._image_of = image_of
        self._clock = clock
        self._in_use = in_use
        self._api = api
        self._namespace = namespace
        self._configuration = configuration

    def load(self, pools: Sequence[str], *, outdated: bool = False) -> dict[str, Any]:
        """Return the stored profiles of these pools; a damaged one is ignored, so that it is measured again.

        Args:
            pools: names of the pools.
            outdated: also those of an image that has been replaced: for a job that runs with a plan that they led to.

        Raises:
            ApiError: the API server does not answer.
        """
        found = {}
        for pool in pools:
            item = self._api.get(config_map_path(self._namespace, self.name(pool)))
            if item is not None and self._in_use is not None:
                self._note_use(item)
            try:
                document = json.loads(((item or {}).get("data") or {}).get(_FILE, "null"))
            except (AttributeError, TypeError, ValueError, RecursionError):
                continue
            image = str((((item or {}).get("metadata") or {}).get("annotations") or {}).get(ANNOTATION_IMAGE) or "")
            if is_profile(document) and (outdated or image != _OUTDATED):
                found[pool] = document
                self._note_image(pool, image)
        return found

    def save(self, pool: str, profile: Json) -> None:
        """Store a profile, and delete outdated ones.

        If the API server refuses (a quota, say), the next job measures again.

        Raises:
            ApiError: the API server does not answer.
        """
        image = self._image_of(pool)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.name(pool),
                "namespace": self._namespace,
                "labels": {**_LABELS, LABEL_POOL: pool},
                "annotations": {ANNOTATION_LAST_USED: format_time(self._clock()), ANNOTATION_IMAGE: image},
            },
            "data": {_FILE: json.dumps(profile, separators=(",", ":"))},
        }
        self._note_image(pool, image)
        try:
            self._api.apply(object_path(body), body)
        except ApiError as error:
            if error.temporary:
                raise
            about = {"kind": "DevicePool", "namespace": self._namespace, "name": pool}  # the job's namespace
            _LOG.warning("cannot store the profile of pool %s: %s", pool, error, extra={"k8s_ref": about})
        if self._in_use is not None:
            with contextlib.suppress(ApiError):  # until the next profile is stored
                self._collect(self._in_use)

    def outdate(self, pool: str) -> None:
        """Have the pool measured again by the next job: another image runs under the name of the measured one.

        Raises:
            ApiError: the API server does not answer, or refuses.
        """
        path = config_map_path(self._namespace, self.name(pool))
        try:
            self._api.patch(path, {"metadata": {"annotations": {ANNOTATION_IMAGE: _OUTDATED}}})
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        self.images.pop(pool, None)

    def _note_image(self, pool: str, image: str) -> None:
        if image and image != _OUTDATED:
            self.images[pool] = image

    def _note_use(self, item: Json) -> None:
        """Write once a day that a profile is used; not being able to does not matter to the job."""
        now, metadata = self._clock(), item["metadata"]
        if now - _last_used(item) > _DAY_SECONDS:
            annotations = {ANNOTATION_LAST_USED: format_time(now)}
            with contextlib.suppress(ApiError):
                path = config_map_path(self._namespace, str(metadata["name"]))
                self._api.patch(path, {"metadata": {"annotations": annotations}})

    def _collect(self, in_use: Callable[[], Collection[str]]) -> None:
        """Delete the outdated profiles of the namespace that no job uses."""
        items, _ = self._api.list(config_maps_path(self._namespace), label_selector(_LABELS))
        outdated = outdated_profiles(items, self._clock())
        used = in_use() if outdated else ()
        for metadata in (item["metadata"] for item in outdated):
            if metadata["name"] not in used:
                path = config_map_path(self._namespace, str(metadata["name"]))
                self._api.delete(path, uid=str(metadata["uid"]))

    def name(self, pool: str) -> str:
        """Return the name of a pool's profile."""
        manifest = next(p for p in self._configuration["pools"] if p["metadata"]["name"] == pool)
        spec = manifest["spec"]
        job = self._configuration["job"]
        # Image and code contain the model; resource and labels identify the nodes of a pool.
        parts = [image_of(job, manifest), unit_resource(spec), spec.get("nodeSelector") or {}]
        if (code := code_digest(job)) is not None:
            parts.append(code)
        source = json.dumps(parts, sort_keys=True)
        return profile_config_name(pool, profile_digest(self._configuration, pool, source))


def _last_used(item: Json) -> float:
    """Return when a profile was used last, Unix seconds; a damaged time counts as never."""
    metadata = item["metadata"]
    for text in ((metadata.get("annotations") or {}).get(ANNOTATION_LAST_USED), metadata.get("creationTimestamp")):
        with contextlib.suppress(ValueError):
            if (seconds := unix_seconds(text)) is not None:
                return seconds
    return 0.0
