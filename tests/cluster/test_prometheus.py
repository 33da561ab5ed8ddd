"""A real Prometheus with the scrape configuration of docs/metrics.md: every panel and every alert finds its data.

The operator runs in the chart's pod, and reads the throughput of its jobs from Prometheus. Grafana itself does not run.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.kubernetes.api import KubernetesApi
from tests.cluster.addresses import IPV4
from tests.cluster.api_server import ApiServer
from tests.cluster.building import ROOT
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import unbuilt
from tests.cluster.debian import missing
from tests.cluster.faults import MODEL
from tests.cluster.helm import CHART, Helm, operator_values
from tests.cluster.jobs import PATIENCE_SECONDS, SHARED, ClusterJob
from tests.cluster.kubectl import Kubectl, list_of, wait_until
from tests.cluster.operators import NAMESPACE
from tests.cluster.prometheus import Prometheus, pod_targets
from tests.cluster.schemas import schema_folder
from tests.cluster.test_kubernetes_objects import lost
from tests.dashboards import Query, queries

Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]

ADDRESS = f"{IPV4.host}:9090"  # pods reach it, as they reach their node
RELEASE = "watched"
ALERTS = (
    "metrics.prometheusRule.enabled=true",
    "metrics.prometheusRule.thresholds.namespaceCostPerHour=50",
)
MONITORS = ("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true")
# Panels about a job that does not train.
OTHER_JOBS = {"Waits for": "waiting", "Evaluation of the final model": "ended"}
# Series that exist only after something has gone wrong.
AFTER_ERRORS = {("Turns", "{{error}}")}


def chart(helm: Helm, *settings: str) -> list[Json]:
    """Return the objects of the chart, without the custom resources."""
    options = [f"--set={setting}" for setting in ("crds.enabled=false", *settings)]
    answer = helm("template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *options)
    assert answer.code == 0, answer.errors
    return [item for item in yaml.safe_load_all(answer.output) if item]


def documented() -> Json:
    """Return the scrape configuration that docs/metrics.md shows."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    [block] = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", text, re.M | re.S)
    found: Json = yaml.safe_load(block)
    return found


class Discovery:
    """The documented configuration with files of targets instead of Kubernetes' discovery, and a scrape each second.

    Args:
        folder: folder of the files.
        rules: file of alerts.
    """

    def __init__(self, folder: Path, rules: Path) -> None:
        self.configuration = documented()
        self.configuration |= {"global": {"evaluation_interval": "1s"}, "rule_files": [str(rules)]}
        self._files: list[tuple[Path, list[str]]] = []
        for job in self.configuration["scrape_configs"]:
            [found] = job.pop("kubernetes_sd_configs")
            assert found.pop("role") == "pod"
            file = folder / f"{job['job_name']}.json"
            self._files.append((file, found.pop("namespaces", {}).get("names", [])))
            assert found == {}
            job |= {"scrape_interval": "1s", "file_sd_configs": [{"files": [str(file)]}]}

    def find(self, admin: Kubectl) -> None:
        """Give Prometheus the pods that run now."""
        pods = admin.items("pods", "--all-namespaces", "--field-selector=status.phase=Running")
        for file, namespaces in self._files:
            chosen = [pod for pod in pods if not namespaces or pod["metadata"]["namespace"] in namespaces]
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(pod_targets(chosen)))
            partial.replace(file)


@dataclass(frozen=True)
class Watched:
    """Jobs that train, wait and have ended, and the Prometheus that watches them."""

    prometheus: Prometheus
    jobs: dict[str, ClusterJob]

    def of(self, query: Query) -> str:
        """The query of a panel, for the job that it is about."""
        job = self.jobs[OTHER_JOBS.get(query.panel, "training")]
        return query.of(str(job.kubectl.namespace), job.name)


