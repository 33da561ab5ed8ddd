"""Debian's Prometheus and promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from heterps_operator.measure.http_requests import send_request
from tests.cluster.debian import program
from tests.cluster.http_server import HttpServer
from tests.cluster.kubectl import Answer

Json = dict[str, Any]

_MOST_BYTES = 16 << 20


def promtool(*arguments: str, folder: Path) -> Answer:
    """Run promtool, which may fail, in a folder."""
    command: Sequence[str] = [str(program("promtool")), *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Answer(ran.returncode, ran.stdout, ran.stderr)


def pod_targets(pods: Sequence[Json]) -> list[Json]:
    """Return what Prometheus' own discovery of pods finds, as target groups of a file.

    Debian's Prometheus is built without the discovery of Kubernetes objects. The labels are those of
    `kubernetes_sd_configs` with `role: pod`, so that relabelling works in the same way.
    """
    groups = []
    for pod in pods:
        metadata = pod["metadata"]
        labels = {
            "__meta_kubernetes_namespace": metadata["namespace"],
            "__meta_kubernetes_pod_name": metadata["name"],
        }
        for name, value in (metadata.get("labels") or {}).items():
            labels["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name)] = value
        for container in pod["spec"]["containers"]:
            for port in container.get("ports") or ():
                if (address := pod["status"].get("podIP")) is not None:
                    named = {"__meta_kubernetes_pod_container_port_name": port.get("name", "")}
                    groups.append({"targets": [f"{address}:{port['containerPort']}"], "labels": {**labels, **named}})
    return groups


class Prometheus(HttpServer):
    """A Prometheus server in the network of the calling thread; as a context manager it runs inside the block.

    Args:
        folder: an empty folder for its configuration, data and log.
        configuration: its configuration.
        address: HOST:PORT to listen on.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any], address: str) -> None:
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(dict(configuration)))
        command = [
            str(program("prometheus")),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        super().__init__("Prometheus", command, folder / "prometheus.log", address, "/-/ready")

    def _ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urlencode(parameters)}"
        reply = send_request("GET", url, headers={}, timeout=60, most_bytes=_MOST_BYTES)
        answer = json.loads(reply.text)
        assert answer["status"] == "success", f"{path} {parameters}: {answer['error']}"
        return answer["data"]

    def query(self, expression: str) -> list[Json]:
        """Return the samples of an instant query.

        Raises:
            AssertionError: Prometheus refuses the query.
        """
        found: list[Json] = self._ask("query", query=expression)["result"]
        return found

    def rules(self) -> list[Json]:
        """Return the rules, with their health and last error."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[Json]:
        """Return the targets that it scrapes, with their health and last error."""
        found: list[Json] = self._ask("targets", state="active")["activeTargets"]
        return found

    def answered_queries(self) -> float:
        """Return how many instant queries it has answered."""
        text = send_request("GET", f"{self.url}/metrics", headers={}, timeout=60, most_bytes=_MOST_BYTES).text
        pattern = r'^prometheus_http_requests_total{code="200",handler="/api/v1/query"} (\S+)$'
        return sum(float(number) for number in re.findall(pattern, text, re.M))
