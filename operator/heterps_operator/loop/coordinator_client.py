"""A client of the coordinator's HTTP interface.

Every call has a short deadline and raises one error type, because the control loop must go on while the coordinator is
dead, hung, starting, or answers with anything. The form of an answer is checked in `coordinator_answers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from heterps_operator.documents import Json
from heterps_operator.measure.http_requests import HttpConnection, NoResponseError
from heterps_operator.state.values import Action, FailJob, ReportLost, RequestStop, Shutdown
from heterps_operator.state.values import SubmitAllocation as Allocation
from heterps_operator.state.values import SubmitPlan as Plan
from heterps_runtime import contract
from heterps_runtime.tls import client_context

__all__ = ["CoordinatorClient", "CoordinatorError"]


# A status has 230 to 300 bytes of each member: 2 MiB are 7,000 of them. Parsed, an answer may take 30 times as much
# memory.
_MOST_BYTES = 2 * 1024 * 1024


class CoordinatorError(Exception):
    """The coordinator did not answer, or refused.

    Attributes:
        code: HTTP status of the refusal; None if there was no answer.
        malformed: whether there was an answer that cannot be read.
    """

    def __init__(self, message: str, code: int | None = None, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.malformed = malformed


class CoordinatorClient:
    """Calls one coordinator, over a connection that stays open between questions. Not thread-safe.

    Args:
        address: `http://host:port`, or `https://host:port` if the job encrypts.
        token: the job's shared secret.
        timeout_seconds: for a whole exchange.
        may_act: is asked before each request other than a GET.
    """

    def __init__(
        self,
        address: str,
        token: str,
        timeout_seconds: float = 2.0,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or parts.hostname is None or parts.port is None:
            raise ValueError(f"coordinator address: must be http://host:port or https://host:port, is {address!r}")
        self.address = address
        self._token = token
        self._connection = HttpConnection(address, client_context(token) if parts.scheme == "https" else None)
        self._timeout = timeout_seconds
        self._may_act = may_act

    def status(self) -> dict[str, Any]:
        """The job as the coordinator sees it."""
        return self._call("GET", contract.PATH_STATUS)

    def profiles(self) -> dict[str, Any]:
        """Measured profiles, by pool."""
        return self._call("GET", contract.PATH_PROFILES)

    def send(self, action: Action) -> None:
        """Carry out an action that is a request to the coordinator.

        Raises:
            CoordinatorError: no answer, or a refusal.
        """
        match action:
            case Plan(plan, revision, precision):
                chosen = {} if precision is None else {"precision": precision}
                self._call("PUT", contract.PATH_PLAN, {**plan.document, **chosen, "revision": revision})
            case Allocation(batches):
                self._call("PUT", contract.PATH_ALLOCATION, {"stages": [list(stage) for stage in batches]})
            case ReportLost(member, reason):
                self._call("POST", contract.PATH_LOST, {"member": member, "reason": reason})
            case RequestStop():
                self._call("POST", contract.PATH_STOP, {})
            case FailJob(reason, message):
                self._call("POST", contract.PATH_FAIL, {"reason": reason, "message": message})
            case Shutdown():
                self._call("POST", contract.PATH_SHUTDOWN, {})
            case _:
                raise AssertionError(f"not a request to the coordinator: {action}")

    def _call(self, method: str, path: str, body: Json | None = None) -> dict[str, Any]:
        if method != "GET" and not self._may_act():
            raise CoordinatorError(f"{method} {path}: not sent, as this operator no longer holds the Lease")
        text = self._text(method, path, body)
        try:
            # NaN and Infinity, which Python's json writes, are no JSON: they count as not known.
            document = json.loads(text, parse_constant=lambda constant: None) if text else {}
        except (ValueError, RecursionError) as error:
            raise CoordinatorError(f"{method} {path}: the response is not JSON", malformed=True) from error
        if not isinstance(document, dict):
            raise CoordinatorError(f"{method} {path}: the response is not a JSON object", malformed=True)
        return document

    def _text(self, method: str, path: str, body: Json | None = None) -> str:
        """Send a request and return the body of its response."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        payload = None
        if body is not None:
            payload = json.dumps(body)
            headers["Content-Type"] = "application/json"
        request = f"{method} {path}"
        try:
            response = self._connection.send(
                method, path, headers=headers, timeout=self._timeout, most_bytes=_MOST_BYTES, body=payload
            )
        except NoResponseError as error:
            raise CoordinatorError(f"{request}: {self.address} {error}") from error
        text = response.text.strip()
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise CoordinatorError(f"{request}: refused with {response.status}: {text[:500]}", response.status)
        return text
