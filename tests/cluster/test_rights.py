"""Access rights: the operator in its namespaces, pods at the API server, strangers at a job's processes.

All operators of these tests have exactly the chart's rights (`operator_kubeconfig`). Here they are those of an
installation for one namespace.
"""

from __future__ import annotations

import http.client
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from heterps_operator.kubernetes.names import COORDINATOR_PORT
from heterps_runtime.contract import PATH_HEALTH, PATH_METRICS
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.wire.security import LinkSecurity
from tests.cluster.cluster import Cluster
from tests.cluster.faults import processes_of
from tests.cluster.helm import Helm, grant, kubeconfig_of
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE, Operator

Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

OPEN = {PATH_HEALTH, PATH_METRICS}  # for probes and Prometheus; read-only progress
KINDS = "pods,services,configmaps,poddisruptionbudgets,networkpolicies,events"
LISTENS = "0A"  # state of a socket in /proc/net/tcp
HANDSHAKE = {
    zmq.Event.HANDSHAKE_SUCCEEDED,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
}


# --- strangers --------------------------------------------------------------------------------------------------------


def routes() -> Iterator[tuple[str, str]]:
    """Return method and path of every route of a coordinator, from its own table."""
    server = object.__new__(CoordinatorServer)
    server._security = LinkSecurity("irrelevant", encrypted=False)
    for route in server._application().router.routes():
        yield route.method, str(route.resource.canonical if route.resource else "").replace("{pool}", "cpu")


def answer(address: str, port: int, method: str, path: str, header: str | None = None) -> tuple[int, bytes]:
    """Return a server's response code to a request with this Authorization; 0: it does not speak HTTP."""
    with closing(http.client.HTTPConnection(address, port, timeout=30)) as connection:
        try:
            connection.request(method, path, headers={} if header is None else {"Authorization": header})
            response = connection.getresponse()
        except (http.client.HTTPException, ConnectionError):
            return 0, b""
        return response.status, response.read()


def assert_nobody_is_let_in(address: str, token: str) -> None:
    """Assert that every route, and every unknown path, refuses wrong tokens with the same response."""
    known = sorted(set(routes()))
    assert {path for _, path in known} > OPEN
    assert len(known) > 10
    strange = "Bearer größe".encode().decode("latin-1")
    wrong = (None, "", "Bearer", "Bearer ", "Bearer wrong", token, f"Basic {token}", f"Bearer {token[:-1]}",
             f"Bearer {token}x", f"bearer {token}", f"Bearer {token.swapcase()}", strange)  # fmt: skip
    places = ("/", "/v1", "/v2/status", "/healthz/x", "//metrics")
    elsewhere = [(method, path) for method in ("GET", "POST") for path in places]
    said = {
        (method, path, header): answer(address, COORDINATOR_PORT, method, path, header)
        for method, path in (*known, *elsewhere)
        for header in wrong
        if path not in OPEN
    }
    assert {code for code, _ in said.values()} == {401}
    assert {body for (method, _, _), (_, body) in said.items() if method != "HEAD"} == {
        json.dumps({"error": "missing or wrong token"}).encode()
    }
    for path in OPEN:
        assert answer(address, COORDINATOR_PORT, "GET", path)[0] == 200
        assert token.encode() not in answer(address, COORDINATOR_PORT, "GET", path)[1]
    assert answer(address, COORDINATOR_PORT, "GET", "/v1/status", f"Bearer {token}")[0] == 200  # the right one works


def ports_of(process: int) -> set[int]:
    """Return the TCP ports that listen in the network of a process."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTENS:
                found.add(int(local.rpartition(":")[2], 16))
    return found


def handshake(address: str, password: str | None) -> bool:
    """Return whether a ZeroMQ socket accepts a client with this password; None: a client without credentials."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if password is not None:
            socket.plain_username = b"heterps"
            socket.plain_password = password.encode()
        with socket.get_monitor_socket() as monitor:
            socket.connect(address)
            while monitor.poll(30_000):
                event = recv_monitor_message(monitor)["event"]
                if event in HANDSHAKE or event == zmq.Event.DISCONNECTED:
                    return bool(event == zmq.Event.HANDSHAKE_SUCCEEDED)
            raise AssertionError(f"{address} says nothing to a handshake")