@pytest.fixture(scope="module")
def prometheus(
    own_cluster: Cluster, admin: Kubectl, helm: Helm, custom_resources: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prometheus, Discovery]]:
    """Prometheus, and the operator that asks it, in a pod of the chart."""
    if missing():
        unbuilt("Prometheus is")
    folder = tmp_path_factory.mktemp("prometheus")
    [rule] = [item for item in chart(helm, *ALERTS) if item["kind"] == "PrometheusRule"]
    (folder / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump(operator_values()))
    if admin.try_to("get", "namespace", NAMESPACE).code:
        admin("create", "namespace", NAMESPACE)
    settings = f"crds.enabled=false,operator.logFormat=json,operator.prometheusUrl=http://{ADDRESS}"
    options = (f"--set={settings}", f"--values={values}")
    installed = helm(
        "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *options, "--wait", "--timeout=600s",
        kubeconfig=admin.kubeconfig,
    )  # fmt: skip
    assert installed.code == 0, installed.errors
    try:
        discovery = Discovery(folder, folder / "rules.yaml")
        discovery.find(admin)
        with Prometheus(folder, discovery.configuration, ADDRESS) as running:
            yield running, discovery
    finally:
        helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", kubeconfig=admin.kubeconfig)


@pytest.fixture(scope="module")
def watched(
    prometheus: tuple[Prometheus, Discovery], admin: Kubectl, api: KubernetesApi, folder: Path
) -> Iterator[Watched]:
    """Three jobs on a pool that has room for one of them at a time."""
    server, discovery = prometheus
    namespace = "watched-jobs"
    admin("create", "namespace", namespace)
    kubectl = Kubectl(admin.kubeconfig, admin.cache, namespace)
    wait_until("pods can be created", lambda: not kubectl.try_to("get", "serviceaccount", "default").code, 30)

    def job(name: str, **spec: Any) -> ClusterJob:
        changes = {"model.entrypoint": MODEL, **spec}
        return ClusterJob(kubectl, api, folder, name, spec=changes, pool={"maxUnits": 2, "nodeSelector": {}})

    jobs = {
        "ended": job("ended", **{"training.steps": 40, "data.evaluation": f"{SHARED}/held-out"}),
        "training": job(
            "training",
            **{
                "training.steps": 1_000_000,
                "training.consistency": "hybrid",
                "objective.minSamplesPerSecond": 1,
                "objective.maxCostPerHour": "40",
                "parameterServer.memoryLimit": "2Gi",
            },
        ),
        "waiting": job("waiting"),
    }
    shutil.copytree(folder / "data", folder / "held-out")
    try:
        jobs["ended"].submit().wait_for_phase("Succeeded")
        jobs["training"].submit().wait_for_step(25)  # there is a checkpoint
        jobs["waiting"].submit().wait_for_condition("Planned", "False", "WaitingForCapacity", PATIENCE_SECONDS)
        discovery.find(admin)
        yield Watched(server, jobs)
    finally:
        for made in jobs.values():
            kubectl.try_to("delete", "heterpsjob", made.name, "--ignore-not-found", "--wait=false")
        kubectl.try_to("delete", "devicepool", jobs["training"].pool_name, "--ignore-not-found", "--wait=false")
        admin("delete", "namespace", namespace, "--wait=false")


def test_prometheus_reaches_all_targets(watched: Watched) -> None:
    def names() -> set[str]:
        return {target["scrapePool"] for target in watched.prometheus.targets() if target["health"] == "up"}

    wait_until("both kinds are scraped", lambda: names() == {"heterps-operator", "heterps-jobs"}, 60)
    [job] = watched.prometheus.query("heterps_training_generation")
    assert (job["metric"]["namespace"], job["metric"]["job_name"]) == ("watched-jobs", "training")
    assert not [label for label in job["metric"] if label.startswith("exported")]
    for found in watched.prometheus.query("heterps_job_info"):
        assert found["metric"]["namespace"] == "watched-jobs", "and not the operator's own"


