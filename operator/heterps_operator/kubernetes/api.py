"""A thin client of the Kubernetes API: JSON in, JSON out.

The official client provides credentials of every kind and the connections; its generated models are not used. Transient
errors are retried for some seconds, every other error is an `ApiError` with the API server's message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from heterps_operator.documents import Json, parse_answer
from heterps_operator.errors import ClusterError, HeterpsError
from heterps_operator.kubernetes.names import CONTAINER, pod_path
from heterps_operator.kubernetes.requests import pause_before, resource_of, target_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

__all__ = ["ApiError", "KubernetesApi", "connect"]

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_ATTEMPTS = 5
_PATIENCE_SECONDS = 8.0  # for all pauses of one request: the control loop's turns must stay short
_PAGE = 500  # objects per response
_SMALL_PAGE = 200  # where objects are not all kept: a pod takes 80 kB while it is parsed
_LOG_BYTES = 65_536
_CONNECTIONS = 16
_TEMPORARY = frozenset({429, 500, 502, 503, 504})
_PIECE_BYTES = 65_536
_TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

OnRequest = Callable[[str, str, int, float], None]
_Failures = list["ApiError"]  # inside the client, `list` is its method


class ApiError(HeterpsError):
    """The API server refused a request, or did not answer.

    Attributes:
        code: the HTTP status; 0 if there was no answer.
        reason: the reason for programs, such as AlreadyExists.
        message: the API server's message.
        retry_after: seconds that it asks the client to wait, or None.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code == 0 or self.code in _TEMPORARY


class FencedError(ApiError):
    """A write was not sent, because this process is not the one that may write."""

    @property
    def temporary(self) -> bool:
        """A retry in the same request would not be sent either."""
        return False


def connect(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    on_request: OnRequest | None = None,
    sleep: Callable[[float], None] = time.sleep,
    limit: Callable[[], None] | None = None,
) -> KubernetesApi:
    """Return a client of the cluster that this process runs in, or that a kubeconfig names.

    Args:
        kubeconfig: path of a kubeconfig; None: the pod's service account, else $KUBECONFIG or ~/.kube/config.
        context: context of the kubeconfig; None: the current one.
        on_request: called for every request.
        sleep: waits before a retry.
        limit: waits until a request may be sent; None: it may at once.

    Raises:
        ClusterError: there are no usable credentials.
    """
    # Imported here because it imports thousands of models, and commands without a cluster must not wait for them.
    from kubernetes import client, config

    load_service_account: Callable[..., None] = config.load_incluster_config
    load_kubeconfig: Callable[..., None] = config.load_kube_config

    configuration = client.Configuration()
    try:
        if kubeconfig is None and context is None and _TOKEN_FILE.exists():
            load_service_account(client_configuration=configuration)
        else:
            load_kubeconfig(kubeconfig, context, client_configuration=configuration, persist_config=False)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ClusterError(
            "NoKubeconfig", f"no access to a cluster: {error}; check --kubeconfig and --context, or that kubectl works"
        ) from error
    configuration.retries = False  # KubernetesApi retries itself
    configuration.connection_pool_maxsize = _CONNECTIONS
    return KubernetesApi(client.ApiClient(configuration), on_request=on_request, sleep=sleep, limit=limit)