def assert_closed(address: str, port: int, token: str) -> str:
    """Assert that a port serves only public metrics, or only messages to token holders; return which."""
    code, body = answer(address, port, "GET", PATH_METRICS)
    if code == http.HTTPStatus.OK:
        assert b"heterps_" in body
        assert token.encode() not in body
        others = [answer(address, port, method, PATH_METRICS)[0] for method in ("POST", "PUT", "PATCH", "DELETE")]
        assert min(others) >= http.HTTPStatus.BAD_REQUEST
        return "figures"
    place = f"tcp://{address}:{port}"
    strangers = (None, " ", "wrong", f"{token}x", token[:-1])
    assert [password for password in strangers if handshake(place, password)] == []
    assert handshake(place, token)
    return "messages"


# --- the test ---------------------------------------------------------------------------------------------------------


def test_an_installation_for_one_namespace_leaves_others_alone_and_its_jobs_are_closed_to_strangers(
    make_alone: Callable[..., ClusterJob],
    make_operator: Callable[..., Operator],
    kubectl: Kubectl,
    admin: Kubectl,
    helm: Helm,
    own_cluster: Cluster,
    custom_resources: None,
    tmp_path: Path,
) -> None:
    assert kubectl.namespace is not None
    other = f"{kubectl.namespace}-other"
    admin("create", "namespace", other)
    if admin.try_to("get", "namespace", NAMESPACE).code:
        admin("create", "namespace", NAMESPACE)
    account = grant(helm, admin, "narrow", NAMESPACE, [kubectl.namespace])
    kubeconfig = kubeconfig_of(admin, tmp_path, account, NAMESPACE)
    job = make_alone("closed", spec={"training.steps": 1_000_000, "checkpoint.everySteps": 10_000})
    elsewhere = {**job.job, "metadata": {"name": "elsewhere", "namespace": other}}
    admin.apply(elsewhere)
    operator = make_operator("narrow", "--namespace", kubectl.namespace, kubeconfig=kubeconfig)
    operator.start()
    job.submit().wait_for_step(5)

    # What its pods know about the cluster, and what they expose.
    token = b64decode(kubectl.get("secret", "closed-token")["data"]["token"]).decode()
    roles = set()
    for pod in job.pods():
        processes = processes_of(pod)
        assert processes, pod["metadata"]["name"]
        roles.add(pod["metadata"]["labels"]["heterps.io/role"])
        root = Path(f"/proc/{processes[0]}/root")
        assert (root / "etc" / "heterps" / "run.json").exists()  # it is the pod's own root
        assert not (root / "var" / "run" / "secrets" / "kubernetes.io").exists()
        assert not (root / "run" / "secrets" / "kubernetes.io").exists()
        ports = ports_of(processes[0])
        assert ports, pod["metadata"]["name"]
        found = [assert_closed(pod["status"]["podIP"], port, token) for port in sorted(ports - {COORDINATOR_PORT})]
        assert found.count("messages") == 1, f"{pod['metadata']['name']}: {found}"
    assert roles == {"coordinator", "ps", "worker"}
    [coordinator] = job.pods("coordinator")
    assert_nobody_is_let_in(coordinator["status"]["podIP"], token)
    # Only the object: the test cluster's network does not enforce policies.
    policy = kubectl.get("networkpolicy", "closed")["spec"]
    assert policy["podSelector"] == {"matchLabels": {"heterps.io/job": "closed"}}
    assert policy["policyTypes"] == ["Ingress"]

    # The operator's view of other namespaces.
    narrow = Kubectl(kubeconfig, tmp_path / "cache")
    for scope in (f"--namespace={other}", "--all-namespaces"):
        for kind in ("pods", "heterpsjobs", "configmaps"):
            refused = narrow.try_to("get", kind, scope)
            assert "is forbidden" in refused.errors, f"{kind} {scope}: {refused.output}"
    # The strangers have changed nothing.
    assert job.status()["restarts"] == 0
    step = job.coordinator().status()["committedSteps"]
    wait_until("it gets on", lambda: job.coordinator().status()["committedSteps"] > step, 60, more=job.story)
    left_alone = json.loads(admin("get", "heterpsjob", "elsewhere", f"--namespace={other}", "--output=json"))
    assert "status" not in left_alone
    found = json.loads(admin("get", KINDS, f"--namespace={other}", "--output=json"))["items"]
    assert [item["metadata"]["name"] for item in found if item["metadata"]["name"] != "kube-root-ca.crt"] == []
    log = operator.story()
    assert "Traceback" not in log
    assert "forbidden" not in log.lower()
    operator.stop()
    admin("delete", "namespace", other, "--wait=false")
