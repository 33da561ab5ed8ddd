"""Measured profiles in ConfigMaps, so that a second job with the same model, data and pools trains at once.

They have no owner, as they must outlive the job that measured them. Namespaces do not share profiles.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from heterps_operator.control.problem import is_profile, profile_digest
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.building.code import code_digest
from heterps_operator.kubernetes.building.pods import image_of
from heterps_operator.kubernetes.names import LABEL_POOL, config_map_path, object_path, profile_config_name

__all__ = ["ConfigMapProfileCache"]

_LOG = logging.getLogger("heterps.operator")
_FILE = "profile.json"


class ConfigMapProfileCache:
    """Profiles of earlier jobs of a namespace, keyed by their inputs.

    Args:
        api: API server of the cluster.
        namespace: namespace of the job.
        configuration: the run configuration: manifests with defaults.
    """

    def __init__(self, api: KubernetesApi, namespace: str, configuration: Json) -> None:
        self._api = api
        self._namespace = namespace
        self._configuration = configuration

    def load(self, pools: Sequence[str]) -> dict[str, Any]:
        """Return the stored profiles of these pools; a damaged one is ignored, so that it is measured again.

        Raises:
            ApiError: the API server does not answer.
        """
        found = {}
        for pool in pools:
            item = self._api.get(config_map_path(self._namespace, self._name(pool)))
            try:
                document = json.loads(((item or {}).get("data") or {}).get(_FILE, "null"))
            except (AttributeError, TypeError, ValueError, RecursionError):
                continue
            if is_profile(document):
                found[pool] = document
        return found

    def save(self, pool: str, profile: Json) -> None:
        """Store a profile; if the API server refuses (a quota, say), the next job measures again.

        Raises:
            ApiError: the API server does not answer.
        """
        labels = {
            "app.kubernetes.io/name": "heterps",
            "app.kubernetes.io/component": "profile",
            "app.kubernetes.io/part-of": "heterps",
            "app.kubernetes.io/managed-by": "heterps",
            LABEL_POOL: pool,
        }
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self._name(pool), "namespace": self._namespace, "labels": labels},
            "data": {_FILE: json.dumps(profile, separators=(",", ":"))},
        }
        try:
            self._api.apply(object_path(body), body)
        except ApiError as error:
            if error.temporary:
                raise
            about = {"kind": "DevicePool", "namespace": self._namespace, "name": pool}  # the job's namespace
            _LOG.warning("cannot store the profile of pool %s: %s", pool, error, extra={"k8s_ref": about})

    def _name(self, pool: str) -> str:
        manifest = next(p for p in self._configuration["pools"] if p["metadata"]["name"] == pool)
        spec = manifest["spec"]
        job = self._configuration["job"]
        # Image and code contain the model; resource and labels identify the nodes of a pool.
        parts = [image_of(job, manifest), spec.get("resourceName"), spec.get("nodeSelector") or {}]
        if (code := code_digest(job)) is not None:
            parts.append(code)
        source = json.dumps(parts, sort_keys=True)
        return profile_config_name(pool, profile_digest(self._configuration, pool, source))
