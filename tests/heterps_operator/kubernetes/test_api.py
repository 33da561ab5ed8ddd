"""The API client against a scripted server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from heterps_operator.errors import ClusterError
from heterps_operator.kubernetes.api import ApiError, FencedError, KubernetesApi, connect

Json = dict[str, Any]
PODS = "/api/v1/namespaces/ml/pods"


class Script:
    """Scripted responses: (status, document, headers), or None to hang up; and the received requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]] | None] = []
        self.requests: list[tuple[str, str, dict[str, list[str]], dict[str, str], Any]] = []
        self.lock = threading.Lock()
        self.address = ""

    def then(self, status: int, document: Any = None, **headers: str) -> Script:
        self.answers.append((status, document, {key.replace("_", "-"): value for key, value in headers.items()}))
        return self

    def hang_up(self) -> Script:
        self.answers.append(None)
        return self


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        with self.script.lock:
            headers = {key.lower(): value for key, value in self.headers.items()}
            self.script.requests.append((self.command, parts.path, parse_qs(parts.query), headers, body))
            # The last response repeats.
            answer = self.script.answers.pop(0) if len(self.script.answers) > 1 else self.script.answers[0]
        if answer is None:
            self.close_connection = True
            return
        status, document, more = answer
        data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.send_response_only(status)
        more = {"Date": self.date_time_string(), **more}
        for key, value in more.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # names of http.server

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    handler = type("Scripted", (Handler,), {"script": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def calls() -> list[tuple[str, str, int]]:
    return []


@pytest.fixture
def api(
    script: Script, pauses: list[float], calls: list[tuple[str, str, int]], tmp_path: Path
) -> Iterator[KubernetesApi]:
    made = connect(
        str(kubeconfig(tmp_path, script.address)),
        sleep=pauses.append,
        on_request=lambda verb, resource, code, seconds: calls.append((verb, resource, code)),
    )
    yield made
    made.close()


def kubeconfig(folder: Path, address: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    return path


def status(code: int, reason: str, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


# --- single requests --------------------------------------------------------------------------------------------------


def test_an_object_is_read_with_the_token_of_the_kubeconfig(api: KubernetesApi, script: Script, calls: Any) -> None:
    script.then(200, {"kind": "Pod", "metadata": {"name": "x"}})
    assert api.get(f"{PODS}/x") == {"kind": "Pod", "metadata": {"name": "x"}}
    [(method, path, _, headers, body)] = script.requests
    assert (method, path, headers["authorization"], body) == ("GET", f"{PODS}/x", "Bearer t0ken", None)
    assert calls == [("get", "pods", 200)]


def test_the_server_tells_its_time(api: KubernetesApi, script: Script) -> None:
    script.then(200, {"major": "1"})
    assert api.server_time() == pytest.approx(time.time(), abs=60)
    assert script.requests[0][:2] == ("GET", "/version")


def test_a_server_that_tells_no_time_is_an_error(api: KubernetesApi, script: Script) -> None:
    script.then(200, {"major": "1"}, Date="noon")
    with pytest.raises(ApiError, match="no time of the API server"):
        api.server_time()


def test_what_is_not_there_is_none(api: KubernetesApi, script: Script) -> None:
    script.then(*status(404, "NotFound", 'pods "x" not found'))
    assert api.get(f"{PODS}/x") is None
    assert len(script.requests) == 1


def test_a_refusal_has_the_words_of_the_server(api: KubernetesApi, script: Script, pauses: list[float]) -> None:
    script.then(*status(403, "Forbidden", "exceeded quota: compute"))
    with pytest.raises(ApiError, match="exceeded quota: compute") as caught:
        api.create(PODS, {"kind": "Pod", "metadata": {"name": "x"}})
    assert (caught.value.code, caught.value.reason, caught.value.temporary) == (403, "Forbidden", False)
    assert pauses == []
    script.answers = [(502, "<html>bad gateway</html>", {})]
    with pytest.raises(ApiError, match="bad gateway") as caught:
        api.get(f"{PODS}/x")
    assert (caught.value.code, caught.value.reason) == (502, "HTTP502")


def test_a_list_is_read_page_by_page(api: KubernetesApi, script: Script) -> None:
    head = {"apiVersion": "v1", "kind": "PodList"}
    for number, token in enumerate(["a", "b", ""]):
        metadata = {"resourceVersion": "77", "continue": token}
        script.then(200, {**head, "metadata": metadata, "items": [{"metadata": {"name": f"p{number}"}}]})
    items, version = api.list(PODS, label_selector="heterps.io/job=flights", limit=1)
    assert [item["metadata"]["name"] for item in items] == ["p0", "p1", "p2"]
    assert items[0]["kind"] == "Pod"
    assert items[0]["apiVersion"] == "v1"
    assert version == "77"
    queries = [query for _, _, query, _, _ in script.requests]
    assert [query.get("continue") for query in queries] == [None, ["a"], ["b"]]
    assert all(query["labelSelector"] == ["heterps.io/job=flights"] for query in queries)


def test_a_list_that_expires_between_its_pages_is_read_anew(api: KubernetesApi, script: Script) -> None:
    page = {"kind": "PodList", "items": [{"metadata": {"name": "p"}}]}
    script.then(200, {**page, "metadata": {"continue": "a"}}).then(*status(410, "Expired", "too old"))
    script.then(200, {**page, "metadata": {"resourceVersion": "9"}})
    items, version = api.list(PODS)
    assert (len(items), version) == (1, "9")


def test_writing_says_how_it_is_meant(api: KubernetesApi, script: Script, calls: Any) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    path = "/api/v1/namespaces/ml/configmaps/x"
    script.then(200, body)
    api.apply(path, body)
    api.apply(path, body, "someone", force=False, dry_run=True)
    api.patch(path, {"data": None})
    api.replace(path, body)
    api.delete(path, grace_seconds=5, uid="u-1")
    sent = [(method, headers.get("content-type"), query) for method, _, query, headers, _ in script.requests]
    assert sent == [
        ("PATCH", "application/apply-patch+yaml", {"fieldManager": ["heterps"], "force": ["true"]}),
        ("PATCH", "application/apply-patch+yaml", {"fieldManager": ["someone"], "force": ["false"], "dryRun": ["All"]}),
        ("PATCH", "application/merge-patch+json", {}),
        ("PUT", "application/json", {}),
        ("DELETE", "application/json", {}),
    ]
    assert script.requests[0][4] == body
    assert script.requests[2][4] == {"data": None}
    options = script.requests[4][4]
    assert (options["gracePeriodSeconds"], options["preconditions"]) == (5, {"uid": "u-1"})
    assert [verb for verb, _, _ in calls] == ["apply", "apply", "patch", "update", "delete"]


@pytest.mark.parametrize(("code", "uid"), [(404, None), (404, "u"), (409, "u")])
def test_deleting_what_is_gone_is_fine(api: KubernetesApi, script: Script, code: int, uid: str | None) -> None:
    script.then(*status(code, "NotFound", "gone, or another one of this name"))
    api.delete(f"{PODS}/x", uid=uid)


def test_the_end_of_a_log(api: KubernetesApi, script: Script, calls: Any) -> None:
    script.then(200, "one\n\ntwo  \nthree\n").then(*status(404, "NotFound", "gone"))
    assert api.log_tail("ml", "x", 2) == ("two", "three")
    assert script.requests[0][2] == {"container": ["heterps"], "tailLines": ["2"], "limitBytes": ["65536"]}
    assert api.log_tail("ml", "x", 2) == ()
    assert calls == [("get", "pods/log", 200), ("get", "pods/log", 404)]


def test_lines_of_a_watch(api: KubernetesApi, script: Script) -> None:
    script.then(200, '{"type": "ADDED"}\n{"type": "BOOKMARK"}\nrest').then(*status(410, "Expired", "too old"))
    assert list(api.lines(PODS, {"watch": "1"}, 5.0)) == ['{"type": "ADDED"}', '{"type": "BOOKMARK"}', "rest"]
    with pytest.raises(ApiError) as caught:
        list(api.lines(PODS, {"watch": "1"}, 5.0))
    assert caught.value.code == 410


# --- again ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(api: KubernetesApi, script: Script, pauses: list[float], code: int) -> None:
    script.then(*status(code, "Later", "later")).hang_up().then(200, {"metadata": {"name": "x"}})
    assert api.get(f"{PODS}/x") == {"metadata": {"name": "x"}}
    assert len(script.requests) == 3
    assert len(pauses) == 2
    assert 0 < pauses[0] < pauses[1]


def test_patience_ends_after_some_seconds(api: KubernetesApi, script: Script, pauses: list[float], calls: Any) -> None:
    script.hang_up()
    with pytest.raises(ApiError, match="does not answer") as caught:
        api.list(PODS)
    assert caught.value.code == 0
    assert caught.value.temporary
    assert len(script.requests) == 5
    assert sum(pauses) <= 8.0
    assert calls == [("list", "pods", 0)] * 5


def test_an_impatient_client_tries_once(api: KubernetesApi, script: Script, pauses: list[float], calls: Any) -> None:
    script.hang_up()
    with pytest.raises(ApiError, match="does not answer"):
        api.impatient(5.0).get(f"{PODS}/x")
    assert (len(script.requests), pauses) == (1, [])
    assert calls == [("get", "pods", 0)]


def test_an_impatient_client_does_not_wait_for_a_stalled_server(api: KubernetesApi) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        api.configuration.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ApiError, match="does not answer") as caught:
            api.impatient(0.05).get(f"{PODS}/x")
    assert caught.value.code == 0


def test_the_server_says_when_to_come_back(api: KubernetesApi, script: Script, pauses: list[float]) -> None:
    script.then(429, {}, Retry_After="2").then(429, {}, Retry_After="60")
    with pytest.raises(ApiError) as caught:
        api.get(f"{PODS}/x")
    assert pauses == [2.0]
    assert caught.value.retry_after == 60.0
    script.answers.clear()
    script.then(429, {}, Retry_After="\u00b2").then(404)  # a superscript is a digit, but no number
    assert api.get(f"{PODS}/x") is None


@pytest.mark.parametrize("text", ["<html>", "[" * 10_000, "[]", '"x"', '{"metadata": "x"}', '{"items": [3]}'])
def test_an_answer_of_something_else_is_an_error_of_the_server(api: KubernetesApi, script: Script, text: str) -> None:
    script.then(200, text)
    with pytest.raises(ApiError) as caught:
        api.list(PODS)
    assert caught.value.reason == "MalformedAnswer"


@pytest.mark.parametrize("verb", ["create", "replace"])
def test_a_write_whose_answer_was_lost_is_no_conflict_with_itself(
    api: KubernetesApi, script: Script, verb: str
) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    there = {**body, "metadata": {"name": "x", "resourceVersion": "8"}}

    def write() -> Json:
        collection = "/api/v1/namespaces/ml/configmaps"
        return api.create(collection, body) if verb == "create" else api.replace(f"{collection}/x", body)

    script.hang_up().then(*status(409, "Conflict", "it was changed")).then(200, there)
    assert write()["metadata"]["resourceVersion"] == "8"
    assert script.requests[-1][:2] == ("GET", "/api/v1/namespaces/ml/configmaps/x")

    script.answers = []
    script.hang_up().then(*status(409, "Conflict", "it was changed")).then(200, {**there, "data": {"a": "2"}})
    with pytest.raises(ApiError) as caught:
        write()
    assert caught.value.code == 409

    script.answers = []
    script.then(*status(409, "Conflict", "it was changed"))
    before = len(script.requests)
    with pytest.raises(ApiError):
        write()
    assert len(script.requests) == before + 1, "a plain conflict is one at once"


def test_many_threads_share_one_client(api: KubernetesApi, script: Script, calls: Any) -> None:
    script.then(200, {"metadata": {"name": "x"}})
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: api.get(f"{PODS}/x"), range(40)))
    assert answers == [{"metadata": {"name": "x"}}] * 40
    assert len(calls) == 40


# --- credentials ------------------------------------------------------------------------------------------------------


def test_credentials_that_cannot_be_used_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="check --kubeconfig and --context"):
        connect(str(tmp_path / "missing"))
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(ClusterError, match="elsewhere"):
        connect(str(path), "elsewhere")


