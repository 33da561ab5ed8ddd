"""Connect a client, from a kubeconfig or from inside a pod."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from heterps_operator.client.client import HeterPSClient
from heterps_operator.errors import ClusterError
from heterps_operator.kubernetes import api

__all__ = ["connect"]

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_FIX = "set KUBECONFIG, give --kubeconfig FILE, or train on this machine with heterps run"


def connect(
    namespace: str | None = None, *, kubeconfig: str | None = None, context: str | None = None
) -> HeterPSClient:
    """Return a client for the jobs of one namespace. Connects with the first request.

    Args:
        namespace: namespace of the jobs; None: that of the context, as in kubectl.
        kubeconfig: path; None: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
        context: context of the kubeconfig; None: the current one.

    Raises:
        ClusterError: the file or context does not exist or is unusable.
    """
    if kubeconfig is not None and not Path(kubeconfig).exists():
        raise ClusterError("NoKubeconfig", f"--kubeconfig {kubeconfig}: the file does not exist; check the path")
    found = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    present = any(Path(part).is_file() for part in found.split(os.pathsep))
    if not present:
        if not _IN_CLUSTER.is_file():
            raise ClusterError("NoKubeconfig", f"there is no kubeconfig ({found} does not exist); {_FIX}")
        if context is not None:
            raise ClusterError("NoContext", f"--context {context}: there is no kubeconfig to find it in; {_FIX}")
        return HeterPSClient(api.connect(), namespace or _IN_CLUSTER.read_text(encoding="utf-8").strip())
    own = _namespace_of(found, context)
    return HeterPSClient(api.connect(found, context), namespace or own)


def _namespace_of(kubeconfig: str, context: str | None) -> str:
    """Return the namespace of a context, and check that the context exists."""
    # Imported here because it takes a second, and a wrong command line must fail at once.
    from kubernetes.config import list_kube_config_contexts

    try:
        contexts, current = list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    except Exception as error:
        # The library raises whatever its YAML parser and its look-ups raise.
        raise ClusterError("BadKubeconfig", f"{kubeconfig}: cannot be read ({error}); {_FIX}") from error
    names = [str(item["name"]) for item in contexts]
    if context is not None and context not in names:
        near = difflib.get_close_matches(context, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"{kubeconfig} has {', '.join(names) or 'none'}"
        raise ClusterError("NoContext", f"--context {context}: there is no such context; {hint}")
    chosen = current if context is None else next(item for item in contexts if item["name"] == context)
    return str((chosen.get("context") or {}).get("namespace") or "default")
