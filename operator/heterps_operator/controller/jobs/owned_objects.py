"""The objects of a job besides its pods. An object of another owner is never overwritten."""

from __future__ import annotations

import contextlib
import secrets
from base64 import b64decode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from heterps_operator.api.job import RunPolicy
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.stores.objects import Key
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.names import (
    config_map_path,
    is_code_of,
    is_owned,
    object_path,
    plan_config_name,
    pod_path,
    secret_path,
    secrets_path,
    token_secret_name,
)
from heterps_operator.kubernetes.reading.devices import NO_DEVICE_API
from heterps_operator.kubernetes.reading.problems import REFUSALS, name_taken, object_refused
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status

__all__ = ["REFUSED_SECONDS", "InvalidJobError", "NewerVersionError", "NotReadyError", "OwnedObjects"]

REFUSED_SECONDS = 60.0  # a fallback: the job is woken when its spec or its pools change
_RETRY_SECONDS = 10.0  # for changes that no watch reports
_LEFTOVER_SECONDS = 2.0  # until the objects of an earlier job of the same name are deleted
_ORPHAN = "orphan"  # finalizer of a deletion with --cascade=orphan


class NotReadyError(Exception):
    """A job cannot be started, or its changed spec cannot be applied.

    Attributes:
        reason: CamelCase, for programs.
        seconds: seconds until the next attempt; None: only a changed job can help.
    """

    def __init__(self, reason: str, message: str, seconds: float | None = REFUSED_SECONDS) -> None:
        super().__init__(message)
        self.reason = reason
        self.seconds = seconds

    @classmethod
    def of(cls, what: str, error: ApiError) -> NotReadyError:
        """Return the error for an object that the API server refuses; any other `ApiError` is raised unchanged."""
        if error.code not in REFUSALS:
            raise error
        problem = object_refused(what, error)
        return cls(problem.reason, problem.message, _RETRY_SECONDS)

    @classmethod
    def taken(cls, what: str, found: Json) -> NotReadyError:
        """Return the error for a name that belongs to an object of another owner or of an earlier job."""
        problem = name_taken(what, found)
        return cls(problem.reason, problem.message, _LEFTOVER_SECONDS)


class InvalidJobError(NotReadyError):
    """The spec of a job is refused for reasons that no pool can change."""

    def __init__(self, message: str) -> None:
        super().__init__("InvalidSpec", message, seconds=None)


class NewerVersionError(NotReadyError):
    """A later version of the operator has worked on the job; this one must not touch it."""

    def __init__(self, message: str) -> None:
        fix = "nothing of the job is changed: install that version of the operator again, or a later one"
        super().__init__("NewerVersion", f"{message}; {fix}")


class OwnedObjects:
    """The objects of one job.

    Args:
        cluster: the shared context.
        key: namespace and name of the job.
    """

    def __init__(self, cluster: OperatorContext, key: Key) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._namespace, self._name = key

    def apply(self, job: Json, *items: dict[str, Any]) -> None:
        """Create or change objects.

        Raises:
            NotReadyError: a name is taken, or the API server refuses one or does not serve its kind.
        """
        for item in items:
            what = f"{item['kind']} {item['metadata']['name']}"
            try:
                found = self._api.get(object_path(item))
                self._check_owner(job, what, found)
                if found is not None and found.get("immutable") and found.get("data") != item.get("data"):
                    if objects.is_same_plan(found, item):
                        continue  # another version of the operator wrote it
                    # Left by a state that was deleted.
                    self._api.delete(object_path(item), uid=str(found["metadata"]["uid"]))
                self._api.apply(object_path(item), item)
            except ApiError as error:
                if error.code == HTTPStatus.NOT_FOUND and item["kind"] == "ResourceClaimTemplate":
                    raise NotReadyError("NoDeviceApi", f"{what} cannot be created: {NO_DEVICE_API}") from error
                raise NotReadyError.of(what, error) from error

    def token(self, job: Json) -> str:
        """Return the secret with which the job's processes authenticate each other; it is generated once.

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
            raise NotReadyError("DamagedState", text, _RETRY_SECONDS) from error

    def keep_plan(
        self,
        job: Json,
        pools: Mapping[str, Json],
        status: Status,
        plan: JobPlan,
        revisions: tuple[int, ...],
        *,
        policy: RunPolicy,
    ) -> tuple[int, ...]:
        """Write a plan's ConfigMap, disruption budgets and pod groups, and delete outdated plans.

        Args:
            job: the HeterPSJob with all defaults.
            pools: its DevicePools, by name.
            status: the status with the plan's revision and the incarnation.
            plan: the plan.
            revisions: revisions of all plans that were written.
            policy: says how the pods are protected from evictions.

        Returns:
            The remaining revisions.

        Raises:
            NotReadyError: see `apply`.
        """
        self.apply(
            job,
            objects.plan_config(job, status.plan_revision, plan.document),
            *objects.disruption_budgets(job, plan, policy),
            *objects.pod_groups(job, plan, status.incarnation, pools),
        )
        old = objects.outdated_plans(revisions)
        for revision in old:
            with contextlib.suppress(ApiError):
                self._delete_plan(job, config_map_path(self._namespace, plan_config_name(self._name, revision)))
        return tuple(revision for revision in revisions if revision not in old)

    def drop_code(self, job: Json, before: Json, after: Json) -> None:
        """Delete the ConfigMap of code that the job has given up, unless another job owns it, too.

        Args:
            job: the HeterPSJob.
            before: the spec of which no process runs any more.
            after: the spec that is carried out.
        """
        old, new = (((spec.get("code") or {}).get("configMap") or {}).get("name") for spec in (before, after))
        if old is None or old == new:
            return
        path = config_map_path(self._namespace, str(old))
        with contextlib.suppress(ApiError):  # it is deleted with the job at the latest
            found = self._api.get(path)
            if found is not None and is_code_of(found, job):
                self._api.delete(path, uid=str(found["metadata"]["uid"]))

    def end_pods(self, job: Json) -> None:
        """Delete the pods of a job that another owner's finalizer keeps: garbage collection waits for the job."""
        if _ORPHAN in (job["metadata"].get("finalizers") or ()):
            return
        for pod in self._cluster.pods.of_job(job):
            if not pod["metadata"].get("deletionTimestamp"):
                metadata = pod["metadata"]
                self._api.delete(pod_path(self._namespace, str(metadata["name"])), uid=metadata.get("uid"))

    def _delete_plan(self, job: Json, path: str) -> None:
        """Delete an outdated plan, and not what another owner has created under its name since."""
        found = self._api.get(path)
        if found is not None and is_owned(found, job):
            self._api.delete(path, uid=str(found["metadata"]["uid"]))

    def _check_owner(self, job: Json, what: str, found: Json | None) -> None:
        if found is not None and not is_owned(found, job):
            raise NotReadyError.taken(what, found)
