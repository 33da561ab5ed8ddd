"""API server errors as messages for users: what was tried, why it failed, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from heterps_operator.errors import ClusterError
from heterps_operator.kubernetes.api import ApiError

__all__ = ["no_such_job", "refusal"]

# "... cannot list resource "pods" in API group "" in the namespace "team": ..."
_FORBIDDEN = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"(?: in API group "[^"]*")?'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_NO_NAMESPACE = re.compile(r'namespaces "([^"]*)" not found')
_READING = frozenset({"get", "list", "watch"})


def refusal(error: ApiError, doing: str) -> ClusterError:
    """Return the error as a message for users.

    Args:
        error: error of the API server, or of the connection to it.
        doing: the attempted action, such as `listing jobs in namespace team`.
    """
    match error.code:
        case 0:
            return ClusterError(
                "Unreachable",
                f"{doing}: the API server does not answer ({error.message}); check that the cluster runs and that the "
                "context is the right one (kubectl config current-context, --context)",
            )
        case 401:
            return ClusterError(
                "Unauthorized",
                f"{doing}: the cluster does not accept your credentials; log in again, or choose another --context",
            )
        case 403:
            return _forbidden(error, doing)
        case 404 if (namespace := _NO_NAMESPACE.search(error.message)) is not None:
            text = f"{doing}: there is no namespace {namespace[1]}; create it, or name another one with --namespace"
            return ClusterError("NoNamespace", text)
        case 404:
            return ClusterError(
                "NotInstalled",
                f"{doing}: the cluster does not know HeterPSJobs and DevicePools; install HeterPS "
                "first (helm install heterps helm/heterps), or choose another --context",
            )
        case 409:
            return ClusterError("Conflict", f"{doing}: it was changed in the meantime ({error.message}); try again")
        case 422:
            return ClusterError("Invalid", f"{doing}: the cluster refuses it: {error.message}")
        case _:
            return ClusterError(
                error.reason or "ServerError", f"{doing}: the API server answered {error.code}: {error.message}"
            )


def _forbidden(error: ApiError, doing: str) -> ClusterError:
    match = _FORBIDDEN.search(error.message)
    if match is None:  # not an RBAC refusal: a quota, an admission webhook
        return ClusterError("Forbidden", f"{doing}: the cluster refuses it: {error.message}")
    verb, resource, namespace = match["verb"], match["resource"], match["namespace"]
    place = f" in namespace {namespace}" if namespace else ""
    if resource == "devicepools" and verb not in _READING:
        role = "heterps-pool-editor"
    elif verb in _READING:
        role = "heterps-viewer"
    else:
        role = "heterps-editor"
    binding = "rolebinding" if namespace else "clusterrolebinding"
    scope = f" --namespace {namespace}" if namespace else ""
    return ClusterError(
        "Forbidden",
        f"{doing}: you are not allowed to {verb} {resource}{place}; the chart's ClusterRole {role} allows it, "
        f"and a cluster administrator can bind it to you: kubectl create {binding} NAME "
        f"--clusterrole {role} --user YOU{scope}",
    )


def no_such_job(name: str, namespace: str, others: Sequence[str], elsewhere: Sequence[str]) -> ClusterError:
    """Return the error for a missing job.

    Args:
        name: name of the missing job.
        namespace: namespace of the request.
        others: names of existing jobs.
        elsewhere: namespaces that have a job of this name.
    """
    text = f"there is no HeterPSJob {name} in namespace {namespace}"
    near = difflib.get_close_matches(name, others, n=1, cutoff=0.5)
    if elsewhere:
        text += f"; there is one in namespace {', '.join(elsewhere)}: add --namespace {elsewhere[0]}"
    elif near:
        text += f"; did you mean {near[0]}?"
    elif others:
        shown = ", ".join(sorted(others)[:5]) + (", ..." if len(others) > 5 else "")
        text += f"; there are {shown}"
    else:
        text += ", nor any other; heterps submit FILE creates one, --namespace looks elsewhere"
    return ClusterError("NotFound", text)