def test_every_panel_has_data(watched: Watched) -> None:
    left = {query: watched.of(query) for query in queries() if (query.panel, query.legend) not in AFTER_ERRORS}
    assert len(left) > 40

    def done() -> bool:
        for query, text in list(left.items()):
            if watched.prometheus.query(text):
                del left[query]
        return not left

    def empty() -> str:
        return "\n".join(f"{query.dashboard}, {query.panel}: {text}" for query, text in left.items())

    wait_until("every query has data", done, 120, more=empty)
    for query in queries():
        watched.prometheus.query(watched.of(query))  # those of errors are valid, too


def test_every_alert_is_evaluated_and_has_its_series(watched: Watched) -> None:
    def evaluated() -> list[Json] | None:
        rules = watched.prometheus.rules()
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_until("all rules are evaluated", evaluated, 60)
    assert len(rules) == 10
    for rule in rules:
        assert (rule["health"], rule.get("lastError")) == ("ok", None), rule["name"]
    left = {series for rule in rules for series in re.findall(r"heterps_\w+", rule["query"])}
    assert len(left) > 10

    def done() -> bool:
        left.difference_update([series for series in left if watched.prometheus.query(series)])
        return not left

    wait_until("every series has data", done, 120, more=lambda: " ".join(sorted(left)))
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_the_operator_reads_the_throughput_from_prometheus(watched: Watched) -> None:
    job, prometheus = watched.jobs["training"], watched.prometheus
    measured = 'heterps_job_samples_per_second{job_name="training"}'
    [sample] = wait_until("it is measured", lambda: prometheus.query(measured), 60, more=job.story)
    assert float(sample["value"][1]) > 0
    job.wait_for_condition("ThroughputMet", "True", "AboveFloor", PATIENCE_SECONDS)
    assert job.told("NotMeasured") == []
    answered = prometheus.answered_queries()  # only the operator asks now
    wait_until("the operator asks again", lambda: prometheus.answered_queries() > answered, 60, more=job.story)


def test_each_line_of_the_operator_s_log_is_an_object(watched: Watched, admin: Kubectl) -> None:
    """With the chart's `operator.logFormat: json`, whatever libraries write."""
    text = admin("logs", f"--namespace={NAMESPACE}", f"deployment/{RELEASE}-heterps")
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
    assert "active: all namespaces" in [line["message"] for line in lines]


# --- the Prometheus Operator's resources ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def monitoring(admin: Kubectl) -> Iterator[None]:
    """The Prometheus Operator's definitions of what the chart makes."""
    if not schema_folder().exists():
        unbuilt("the schemas of the Prometheus Operator are")
    names = [f"{plural}.monitoring.coreos.com" for plural in ("podmonitors", "prometheusrules", "servicemonitors")]
    for file in sorted(schema_folder().iterdir()):
        definition = yaml.safe_load(file.read_text())
        if definition["metadata"]["name"] in names:
            admin("apply", "--server-side", "--filename=-", text=list_of([definition]))
    for name in names:
        admin("wait", "--for=condition=Established", f"crd/{name}", "--timeout=300s")
    yield
    admin("delete", "crd", *names)


@pytest.mark.usefixtures("monitoring")
@pytest.mark.parametrize("settings", [(), ("watchNamespaces={a,b}", "metrics.prometheusRule.alertLabels.team=ml")])
def test_monitors_and_rules_are_what_the_prometheus_operator_knows(
    helm: Helm, kubectl: Kubectl, server: ApiServer, settings: tuple[str, ...]
) -> None:
    assert kubectl.namespace is not None
    objects = [o for o in chart(helm, *MONITORS, *ALERTS, *settings) if o["apiVersion"] == "monitoring.coreos.com/v1"]
    assert sorted(item["kind"] for item in objects) == ["PodMonitor", "PrometheusRule", "ServiceMonitor"]
    for item in objects:
        item["metadata"]["namespace"] = kubectl.namespace
        plural = f"{item['kind'].lower()}s"
        path = f"/apis/monitoring.coreos.com/v1/namespaces/{kubectl.namespace}/{plural}"
        reply = server.would_create(path, item)
        assert reply.code == 201, reply.message
        assert lost(item, reply.body) == []
