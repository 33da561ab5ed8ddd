"""Connecting a client from options and environment: cluster, namespace, and the errors without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.__main__ import main
from heterps_operator.client import connection
from heterps_operator.errors import ClusterError
from tests.heterps_operator.helpers.fake_server import FakeServer


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """Record the connection's arguments; hide this machine's kubeconfig and service account."""
    asked: list[tuple[Any, ...]] = []

    def connect(*arguments: Any) -> FakeServer:
        asked.append(arguments)
        return FakeServer()

    monkeypatch.setattr("heterps_operator.kubernetes.api.connect", connect)
    monkeypatch.setattr(connection, "_IN_CLUSTER", tmp_path / "service-account" / "namespace")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return asked


def config(path: Path, current: str = "test", **namespaces: str | None) -> Path:
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})}
        for name, namespace in namespaces.items()
    ]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": contexts,
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_namespace_is_that_of_the_context_unless_it_is_said(tmp_path: Path) -> None:
    file = str(config(tmp_path / "config", test="team", other=None))
    assert connection.connect(kubeconfig=file).namespace == "team"
    assert connection.connect(kubeconfig=file, context="other").namespace == "default"
    assert connection.connect("mine", kubeconfig=file).namespace == "mine"


def test_a_kubeconfig_is_looked_for_where_kubectl_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[Any, ...]]
) -> None:
    home = config(tmp_path / "home" / ".kube" / "config", test="home")
    assert connection.connect().namespace == "home"
    variable = config(tmp_path / "variable", test="variable")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{variable}")
    assert connection.connect().namespace == "variable"
    option = config(tmp_path / "option", test="option")
    assert connection.connect(kubeconfig=str(option)).namespace == "option"
    assert [arguments[0] for arguments in asked] == [str(home), f"{tmp_path / 'none'}:{variable}", str(option)]


def test_inside_a_pod_the_service_account_is_taken(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    (tmp_path / "service-account").mkdir()
    (tmp_path / "service-account" / "namespace").write_text("pods\n")
    assert connection.connect().namespace == "pods"
    assert asked == [()]
    with pytest.raises(ClusterError, match="--context test: there is no kubeconfig to find it in"):
        connection.connect(context="test")


def test_without_any_kubeconfig_the_ways_to_one_are_named(capsys: Any) -> None:
    assert main(["status"]) == 2
    message = capsys.readouterr().err
    assert "there is no kubeconfig" in message
    assert "set KUBECONFIG, give --kubeconfig FILE, or train on this machine with heterps run" in message


def test_a_file_that_is_not_there_is_named(capsys: Any) -> None:
    assert main(["status", "--kubeconfig", "nowhere"]) == 2
    assert "--kubeconfig nowhere: the file does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", "", "contexts: 3\n", "\x00\x01"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, capsys: Any, text: str) -> None:
    (tmp_path / "config").write_text(text)
    assert main(["status", "--kubeconfig", str(tmp_path / "config")]) == 2
    assert f"{tmp_path / 'config'}: cannot be read (" in capsys.readouterr().err


def test_a_context_that_is_not_there_gets_the_nearest_one(tmp_path: Path, capsys: Any) -> None:
    file = str(config(tmp_path / "config", test="team", production="team"))
    assert main(["status", "--kubeconfig", file, "--context", "prodction"]) == 2
    assert "--context prodction: there is no such context; did you mean production?" in capsys.readouterr().err
    assert main(["status", "--kubeconfig", file, "--context", "zzz"]) == 2
    assert "has test, production" in capsys.readouterr().err