class KubernetesApi:
    """Requests to one API server. Thread-safe.

    Args:
        api_client: the official client, for its credentials and connections.
        on_request: called for every request with verb, resource, HTTP status (0: no answer) and seconds.
        sleep: waits before a retry.
        attempts: attempts per request.
        read_seconds: seconds without a byte of the response after which an attempt fails.
        may_write: is asked before each attempt of a request that writes; None: it may.
        limit: waits before each attempt until it may be sent; None: at once.
    """

    def __init__(
        self,
        api_client: ApiClient,
        *,
        on_request: OnRequest | None = None,
        sleep: Callable[[float], None] = time.sleep,
        attempts: int = _ATTEMPTS,
        read_seconds: float = _READ_SECONDS,
        may_write: Callable[[], bool] | None = None,
        limit: Callable[[], None] | None = None,
    ) -> None:
        self._client = api_client
        self._on_request = on_request
        self._sleep = sleep
        self._attempts = attempts
        self._read_seconds = read_seconds
        self._may_write = may_write
        self._limit = limit

    @property
    def configuration(self) -> Any:
        """The official client's configuration, for other clients of the same API server."""
        return self._client.configuration

    def impatient(self, seconds: float) -> KubernetesApi:
        """Return a client whose requests are neither retried nor limited, and wait for `seconds` at most."""
        return KubernetesApi(
            self._client, on_request=self._on_request, sleep=self._sleep, attempts=1, read_seconds=seconds
        )

    def fenced(self, may_write: Callable[[], bool]) -> KubernetesApi:
        """Return a client with the same connections whose writes raise `FencedError` unless `may_write` is true."""
        return KubernetesApi(
            self._client,
            on_request=self._on_request,
            sleep=self._sleep,
            attempts=self._attempts,
            read_seconds=self._read_seconds,
            may_write=may_write,
            limit=self._limit,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.rest_client.pool_manager.clear()

    def server_time(self) -> float:
        """Return the API server's time of day in Unix seconds, to the second.

        Raises:
            ApiError: it does not answer, or its answer has no time.
        """
        response = self._send("get", "GET", "/version", None, "application/json", self._read_seconds)
        date = str(response.headers.get("Date") or "")
        try:
            response.drain_conn()
            return parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError, urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "MalformedAnswer", f"GET /version: no time of the API server: {error}") from error

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any] | None:
        """Return an object; None if it does not exist."""
        try:
            return self._json("get", "GET", path)
        except ApiError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(
        self, path: str, label_selector: str = "", field_selector: str = "", limit: int = _PAGE
    ) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a kind.

        Args:
            path: path of the collection.
            label_selector: selects by labels, in the syntax of `kubectl --selector`.
            field_selector: selects by fields.
            limit: objects per page; all pages are requested.

        Returns:
            The objects, with apiVersion and kind, and the resourceVersion to watch from.
        """
        query = {"labelSelector": label_selector, "fieldSelector": field_selector, "limit": limit}
        items: list[dict[str, Any]] = []
        version = ""
        for page, again in self._pages(path, query):
            if again:
                items = []
            items += _items(page)
            version = str((page.get("metadata") or {}).get("resourceVersion") or "")
        return items, version

    def each(self, path: str, label_selector: str = "", limit: int = _SMALL_PAGE) -> Iterator[dict[str, Any]]:
        """Yield all objects of a kind, with at most one page in memory.

        If the list takes so long that it must restart, objects are yielded again.

        Args:
            path: path of the collection.
            label_selector: selects by labels.
            limit: objects per page.
        """
        for page, _ in self._pages(path, {"labelSelector": label_selector, "limit": limit}):
            yield from _items(page)

    def log_tail(self, namespace: str, pod: str, lines: int, container: str = CONTAINER) -> tuple[str, ...]:
        """Return the last non-blank lines of a container's log; empty if it cannot be read."""
        query = {"container": container, "tailLines": lines, "limitBytes": _LOG_BYTES}
        try:
            text = self._request("get", "GET", f"{pod_path(namespace, pod)}/log", query=query, retried=False)
        except ApiError:
            return ()
        words = text.decode("utf-8", "replace")
        return tuple(line.rstrip() for line in words.splitlines() if line.strip())[-lines:]

    def lines(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[str]:
        """Yield the lines of a streaming response: a watch, or the log of a pod.

        Args:
            path: path of the collection or the log.
            query: query parameters.
            read_seconds: seconds of silence after which the connection counts as lost.

        Raises:
            ApiError: the server refused; code 0: the connection was lost.
        """
        target = target_of(path, query)
        response = self._send("watch", "GET", target, None, "application/json", read_seconds)
        rest = b""
        try:
            for piece in response.stream(_PIECE_BYTES):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "ConnectionLost", f"{path}: connection lost: {error}") from error
        finally:
            response.close()
        if rest:
            yield rest.decode("utf-8", "replace")

    # --- writing ------------------------------------------------------------------------------------------------------

    def create(self, path: str, body: Json, *, strict: bool = False) -> dict[str, Any]:
        """Create an object in a collection; `ApiError` 409 if its name is taken.

        Args:
            path: path of the collection.
            body: the object.
            strict: reject unknown fields instead of dropping them.
        """
        item = f"{path}/{body['metadata'].get('name', '')}"
        return self._write("create", "POST", path, body, item, {"fieldValidation": "Strict"} if strict else None)

    def replace(self, path: str, body: Json) -> dict[str, Any]:
        """Replace an object; `ApiError` 409 if its resourceVersion differs from the body's."""
        return self._write("update", "PUT", path, body, path)

    def apply(
        self, path: str, body: Json, field_manager: str = "heterps", force: bool = True, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object or set the body's fields (server-side apply).

        Args:
            path: path of the object.
            body: the object, with the fields to set.
            field_manager: the new owner of these fields.
            force: take over fields with other owners.
            dry_run: only validate.
        """
        query = {
            "fieldManager": field_manager,
            "force": "true" if force else "false",
            "dryRun": "All" if dry_run else "",
        }
        return self._json("apply", "PATCH", path, body, "application/apply-patch+yaml", query)

    def patch(self, path: str, body: Json) -> dict[str, Any]:
        """Change fields of an object (JSON merge patch: null removes a field)."""
        return self._json("patch", "PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, grace_seconds: int | None = None, uid: str | None = None) -> None:
        """Delete an object; a missing one is not an error.

        Args:
            path: path of the object.
            grace_seconds: grace period of a pod's containers; None: the pod's own.
            uid: delete only the object with this uid.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._json("delete", "DELETE", path, options)
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND and not (error.code == HTTPStatus.CONFLICT and uid is not None):
                raise

    # --- inside -------------------------------------------------------------------------------------------------------

    def _pages(self, path: str, query: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yield a list page by page, with True when it restarts because reading took too long."""
        token, restarted = "", False
        while True:
            again = False
            try:
                page = self._json("list", "GET", path, query={**query, "continue": token})
            except ApiError as error:
                if error.code != HTTPStatus.GONE or restarted or not token:
                    raise
                restarted = again = True
                page = self._json("list", "GET", path, query=query)
            yield page, again
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return

    def _write(
        self, verb: str, method: str, path: str, body: Json, item: str, query: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send an object that must not overwrite another's.

        A request whose connection broke may have succeeded: then the retry conflicts with its own result.
        """
        attempts: _Failures = []
        try:
            return self._json(verb, method, path, body, query=query, failures=attempts)
        except ApiError as error:
            if error.code != HTTPStatus.CONFLICT or not attempts:
                raise
            found = self.get(item)
            if found is None or any(found.get(key) != body[key] for key in body.keys() - {"metadata"}):
                raise
            return found

    def _json(
        self,
        verb: str,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        failures: _Failures | None = None,
    ) -> dict[str, Any]:
        data = self._request(verb, method, path, body, content_type, query, failures)
        try:
            document: Any = parse_answer(data)
        except (ValueError, RecursionError) as error:
            raise ApiError(0, "MalformedAnswer", f"{method} {path}: the response is not JSON: {error}") from error
        if not isinstance(document, dict) or not isinstance(document.get("metadata") or {}, dict):
            raise ApiError(0, "MalformedAnswer", f"{method} {path}: the response is not an object of the API")
        return document

    def _request(
        self,
        verb: str,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        query: Mapping[str, Any] | None = None,
        failures: _Failures | None = None,
        retried: bool = True,
    ) -> bytes:
        """Send a request, and retry transient errors.

        Args:
            verb: Kubernetes verb, for metrics.
            method: HTTP method.
            path: API path.
            body: request body.
            content_type: media type of the body.
            query: query parameters; empty ones are omitted.
            failures: receives the failures that were retried.
            retried: whether temporary errors are retried.
        """
        target = target_of(path, query or {})
        waited = 0.0
        for attempt in range(1, self._attempts + 1):
            try:
                return self._once(verb, method, target, body, content_type)
            except ApiError as error:
                pause = error.retry_after if error.retry_after is not None else pause_before(target, attempt)
                last = attempt == self._attempts or waited + pause > _PATIENCE_SECONDS
                if not error.temporary or last or not retried:
                    raise
                if failures is not None:
                    failures.append(error)
                waited += pause
                self._sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, verb: str, method: str, target: str, body: Json | None, content_type: str) -> bytes:
        response = self._send(verb, method, target, body, content_type, self._read_seconds)
        try:
            data: bytes = response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "ConnectionLost", f"{method} {target}: connection lost: {error}") from error
        return data

    def _send(
        self, verb: str, method: str, target: str, body: Json | None, content_type: str, read_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        """Send a request once and return a successful response, whose body is not read yet."""
        if self._limit is not None:
            self._limit()  # before the fence, which may close meanwhile
        if method != "GET" and self._may_write is not None and not self._may_write():
            raise FencedError(0, "Fenced", f"{method} {target} is not sent: this process may not write (any longer)")
        headers = {**self._client.default_headers, "Accept": "application/json, */*"}
        if body is not None:
            headers["Content-Type"] = content_type
        path = target.partition("?")[0]
        host = str(self._client.configuration.host)
        began, code = time.monotonic(), 0
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            request: Callable[..., Any] = self._client.rest_client.request
            timeout = (min(_CONNECT_SECONDS, read_seconds), read_seconds)
            answer = request(method, host + target, headers=headers, body=body, _request_timeout=timeout)
            response: urllib3.BaseHTTPResponse = answer.response
            code = int(response.status)
            data = response.data if code >= HTTPStatus.BAD_REQUEST else b""
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "NoAnswer", f"the API server {host} does not answer: {error}") from error
        finally:
            if self._on_request is not None:
                self._on_request(verb, resource_of(path), code, time.monotonic() - began)
        if code >= HTTPStatus.BAD_REQUEST:
            raise _refusal(method, path, code, response.headers.get("Retry-After"), data)
        return response


def _items(page: Json) -> list[dict[str, Any]]:
    """Return the objects of a list, with the apiVersion and kind that the list omits.

    Raises:
        ApiError: it is not a list of objects.
    """
    head = {"apiVersion": page.get("apiVersion"), "kind": str(page.get("kind", "")).removesuffix("List")}
    try:
        return [{**head, **item} for item in page.get("items") or ()]
    except TypeError as error:
        raise ApiError(0, "MalformedAnswer", f"the response is not a list of objects: {error}") from error


def _refusal(method: str, path: str, code: int, retry_after: str | None, data: bytes) -> ApiError:
    """Return the error for a failed response: a Status object, or the text of a proxy."""
    words = data.decode("utf-8", "replace").strip()
    try:
        status = json.loads(words)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError, RecursionError):
        reason, message = "", words[:500]
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ApiError(code, reason or f"HTTP{code}", message or f"{method} {path}: HTTP {code}", seconds)
