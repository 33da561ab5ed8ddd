"""A cluster accepts and refuses the same objects as the command line, with the same messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heterps_operator.api.schema import load_schemas
from heterps_operator.control.changes import Effect
from heterps_operator.errors import MISSING
from tests.cluster.api_server import DRY_RUN, ApiServer, Reply, collection
from tests.cluster.building import ROOT
from tests.cluster.kubectl import Kubectl
from tests.heterps_operator.api.samples import JOB, changed, parsed
from tests.heterps_operator.api.test_rules import CREATE, UPDATE
from tests.heterps_operator.control.test_changes import CHANGES, OLD

Manifest = dict[str, Any]

pytestmark = pytest.mark.usefixtures("custom_resources")


def words_of(manifest: Manifest, old: Manifest | None = None) -> list[str]:
    """Return the rules that the command line reports as broken: what must hold, and what to do."""
    kind = load_schemas()[manifest["kind"]]
    before = MISSING if old is None else kind.with_defaults(old)
    return [f"{fault.message}; {fault.fix}" for fault in kind.faults(kind.with_defaults(manifest), before)]


class Store:
    """Objects in a test's namespace, for proposed changes."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self._versions: dict[str, str] = {}

    def keep(self, manifest: Manifest) -> None:
        reply = self.server.ask("POST", collection(manifest, self.namespace), manifest)
        assert reply.code == 201, reply.message
        self._versions[manifest["metadata"]["name"]] = reply.body["metadata"]["resourceVersion"]

    def propose(self, manifest: Manifest) -> Reply:
        """Return the server's response if this replaced the stored object of the same name."""
        name = manifest["metadata"]["name"]
        body = changed(manifest, "metadata.resourceVersion", self._versions[name])
        return self.server.ask("PUT", f"{collection(manifest, self.namespace)}/{name}?{DRY_RUN}", body)


def test_the_example_is_taken(resources: Kubectl) -> None:
    resources("apply", f"--filename={ROOT / 'examples/flights/job.yaml'}")
    job = resources.get("heterpsjob", "flights")
    assert job["spec"]["training"]["globalBatchSize"] == 4096
    assert {pool["metadata"]["name"] for pool in resources.items("devicepools")} == {"cpu", "accelerator"}


def test_defaults_are_those_of_the_command_line(resources: Kubectl) -> None:
    resources.apply(parsed(JOB))
    kind = load_schemas()["HeterPSJob"]
    assert resources.get("heterpsjob", "flights")["spec"] == kind.with_defaults(parsed(JOB))["spec"]


def test_every_rule_for_new_objects_holds_in_a_cluster(server: ApiServer) -> None:
    for manifest, field, good, bad, _ in CREATE:
        allowed = manifest if good is ... else changed(manifest, field, good)
        reply = server.would_create(collection(manifest, "default"), allowed)
        assert reply.code == 201, reply.message
        refused = changed(manifest, field, bad)
        reply, expected = server.would_create(collection(manifest, "default"), refused), words_of(refused)
        assert reply.refused, refused
        assert expected
        assert [words for words in expected if words not in reply.message] == [], reply.message


def test_every_rule_for_changes_holds_in_a_cluster(resources: Kubectl, server: ApiServer) -> None:
    store = Store(server, str(resources.namespace))
    for number, (manifest, field, good, bad, _) in enumerate(UPDATE):
        before = changed(manifest, "metadata.name", f"n{number}")
        store.keep(before)
        reply = store.propose(changed(before, field, good))
        assert reply.code == 200, reply.message
        after = changed(before, field, bad)
        reply, [words] = store.propose(after), words_of(after, before)
        assert reply.refused, after
        assert words in reply.message


def test_changes_are_refused_that_the_controller_does_not_take(resources: Kubectl, server: ApiServer) -> None:
    store = Store(server, str(resources.namespace))
    suspended = changed(OLD, "spec.runPolicy.suspend", True)
    store.keep(suspended)
    for field, value, _, effect in CHANGES:
        reply = store.propose(changed(suspended, f"spec.{field}", value))
        if effect == Effect.REFUSED:
            assert reply.refused, field
            assert "cannot be changed" in reply.message
        else:
            assert reply.code == 200, reply.message


def test_an_unknown_field_is_refused(resources: Kubectl) -> None:
    job = changed(parsed(JOB), "spec.data.lable", "late")
    answer = resources.try_to("create", "--validate=strict", "--filename=-", text=json.dumps(job))
    assert answer.code
    assert 'unknown field "spec.data.lable"' in answer.errors
