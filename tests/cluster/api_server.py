"""Requests to an API server without kubectl: hundreds in a second or two."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient
from kubernetes.config import new_client_from_config

Json = dict[str, Any]

DRY_RUN = "dryRun=All&fieldValidation=Strict"


@dataclass(frozen=True)
class Reply:
    """A response of the server."""

    code: int
    body: Json

    @property
    def refused(self) -> bool:
        """Whether the server rejected the object."""
        return self.code in (400, 422)

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class ApiServer:
    """Talks to one API server; the calling thread must be where it can be reached (`Cluster.entered`)."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client: ApiClient = new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]

    def ask(self, verb: str, path: str, body: Json | str | None = None, kind: str = "application/json") -> Reply:
        """Send one request; a string is sent unchanged."""
        client = self._client
        headers = {"Accept": "application/json", "Content-Type": kind}
        client.update_params_for_auth(headers, [], ["BearerToken"], path, verb, body)
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        # Use the connection pool directly: the client's own methods parse into generated models.
        answer = client.rest_client.pool_manager.request(
            verb, f"{client.configuration.host}{path}", body=text, headers=headers, timeout=30.0, retries=False
        )
        return Reply(answer.status, json.loads(answer.data))

    def would_create(self, collection: str, body: Json | str, kind: str = "application/json") -> Reply:
        """Return the server's response to a dry-run creation."""
        return self.ask("POST", f"{collection}?{DRY_RUN}", body, kind)


def collection(manifest: Json, namespace: str) -> str:
    """Return the path to which one of our objects is sent."""
    if manifest.get("kind") == "DevicePool":
        return "/apis/heterps.io/v1alpha1/devicepools"
    return f"/apis/heterps.io/v1alpha1/namespaces/{namespace}/heterpsjobs"