@pytest.mark.parametrize(("strict", "query"), [(True, {"fieldValidation": ["Strict"]}), (False, {})])
def test_unknown_fields_are_refused_where_that_is_asked_for(
    api: KubernetesApi, script: Script, strict: bool, query: dict[str, list[str]]
) -> None:
    script.then(201, {"kind": "Pod", "metadata": {"name": "x"}})
    api.create(PODS, {"kind": "Pod", "metadata": {"name": "x"}}, strict=strict)
    assert script.requests[0][2] == query


def test_a_fenced_client_writes_nothing_once_it_may_not(
    api: KubernetesApi, script: Script, pauses: list[float]
) -> None:
    may = [True]
    fenced = api.fenced(lambda: may[0])
    script.then(200, {"kind": "Pod", "metadata": {"name": "x"}})
    fenced.create(PODS, {"metadata": {"name": "x"}})
    may[0] = False
    body = {"metadata": {"name": "x", "resourceVersion": "1"}}
    writes: list[Callable[[], Any]] = [
        lambda: fenced.create(PODS, body),
        lambda: fenced.replace(f"{PODS}/x", body),
        lambda: fenced.apply(f"{PODS}/x", body),
        lambda: fenced.patch(f"{PODS}/x", body),
        lambda: fenced.delete(f"{PODS}/x"),
    ]
    for write in writes:
        with pytest.raises(FencedError):
            write()
    assert len(script.requests) == 1
    script.then(200, {"kind": "Pod", "metadata": {"name": "x"}})
    assert fenced.get(f"{PODS}/x") is not None, "it still reads"
    script.then(200, {"kind": "Pod", "metadata": {"name": "x"}})
    api.delete(f"{PODS}/x")  # the Lease's own client
    assert pauses == []


def test_the_fence_is_asked_again_before_a_retry(api: KubernetesApi, script: Script) -> None:
    answers = iter([True, False])
    script.then(*status(503, "ServiceUnavailable", "starting"))
    with pytest.raises(FencedError):
        api.fenced(lambda: next(answers)).create(PODS, {"metadata": {"name": "x"}})
    assert len(script.requests) == 1


def test_each_attempt_waits_for_the_limit_before_the_fence_is_asked(script: Script, tmp_path: Path) -> None:
    happened: list[str] = []

    def may_write() -> bool:
        happened.append("fence")
        return True

    api = connect(
        str(kubeconfig(tmp_path, script.address)),
        sleep=lambda seconds: happened.append("pause"),
        on_request=lambda verb, resource, code, seconds: happened.append(str(code)),
        limit=lambda: happened.append("limit"),
    )
    script.then(503).then(200, {"metadata": {}})
    api.fenced(may_write).replace(f"{PODS}/a", {"metadata": {"name": "a"}})
    assert happened == ["limit", "fence", "503", "pause", "limit", "fence", "200"]
    happened.clear()
    api.impatient(1.0).get(f"{PODS}/a")  # a Lease must not wait behind jobs
    assert happened == ["200"]
    api.close()
