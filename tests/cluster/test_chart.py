"""The chart, rendered and installed by Helm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.api.admission import cluster_problems
from heterps_operator.api.pool_list import PoolList, read_pools
from heterps_operator.api.schema import load_schemas
from heterps_operator.kubernetes.api import connect
from heterps_operator.kubernetes.names import pod_labels
from tests.cluster.building import ROOT
from tests.cluster.faults import MODEL, held
from tests.cluster.helm import CHART, Helm, Installed, installed_chart, kubeconfig_of, operator_values
from tests.cluster.helm import INSTALLED as NAMESPACE
from tests.cluster.jobs import ClusterJob
from tests.cluster.kubectl import Answer, Kubectl, list_of, wait_until
from tests.heterps_operator.api.samples import CPU, JOB, changed, parsed
from tests.heterps_operator.helpers.documents import COORDINATOR, pod_of

USER = f"system:serviceaccount:{NAMESPACE}:heterps"
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}

Object = dict[str, Any]


def rendered(helm: Helm, *settings: str) -> list[Object]:
    options = [f"--set={setting}" for setting in settings]
    answer = helm("template", "heterps", str(CHART), f"--namespace={NAMESPACE}", *options)
    assert answer.code == 0, answer.errors
    return [document for document in yaml.safe_load_all(answer.output) if document]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def rules_of(objects: list[Object]) -> list[Object]:
    return [rule for role in of_kind(objects, "ClusterRole", "Role") for rule in role["rules"]]


def test_helm_finds_nothing_to_complain_about(helm: Helm) -> None:
    answer = helm("lint", "--strict", str(CHART))
    assert answer.code == 0, answer.output


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("replicas=2", "operator.prometheusUrl=http://prometheus:9090", "operator.maxConcurrentTurns=4"),
        (
            "watchNamespaces={a,b}",
            "image.digest=sha256:" + "0" * 64,
            "metrics.serviceMonitor.enabled=true",
            "metrics.podMonitor.enabled=true",
        ),
        ("crds.enabled=false", "rbac.create=false", "serviceAccount.create=false", "serviceAccount.name=mine"),
        ("fullnameOverride=x", "metrics.service=false", "podLabels.team=a", "priorityClassName=high"),
    ],
)
def test_what_it_renders_is_complete(helm: Helm, settings: tuple[str, ...]) -> None:
    objects = rendered(helm, *settings)
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    [deployment] = of_kind(objects, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
        role = {**binding["roleRef"], "namespace": binding["metadata"].get("namespace")}
        assert (role["kind"], role["namespace"], role["name"]) in names


def test_no_rule_is_wider_than_it_says(helm: Helm) -> None:
    for settings in ((), ("watchNamespaces={a}",), (DEVICES,)):
        for rule in rules_of(rendered(helm, *settings)):
            assert set(rule) - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
            assert set(rule["verbs"]) <= VERBS
            assert "*" not in [*rule["apiGroups"], *rule["resources"]]
            if "secrets" in rule["resources"]:
                assert sorted(rule["verbs"]) == ["create", "get"]


def test_with_namespaces_nothing_of_a_job_is_in_a_cluster_role(helm: Helm) -> None:
    objects = rendered(helm, "watchNamespaces={a,b}")
    [wide] = [role for role in of_kind(objects, "ClusterRole") if role["metadata"]["name"] == "heterps"]
    assert {name for rule in wide["rules"] for name in rule["resources"]} == {
        "devicepools",
        "devicepools/status",
        "nodes",
        "priorityclasses",
        "workloadpriorityclasses",
    }
    roles = {role["metadata"]["namespace"]: role["rules"] for role in of_kind(objects, "Role")}
    assert set(roles) == {"a", "b", NAMESPACE, "default"}
    assert roles["default"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    watched = of_kind(rendered(helm, "watchNamespaces={a,default}"), "Role")
    assert [role["metadata"]["name"] for role in watched if role["metadata"]["namespace"] == "default"] == ["heterps"]
    [everywhere] = [role for role in of_kind(rendered(helm), "ClusterRole") if role["metadata"]["name"] == "heterps"]
    assert everywhere["rules"] == wide["rules"] + roles["a"]
    [deployment] = of_kind(objects, "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [argument for argument in arguments if argument.startswith("--namespace")] == [
        "--namespace=a",
        "--namespace=b",
    ]


DEVICES = "dynamicResourceAllocation.enabled=true"


def test_devices_are_read_and_claimed_only_where_the_chart_is_told_so(helm: Helm) -> None:
    def rights(*settings: str) -> set[str]:
        roles = of_kind(rendered(helm, *settings), "Role", "ClusterRole")
        rules = [rule for role in roles if "-operator" not in role["metadata"]["name"] for rule in role["rules"]]
        return {f"{verb} {name}" for rule in rules if rule["apiGroups"] == ["resource.k8s.io"]
                for name in rule["resources"] for verb in rule["verbs"]}  # fmt: skip

    read = {f"{verb} {name}" for name in ("deviceclasses", "resourceslices", "resourceclaims") for verb in
            ("list", "watch")}  # fmt: skip
    claim = {f"{verb} resourceclaimtemplates" for verb in ("get", "create", "patch")}
    assert rights() == set()
    for settings in ((DEVICES,), (DEVICES, "watchNamespaces={a}")):
        assert rights(*settings) == read | claim
        [deployment] = of_kind(rendered(helm, *settings), "Deployment")
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "--dynamic-resource-allocation" in arguments
    # Without rights in the cluster, pods claim devices, and maxUnits is the capacity.
    roles = of_kind(rendered_for_namespaces(helm, DEVICES), "Role")
    assert [
        rule["resources"] for role in roles for rule in role["rules"] if "resource.k8s.io" in rule["apiGroups"]
    ] == [["resourceclaimtemplates"]]
    [bound] = [role for role in of_kind(rendered(helm, "scope=cluster", DEVICES), "ClusterRole")
               if role["metadata"]["name"] == "heterps-operator"]  # fmt: skip
    assert ["resourceclaimtemplates"] in [rule["resources"] for rule in bound["rules"]]


IN_NAMESPACES = (
    "scope=namespace", "pools.cpu.deviceType=CPU", "pools.cpu.maxUnits=1000000", "pools.cpu.pricePerUnitHour=0.04",
    "pools.cpu.tolerations[0].operator=Exists",
)  # fmt: skip


def rendered_for_namespaces(helm: Helm, *settings: str) -> list[Object]:
    """Render the chart without cluster-scoped objects; the price is a string."""
    options = [f"--set-string={IN_NAMESPACES[3]}"]
    options += [f"--set={setting}" for setting in (*IN_NAMESPACES, *settings) if setting != IN_NAMESPACES[3]]
    answer = helm("template", "heterps", str(CHART), f"--namespace={NAMESPACE}", *options)
    assert answer.code == 0, answer.errors
    return [document for document in yaml.safe_load_all(answer.output) if document]


@pytest.mark.parametrize(
    ("settings", "watched"),
    [
        (("replicas=2", "metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true"), [NAMESPACE]),
        (("watchNamespaces={a,b}", "metrics.dashboards.enabled=true", "metrics.prometheusRule.enabled=true"),
         ["a", "b"]),
    ],
)  # fmt: skip
def test_with_the_scope_of_a_namespace_nothing_belongs_to_the_cluster(
    helm: Helm, settings: tuple[str, ...], watched: list[str]
) -> None:
    objects = rendered_for_namespaces(helm, *settings)
    roles = of_kind(objects, "Role", "RoleBinding")
    assert {item["metadata"]["namespace"] for item in roles} == {NAMESPACE, *watched}
    others = [item for item in objects if item not in roles]
    assert {item["metadata"].get("namespace") for item in others} == {NAMESPACE}
    assert {item["kind"] for item in objects} <= {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Role",
        "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor",
    }  # fmt: skip
    # As with a list of namespaces.
    everywhere = of_kind(rendered(helm, f"watchNamespaces={{{','.join(watched)}}}"), "Role")
    kept = [role for role in everywhere if role["metadata"]["namespace"] != "default"]
    assert of_kind(objects, "Role") == kept
    [deployment] = of_kind(objects, "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [argument for argument in arguments if argument.startswith("--namespace")] == [
        f"--namespace={namespace}" for namespace in watched
    ]
    for monitor in of_kind(objects, "PodMonitor"):
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": watched}


def test_pools_of_the_values_are_in_a_file_that_the_operator_reads(helm: Helm) -> None:
    objects = rendered_for_namespaces(helm)
    [config], [deployment] = of_kind(objects, "ConfigMap"), of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [volume] = [volume for volume in pod["volumes"] if "configMap" in volume]
    assert volume["configMap"] == {"name": config["metadata"]["name"]}
    [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]]
    [name] = config["data"]
    assert f"--pools={mount['mountPath']}/{name}" in pod["containers"][0]["args"]
    found = read_pools(config["data"][name], name, {})
    assert not found.refused
    assert found.pools["cpu"]["spec"] == {
        "deviceType": "CPU", "maxUnits": 1_000_000, "pricePerUnitHour": "0.04", "unitsPerPod": 1, "autoscaled": False,
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    [empty] = of_kind(rendered(helm, "scope=namespace"), "ConfigMap")
    assert read_pools(empty["data"][name], name, {}) == PoolList()


def test_an_administrator_s_part_and_a_namespace_s_are_the_whole(helm: Helm) -> None:
    objects = rendered(helm, "scope=cluster")
    assert {item["kind"] for item in objects} == {
        "ClusterRole", "CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip
    whole = {item["metadata"]["name"]: item for item in of_kind(rendered(helm), "ClusterRole")}
    roles = {item["metadata"]["name"]: item for item in of_kind(objects, "ClusterRole")}
    granted = roles.pop("heterps-operator")
    assert "aggregate" not in str(granted["metadata"]["labels"]), "it is only bound by name"
    del whole["heterps"]  # the operator's own, with rights in the whole cluster
    assert roles == whole
    # A user who holds them may grant the Roles of an operator.
    needed = [rule for role in of_kind(rendered_for_namespaces(helm), "Role") for rule in role["rules"]]
    by_name = [rule for rule in needed if "resourceNames" in rule]
    assert [(rule["resources"], rule["verbs"]) for rule in by_name] == [(["configmaps"], ["get"])], "of prices"
    rest = [rule for rule in needed if rule not in by_name]  # which may get ConfigMaps of any name
    assert sorted(granted["rules"], key=str) == sorted(rest, key=str)


def test_the_pod_has_as_few_rights_on_its_node_as_it_can(helm: Helm) -> None:
    [deployment] = of_kind(rendered(helm), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [probe for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe not in container] == []
    *arguments, peers = container["args"]
    assert arguments == ["--metrics-port=8080", "--lease-name=heterps", f"--lease-namespace={NAMESPACE}"]
    assert peers.startswith("--metrics-from=")


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ((), "ghcr.io/heterps/operator:0.1.0"),
        (("image.tag=1.2-x",), "ghcr.io/heterps/operator:1.2-x"),
        (("image.repository=r.example.com:5000/a/b", f"image.digest=sha256:{'ab' * 32}", "image.tag=v1"),
         f"r.example.com:5000/a/b@sha256:{'ab' * 32}"),
    ],
)  # fmt: skip
def test_the_image_has_a_tag_or_a_digest_and_secrets_to_pull_it(
    helm: Helm, settings: tuple[str, ...], image: str
) -> None:
    more = ("imagePullSecrets[0].name=registry", "image.pullPolicy=Always")
    [deployment] = of_kind(rendered(helm, *settings, *more), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (image, "Always")
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


USER_OF_THE_CLUSTER = tuple(f"podSecurityContext.{name}=null" for name in ("runAsUser", "runAsGroup", "fsGroup"))


def test_the_cluster_may_choose_the_user(helm: Helm) -> None:
    [deployment] = of_kind(rendered(helm, *USER_OF_THE_CLUSTER), "Deployment")
    assert deployment["spec"]["template"]["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_service_names_its_protocol_and_the_families_of_addresses(helm: Helm) -> None:
    [service] = of_kind(rendered(helm), "Service")
    [port] = service["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["targetPort"]) == ("metrics", "http", "metrics")
    assert "ipFamilyPolicy" not in service["spec"]
    [service] = of_kind(rendered(helm, "metrics.ipFamilyPolicy=PreferDualStack"), "Service")
    assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    assert of_kind(rendered(helm, "metrics.service=false"), "Service") == []


def test_the_arguments_are_those_of_the_command(helm: Helm) -> None:
    settings = ("watchNamespaces={a}", "operator.prometheusUrl=http://p:9090", "operator.maxConcurrentTurns=4",
                "operator.maxPlanners=1", "operator.maxPlannerSeconds=60", "operator.plannerMemoryMiB=512",
                "operator.backfillSeconds=60", "operator.kubeApiQps=50", "operator.kubeApiBurst=80",
                "operator.leaseSeconds=30", "operator.logFormat=json")  # fmt: skip
    [deployment] = of_kind(rendered(helm, *settings), "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    program = ROOT / ".venv" / "bin" / container["command"][0]
    help_text = subprocess.run(
        [str(program), *container["command"][1:], "--help"], capture_output=True, text=True, check=True
    ).stdout
    for argument in container["args"]:
        assert argument.partition("=")[0] in help_text


def test_a_second_replica_brings_a_disruption_budget_and_no_surge(helm: Helm) -> None:
    assert of_kind(rendered(helm), "PodDisruptionBudget") == []
    objects = rendered(helm, "replicas=2")
    [budget], [deployment] = of_kind(objects, "PodDisruptionBudget"), of_kind(objects, "Deployment")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert of_kind(rendered(helm, "replicas=2", "podDisruptionBudget=false"), "PodDisruptionBudget") == []


def test_two_replicas_prefer_two_nodes_unless_told_otherwise(helm: Helm) -> None:
    def affinity(*settings: str) -> Any:
        [deployment] = of_kind(rendered(helm, *settings), "Deployment")
        return deployment["spec"]["template"]["spec"].get("affinity")

    assert affinity() is None
    [term] = affinity("replicas=2")["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    [deployment] = of_kind(rendered(helm, "replicas=2"), "Deployment")
    assert term["podAffinityTerm"]["labelSelector"] == deployment["spec"]["selector"]
    assert affinity("replicas=2", "affinity.podAffinity.x=1") == {"podAffinity": {"x": 1}}


def test_common_labels_are_on_all_objects_and_never_replace_the_chart_s_own(helm: Helm) -> None:
    own = "app\\.kubernetes\\.io/name"
    settings = ("team=ml", f"{own}=mine"), ("team=web", f"{own}=mine", "pod=yes")
    objects = rendered(
        helm,
        *(f"commonLabels.{setting}" for setting in settings[0]),
        *(f"podLabels.{setting}" for setting in settings[1]),
        *(f"metrics.{name}.enabled=true" for name in ("serviceMonitor", "podMonitor", "dashboards", "prometheusRule")),
    )
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            labels = item["metadata"]["labels"]
            assert (labels["team"], labels["app.kubernetes.io/name"]) == ("ml", "heterps"), item["kind"]
    [deployment] = of_kind(objects, "Deployment")
    assert not {"team", "pod"} & set(deployment["spec"]["selector"]["matchLabels"])
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert (labels["team"], labels["pod"], labels["app.kubernetes.io/name"]) == ("web", "yes", "heterps")


def test_objects_of_the_user_are_templates(helm: Helm) -> None:
    settings = (
        "extraObjects[0].apiVersion=v1",
        "extraObjects[0].kind=ConfigMap",
        "extraObjects[0].metadata.name=\\{\\{ .Release.Name \\}\\}-more",
        "dnsPolicy=None",
        "dnsConfig.nameservers={10.0.0.10}",
    )
    objects = rendered(helm, *settings)
    assert [item["metadata"]["name"] for item in of_kind(objects, "ConfigMap")] == ["heterps-more"]
    [deployment] = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert (pod["dnsPolicy"], pod["dnsConfig"]) == ("None", {"nameservers": ["10.0.0.10"]})


def test_a_network_policy_admits_prometheus_to_the_metrics_alone(helm: Helm) -> None:
    objects = rendered(helm)
    [policy], [deployment] = of_kind(objects, "NetworkPolicy"), of_kind(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    prometheus = {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    assert policy["spec"]["ingress"] == [
        {"ports": [{"port": "metrics", "protocol": "TCP"}],
         "from": [{"namespaceSelector": {}, "podSelector": prometheus}]},
    ]  # fmt: skip
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    option, _, peers = container["args"][-1].partition("=")
    assert option == "--metrics-from"  # for the policies of jobs
    assert json.loads(peers) == policy["spec"]["ingress"][0]["from"]
    assert [port["name"] for port in container["ports"]] == ["metrics"]
    assert of_kind(rendered(helm, "networkPolicy.enabled=false"), "NetworkPolicy") == []


def test_the_operator_s_own_labels_win_and_those_of_jobs_do_not(helm: Helm) -> None:
    """The operator says to which namespace a job belongs; a job cannot claim another namespace."""
    assert of_kind(rendered(helm), "ServiceMonitor", "PodMonitor") == []
    objects = rendered(
        helm,
        "metrics.serviceMonitor.enabled=true",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
    )
    [operator], [jobs] = of_kind(objects, "ServiceMonitor"), of_kind(objects, "PodMonitor")
    [endpoint] = operator["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    endpoint = {
        "path": "/metrics",
        "interval": "15s",
        "honorLabels": False,
        "metricRelabelings": [{"action": "labeldrop", "regex": "exported_namespace"}],
    }
    # Pods that an operator of 0.1.0 has started keep their port's name when the operator is upgraded.
    assert jobs["spec"]["podMetricsEndpoints"] == [{"port": name, **endpoint} for name in ("http-metrics", "metrics")]
    assert jobs["metadata"]["labels"]["release"] == "prometheus"
    assert jobs["spec"]["namespaceSelector"] == {"any": True}


def test_the_pod_monitor_selects_coordinators_by_their_labels_and_port(helm: Helm) -> None:
    objects = rendered(helm, "metrics.podMonitor.enabled=true", "watchNamespaces={a,b}")
    [monitor] = of_kind(objects, "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod_labels("flights", COORDINATOR).items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}
    [container] = pod_of(COORDINATOR)["spec"]["containers"]
    names = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert [port["containerPort"] for port in container["ports"] if port["name"] in names] == [7401]


def test_pools_of_the_values_need_the_scope_of_a_namespace(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    pool = {"deviceType": "CPU", "maxUnits": 4, "pricePerUnitHour": "0.04"}
    values.write_text(yaml.safe_dump({"pools": {"cpu": pool}}))
    answer = helm("template", "heterps", str(CHART), f"--values={values}")
    assert "pools: is for scope namespace" in answer.errors
    assert helm("template", "heterps", str(CHART), f"--values={values}", "--set=scope=namespace").code == 0


def test_custom_resources_are_those_of_the_repository_and_are_kept(helm: Helm) -> None:
    found = {item["metadata"]["name"]: item for item in of_kind(rendered(helm), "CustomResourceDefinition")}
    for path in (ROOT / "crds").glob("*.yaml"):
        item = yaml.safe_load(path.read_text())
        name = item["metadata"]["name"]
        assert found[name].pop("metadata") == {
            "annotations": {"helm.sh/resource-policy": "keep"},
            **item.pop("metadata"),
        }
        assert found[name] == item
    for item in of_kind(rendered(helm, "crds.keep=false"), "CustomResourceDefinition"):
        assert "annotations" not in item["metadata"]
    assert of_kind(rendered(helm, "crds.enabled=false"), "CustomResourceDefinition") == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("replicaz=2", "additional properties 'replicaz' not allowed"),
        ("image.tagg=x", "additional properties 'tagg' not allowed"),
        ("replicas=3", "maximum: got 3, want 2"),
        ("replicas=two", "got string, want integer"),
        ("image.digest=latest", "does not match pattern"),
        ("watchNamespaces={Team}", "does not match pattern"),
        ("operator.prometheusUrl=prometheus:9090", "does not match pattern"),
        ("operator.logFormat=xml", "value must be one of 'text', 'json'"),
        ("metrics.port=80", "minimum: got 80"),
        ("serviceAccount.create=false", "serviceAccount.name: must be given"),
        ("scope=team", "value must be one of 'all', 'namespace', 'cluster'"),
        ("pools.cpu=null,pools.gpu.deviceType=CPU", "at '/pools/gpu': missing properties 'maxUnits'"),
        ("scope=namespace,pools.Cpu.maxUnits=1", "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused(helm: Helm, setting: str, words: str) -> None:
    answer = helm("template", "heterps", str(CHART), f"--set={setting}")
    assert answer.code
    assert words in answer.errors


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(helm: Helm, admin: Kubectl) -> Iterator[Installed]:
    """The chart is installed; its pod cannot start, as the image is missing."""
    with installed_chart(helm, admin, CHART) as on_cluster:
        yield on_cluster


@pytest.mark.parametrize("settings", [(), USER_OF_THE_CLUSTER])
def test_a_restricted_namespace_takes_the_operator_s_pod(
    helm: Helm, kubectl: Kubectl, admin: Kubectl, settings: tuple[str, ...]
) -> None:
    admin("label", "namespace", str(kubectl.namespace), "pod-security.kubernetes.io/enforce=restricted")
    objects = rendered(helm, *settings, "serviceAccount.create=false", "serviceAccount.name=default")
    [deployment] = of_kind(objects, "Deployment")
    pod = {**deployment["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {**pod["metadata"], "name": "operator"}
    wide = changed(pod, "spec.hostNetwork", True)

    def answer_to(document: Object) -> Answer:
        return kubectl.try_to("create", "--dry-run=server", "--filename=-", text=json.dumps(document))

    wait_until("the level is in force", lambda: "violates PodSecurity" in answer_to(wide).errors, 30)
    answer = answer_to(pod)
    assert answer.code == 0, answer.errors


@pytest.mark.usefixtures("own_cluster")  # which has both families
def test_the_service_of_the_metrics_has_the_families_that_it_asks_for(helm: Helm, kubectl: Kubectl) -> None:
    both = ["IPv4", "IPv6"]
    for policy, families in (("SingleStack", both[:1]), ("PreferDualStack", both), ("RequireDualStack", both)):
        [service] = of_kind(rendered(helm, f"metrics.ipFamilyPolicy={policy}"), "Service")
        del service["metadata"]["namespace"]
        text = kubectl("create", "--dry-run=server", "--filename=-", "--output=json", text=json.dumps(service))
        assert json.loads(text)["spec"]["ipFamilies"] == families


def job_for_pods() -> Object:
    """Return a valid job that the chart's admission policy admits."""
    job = changed(changed(parsed(JOB), "spec.image", "example.com/flights:1"), "spec.checkpoint", {"path": "/shared/x"})
    return changed(job, "spec.data.train", "s3://bucket/train/")


