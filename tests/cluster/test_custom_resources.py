"""A cluster takes what the command line takes, and refuses what it refuses, in the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from heterps_operator.errors import MISSING
from heterps_operator.schema import load_schemas
from tests.cluster.building import ROOT
from tests.cluster.kubectl import Answer, Kubectl, list_of
from tests.manifests.samples import JOB, changed, parsed
from tests.manifests.test_rules import CREATE, UPDATE

Manifest = dict[str, Any]

pytestmark = pytest.mark.usefixtures("custom_resources")


@pytest.fixture
def resources(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl; pools are deleted after the test, as they belong to no namespace."""
    yield kubectl
    kubectl("delete", "nodepools", "--all")


def numbered(manifest: Manifest, field: str, value: Any, number: int) -> Manifest:
    """A copy with one field changed and a name of its own, by which a refusal tells whom it is about."""
    copy = changed(manifest, field, value)
    return copy if field == "metadata.name" else changed(copy, "metadata.name", f"n{number}")


def sent(kubectl: Kubectl, verb: str, manifests: Sequence[Manifest]) -> Answer:
    """All objects in one request to kubectl, which goes on after refusals. Nothing is kept."""
    return kubectl.try_to(verb, "--dry-run=server", "--filename=-", text=list_of(manifests))


def refusals(answer: Answer) -> dict[str, str]:
    """What was said, by the object's name."""
    _, *parts = re.split(r"^(?:Error from server|The \w+ \")", answer.errors, flags=re.M)
    found = {}
    for part in parts:
        match = re.search(r"\"?([\w.-]+)\" is invalid: (.*)", part, re.S)
        assert match, part
        found[match[1]] = match[2]
    return found


def messages(manifest: Manifest, old: Manifest | None = None) -> list[str]:
    """What the command line finds wrong."""
    kind = load_schemas()[manifest["kind"]]
    before = MISSING if old is None else kind.with_defaults(old)
    return [fault.message for fault in kind.faults(kind.with_defaults(manifest), before)]


def test_the_example_is_taken(resources: Kubectl) -> None:
    resources("apply", f"--filename={ROOT / 'examples/flights/job.yaml'}")
    job = resources.get("heterpsjob", "flights")
    assert job["spec"]["training"]["globalBatchSize"] == 4096
    assert {pool["metadata"]["name"] for pool in resources.items("nodepools")} == {"cpu", "accelerator"}


def test_defaults_are_those_of_the_command_line(resources: Kubectl) -> None:
    resources.apply(parsed(JOB))
    kind = load_schemas()["HeterPSJob"]
    assert resources.get("heterpsjob", "flights")["spec"] == kind.with_defaults(parsed(JOB))["spec"]


def test_every_rule_for_new_objects_holds_in_a_cluster(resources: Kubectl) -> None:
    allowed = [
        numbered(manifest, field, good, number) if good is not ... else changed(manifest, "metadata.name", f"n{number}")
        for number, (manifest, field, good, _, _) in enumerate(CREATE)
    ]
    answer = sent(resources, "create", allowed)
    assert answer.errors == ""
    assert len(answer.output.splitlines()) == len(allowed)

    refused = [numbered(manifest, field, bad, number) for number, (manifest, field, _, bad, _) in enumerate(CREATE)]
    said = refusals(sent(resources, "create", refused))
    assert said.keys() == {manifest["metadata"]["name"] for manifest in refused}
    for manifest in refused:
        expected = messages(manifest)
        assert expected
        assert [words for words in expected if words not in said[manifest["metadata"]["name"]]] == []


def test_every_rule_for_changes_holds_in_a_cluster(resources: Kubectl) -> None:
    before = [changed(manifest, "metadata.name", f"n{number}") for number, (manifest, *_) in enumerate(UPDATE)]
    resources.apply(*before)
    allowed = [numbered(manifest, field, good, n) for n, (manifest, field, good, _, _) in enumerate(UPDATE)]
    assert sent(resources, "replace", allowed).errors == ""
    refused = [numbered(manifest, field, bad, n) for n, (manifest, field, _, bad, _) in enumerate(UPDATE)]
    said = refusals(sent(resources, "replace", refused))
    assert said.keys() == {manifest["metadata"]["name"] for manifest in refused}
    for old, new in zip(before, refused, strict=True):
        [words] = messages(new, old)
        assert words in said[new["metadata"]["name"]]


def test_an_unknown_field_is_refused(resources: Kubectl) -> None:
    job = changed(parsed(JOB), "spec.data.lable", "late")
    answer = resources.try_to("create", "--validate=strict", "--filename=-", text=json.dumps(job))
    assert answer.code
    assert 'unknown field "spec.data.lable"' in answer.errors
