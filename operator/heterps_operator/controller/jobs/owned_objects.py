"""What belongs to a job besides its pods: written only where the name is free, or the object the job's own."""

from __future__ import annotations

import contextlib
import json
import secrets
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from heterps_operator.api.manifest import Manifest, read_objects
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.objects import Key
from heterps_operator.documents import Json
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.building.pods import CONFIG_FILE
from heterps_operator.kubernetes.names import (
    config_map_path,
    is_owned,
    object_path,
    plan_config_name,
    pod_path,
    run_config_name,
    secret_path,
    secrets_path,
    token_secret_name,
)
from heterps_operator.kubernetes.reading.problems import REFUSALS, name_taken, object_refused
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status

__all__ = ["REFUSED_SECONDS", "NotReadyError", "OwnedObjects"]

REFUSED_SECONDS = 60.0  # a job that cannot be taken up is woken by what would change that; this is for safety
_LOOK_SECONDS = 10.0  # for what no watch reports
_LEFTOVER_SECONDS = 2.0  # for what is left of an earlier job of the same name
_ORPHAN = "orphan"  # finalizer of a deletion that is to leave the pods alone


class NotReadyError(Exception):
    """A job cannot be taken up as it is, or as it is wanted now.

    Attributes:
        reason: CamelCase, for programs.
        seconds: until it is worth another look.
    """

    def __init__(self, reason: str, message: str, seconds: float = REFUSED_SECONDS) -> None:
        super().__init__(message)
        self.reason = reason
        self.seconds = seconds

    @classmethod
    def of(cls, what: str, error: ApiError) -> NotReadyError:
        """The API server's refusal of an object; any other error is raised as it is."""
        if error.code not in REFUSALS:
            raise error
        problem = object_refused(what, error)
        return cls(problem.reason, problem.message, _LOOK_SECONDS)

    @classmethod
    def taken(cls, what: str, found: Json) -> NotReadyError:
        """A name that belongs to a foreign object, or to one of an earlier job."""
        problem = name_taken(what, found)
        return cls(problem.reason, problem.message, _LEFTOVER_SECONDS)


class OwnedObjects:
    """The objects of one job.

    Args:
        cluster: where.
        key: namespace and name of the job.
    """

    def __init__(self, cluster: OperatorContext, key: Key) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._namespace, self._name = key

    def apply(self, job: Json, *items: dict[str, Any]) -> None:
        """Have these objects as they are given.

        Raises:
            NotReadyError: a name is taken, or the API server refuses one.
        """
        for item in items:
            what = f"{item['kind']} {item['metadata']['name']}"
            found = self._api.get(object_path(item))
            self._check_owner(job, what, found)
            try:
                if found is not None and found.get("immutable") and found.get("data") != item.get("data"):
                    # Of a state that is not there any more.
                    self._api.delete(object_path(item), uid=str(found["metadata"]["uid"]))
                self._api.apply(object_path(item), item)
            except ApiError as error:
                raise NotReadyError.of(what, error) from error

    def token(self, job: Json) -> str:
        """The secret that the job's processes know each other by; drawn once.

        Raises:
            NotReadyError: the Secret's name is taken, the API server refuses it, or its token is damaged.
        """
        name = token_secret_name(self._name)
        found = self._api.get(secret_path(self._namespace, name))
        self._check_owner(job, f"Secret {name}", found)
        try:
            if found is None:
                body = objects.token_secret(job, secrets.token_urlsafe(32))
                found = self._api.create(secrets_path(self._namespace), body)
            return b64decode(found["data"]["token"], validate=True).decode()
        except ApiError as error:
            raise NotReadyError.of(f"Secret {name}", error) from error
        except (KeyError, TypeError, ValueError) as error:
            text = f"Secret {name} holds no token of this job; delete it, and the job generates a new one"
            raise NotReadyError("DamagedState", text, _LOOK_SECONDS) from error

    def keep_plan(
        self, job: Json, pools: Mapping[str, Json], status: Status, plan: JobPlan, revisions: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Write the plan where people find it, with the budgets that protect its pods, and clear old ones away.

        Args:
            job: with all defaults.
            pools: its DevicePools, by name.
            status: its revision and incarnation.
            plan: the plan.
            revisions: of all plans that were written.

        Returns:
            The revisions that are left.

        Raises:
            NotReadyError: see `apply`.
        """
        self.apply(
            job,
            objects.plan_config(job, status.plan_revision, plan.document),
            *objects.disruption_budgets(job, plan),
            *objects.pod_groups(job, plan, status.incarnation, pools),
        )
        old = objects.outdated_plans(revisions)
        for revision in old:
            with contextlib.suppress(ApiError):
                self._api.delete(config_map_path(self._namespace, plan_config_name(self._name, revision)))
        return tuple(revision for revision in revisions if revision not in old)

    def kept(self, job: Json) -> Manifest | None:
        """What the job's pods were told when it was taken up last; None if it never was."""
        found = self._api.get(config_map_path(self._namespace, run_config_name(self._name)))
        if found is None or not is_owned(found, job):
            return None
        try:
            configuration = json.loads(found["data"][CONFIG_FILE])
            return read_objects(configuration["job"], configuration["pools"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, ManifestError):
            return None

    def end_pods(self, job: Json) -> None:
        """Delete the pods of a deleted job that a foreign finalizer holds: garbage collection waits for the job."""
        if _ORPHAN in (job["metadata"].get("finalizers") or ()):
            return
        for pod in self._cluster.pods.of_job(job):
            if not pod["metadata"].get("deletionTimestamp"):
                self._api.delete(pod_path(self._namespace, str(pod["metadata"]["name"])))

    def _check_owner(self, job: Json, what: str, found: Json | None) -> None:
        if found is not None and not is_owned(found, job):
            raise NotReadyError.taken(what, found)