def test_a_job_that_cannot_run_in_pods_is_refused_at_apply(installed: Installed, admin: Kubectl) -> None:
    job = job_for_pods()
    wrong = {
        "spec.image": changed(job, "spec.image", ...),
        "spec.checkpoint.path": changed(job, "spec.checkpoint", {}),
        "spec.data.train": changed(job, "spec.data.train", "data/train"),
        "spec.data.evaluation": changed(job, "spec.data.evaluation", "data/test"),
    }

    def answer_to(document: Object) -> Answer:
        return admin.try_to("apply", "--dry-run=server", "--filename=-", text=json.dumps(document))

    # The API server needs a moment for a new policy.
    wait_until("the policy is in force", lambda: answer_to(wrong["spec.image"]).code, 30)
    for field, document in wrong.items():
        [problem] = cluster_problems(load_schemas()["HeterPSJob"].with_defaults(document))
        assert f"{field}: {problem.message}" in answer_to(document).errors, "the words of heterps submit"
    assert answer_to(job).code == 0


def refused(admin: Kubectl, asked: list[tuple[str, str]], namespace: str = "default", user: str = USER) -> set[str]:
    """Return those of these verbs and resources (`pods/log`, `leases.coordination.k8s.io`) that a user may not use."""
    reviews = []
    for verb, text in asked:
        name, _, subresource = text.partition("/")
        resource, _, group = name.partition(".")
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        spec = {"user": user, "resourceAttributes": {**attributes, "subresource": subresource}}
        reviews.append({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    # kubectl prints a document per object: keep only the answers, one per line, in the order of the questions.
    said = admin("create", "--filename=-", '--output=jsonpath={.status.allowed}{"\\n"}', text=list_of(reviews)).split()
    return {f"{verb} {name}" for (verb, name), allowed in zip(asked, said, strict=True) if allowed != "true"}


def may(admin: Kubectl, verb: str, resource: str, namespace: str = "default", user: str = USER) -> bool:
    return not refused(admin, [(verb, resource)], namespace, user)


ALLOWED = [
    ("watch", "heterpsjobs.heterps.io"),
    ("patch", "heterpsjobs.heterps.io/status"),
    ("delete", "heterpsjobs.heterps.io"),
    ("list", "devicepools.heterps.io"),
    ("patch", "devicepools.heterps.io/status"),
    ("watch", "nodes"),
    ("create", "pods"),
    ("delete", "pods"),
    ("get", "pods/log"),
    ("update", "heterpsjobstates.heterps.io"),
    ("list", "configmaps"),
    ("patch", "configmaps"),
    ("patch", "services"),
    ("create", "secrets"),
    ("get", "secrets"),
    ("create", "events"),
    ("patch", "networkpolicies.networking.k8s.io"),
    ("patch", "poddisruptionbudgets.policy"),
    ("patch", "podgroups.scheduling.volcano.sh"),
]
DENIED = [
    ("patch", "heterpsjobs.heterps.io"),
    ("update", "devicepools.heterps.io"),
    ("list", "secrets"),
    ("watch", "secrets"),
    ("delete", "secrets"),
    ("watch", "configmaps"),
    ("update", "configmaps"),
    ("delete", "heterpsjobstates.heterps.io"),
    ("list", "poddisruptionbudgets.policy"),
    ("delete", "services"),
    ("create", "events.events.k8s.io"),
    ("patch", "pods"),
    ("create", "pods/exec"),
    ("get", "customresourcedefinitions.apiextensions.k8s.io"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("patch", "nodes"),
    ("create", "leases.coordination.k8s.io"),
]


def test_the_operator_may_do_what_it_has_to_and_nothing_else(installed: Installed, admin: Kubectl) -> None:
    wait_until("the roles hold", lambda: not refused(admin, ALLOWED), 20)
    assert refused(admin, DENIED) == {f"{verb} {resource}" for verb, resource in DENIED}
    assert may(admin, "update", "leases.coordination.k8s.io", NAMESPACE)


def test_rights_of_people_follow_the_cluster_s_own_roles(
    installed: Installed, kubectl: Kubectl, admin: Kubectl
) -> None:
    assert kubectl.namespace is not None
    for role in ("view", "edit"):
        kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
    wait_until(
        "the roles hold", lambda: may(admin, "patch", "heterpsjobs.heterps.io", kubectl.namespace or "", "editer"), 20
    )
    asked = [
        (user, verb, may(admin, verb, "heterpsjobs.heterps.io", kubectl.namespace, user))
        for user in ("viewer", "editer")
        for verb in ("list", "patch")
    ]
    assert asked == [
        ("viewer", "list", True), ("viewer", "patch", False), ("editer", "list", True), ("editer", "patch", True),
    ]  # fmt: skip
    assert not may(admin, "patch", "devicepools.heterps.io", kubectl.namespace, "editer")
    kinds = [("get", "heterpsjobstates.heterps.io")]
    writes = [(verb, "heterpsjobstates.heterps.io") for verb in ("create", "update", "patch", "delete")]
    for user in ("viewer", "editer"):
        assert refused(admin, kinds + writes, kubectl.namespace, user) == {f"{verb} {kind}" for verb, kind in writes}


def test_everything_is_taken_by_the_api_server_and_an_upgrade_changes_it(installed: Installed, admin: Kubectl) -> None:
    installed("upgrade", "heterps", str(CHART), "--set=replicas=2", "--set=watchNamespaces={default}")
    deployment = json.loads(admin("get", "deployment", "heterps", f"--namespace={NAMESPACE}", "--output=json"))
    assert deployment["spec"]["replicas"] == 2
    assert admin.items("poddisruptionbudgets", f"--namespace={NAMESPACE}")[0]["metadata"]["name"] == "heterps"
    wait_until("the Role holds", lambda: may(admin, "create", "pods", "default"), 20)
    wait_until("the ClusterRole is gone", lambda: not may(admin, "create", "pods", "kube-public"), 20)
    assert may(admin, "watch", "nodes")
    installed("upgrade", "heterps", str(CHART), "--reset-values")
    wait_until("the ClusterRole is back", lambda: may(admin, "create", "pods", "kube-public"), 20)


def test_uninstalling_leaves_the_jobs(installed: Installed, kubectl: Kubectl, admin: Kubectl) -> None:
    kubectl.apply(parsed(CPU), job_for_pods())
    installed("uninstall", "heterps")
    assert kubectl.get("heterpsjob", "flights")["metadata"]["name"] == "flights"
    wait_until("the roles are gone", lambda: not may(admin, "create", "pods"), 20)
    installed("install", "heterps", str(CHART))
    kubectl("delete", "heterpsjob", "flights")
    kubectl("delete", "devicepools", "--all")


# --- a job, from submission to its end --------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_a_job_lives_with_the_operator_of_the_chart(
    installed: Installed, kubectl: Kubectl, admin: Kubectl, tmp_path: Path
) -> None:
    """The operator runs in the chart's own pods, one of which is killed; the user may `edit` in one namespace."""
    assert kubectl.namespace is not None
    tmp_path.chmod(0o777)
    job = ClusterJob(
        kubectl, connect(str(admin.kubeconfig)), tmp_path / "shared", "told", spec={"model.entrypoint": MODEL}
    )
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([job.pool, job.job]))
    kubectl("create", "serviceaccount", "ann")
    person = kubeconfig_of(admin, tmp_path, "ann", kubectl.namespace)

    def heterps(*arguments: str) -> Answer:
        command = [sys.executable, "-m", "heterps_operator", *arguments]
        ran = subprocess.run(
            command,
            env={**os.environ, "KUBECONFIG": str(person)},
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    refused_first = heterps("status")
    assert refused_first.code == 2
    assert f"you are not allowed to list heterpsjobs in namespace {kubectl.namespace}" in refused_first.errors
    assert "--clusterrole heterps-viewer" in refused_first.errors
    kubectl("create", "rolebinding", "ann", "--clusterrole=edit", f"--serviceaccount={kubectl.namespace}:ann")
    wait_until("the binding holds", lambda: heterps("status").code == 0, 20)
    # Pools belong to cluster administrators; a file that repeats them can still be submitted.
    kubectl.apply(job.pool)
    job.keep_profile()

    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(operator_values()))
    installed("upgrade", "heterps", str(CHART), f"--values={values}", "--set=replicas=2", "--wait", "--timeout=600s")

    def active() -> str:
        """Return the pod that holds the Lease."""
        lease = json.loads(admin("get", "lease", "heterps", f"--namespace={NAMESPACE}", "--output=json"))
        return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]

    try:
        with ThreadPoolExecutor(2) as executor:
            with held(job):  # it trains while the commands observe it
                waiting = executor.submit(heterps, "submit", str(file), "--wait")
                wait_until("the job is there", lambda: heterps("status", "told").code == 0, 60)
                wait_until("its first pod runs", lambda: job.pods("coordinator"), 120)
                following = executor.submit(heterps, "logs", "told", "--follow")
                job.wait_for_step(2)
                seen = {command: heterps(command, "told") for command in ("top", "logs", "explain", "status")}
                first = active()
                admin("delete", "pod", first, f"--namespace={NAMESPACE}", "--grace-period=0", "--force")
                wait_until("the other replica works", lambda: active() not in ("", first), 60)
            end, followed = waiting.result(timeout=300), following.result(timeout=60)
    finally:
        print(admin.try_to("logs", "deployment/heterps", f"--namespace={NAMESPACE}").output)  # noqa: T201
        kubectl("delete", "heterpsjob", "told", "--ignore-not-found")
        kubectl("delete", "devicepool", job.pool_name)
    assert end.code == 0, end.output + end.errors
    assert "you may neither read nor change DevicePools" in end.output
    for words in ("HeterPSJob told: created", " Running", "told: trained"):
        assert words in end.output
    assert {command: answer.code for command, answer in seen.items()} == dict.fromkeys(seen, 0)
    assert followed.code == 0, followed.errors
    pods_at_the_start, pods_that_came = "coordinator  | ", "worker-0-0   | "
    assert pods_at_the_start in followed.output
    assert pods_that_came in followed.output
    assert set(seen["logs"].output.splitlines()) <= set(followed.output.splitlines())
    for command, expected in {
        "top": ("stage-0", "worker-0-0", "ps-0", "coordinator", "predicted"),
        "logs": ("coordinator | ", "worker-0-0 | ", "ps-0 | "),
        "explain": ("PlanComputed", "the cheapest plan of each other kind"),
        "status": ("Profiled", "PlanComputed", "[tables..output]"),
    }.items():
        shown = " ".join(seen[command].output.split())  # independent of the terminal's width
        assert [words for words in expected if words not in shown] == []
