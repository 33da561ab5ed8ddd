"""Hundreds of invalid and extreme values: API server and command line agree about each."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.api.schema import load_schemas
from tests.cluster.api_server import ApiServer, Reply, collection
from tests.cluster.kubectl import Kubectl
from tests.heterps_operator.api.mutations import FULL, boundaries, mutations
from tests.heterps_operator.api.samples import FILE
from tests.heterps_operator.api.test_malformed import MALFORMED

pytestmark = pytest.mark.usefixtures("custom_resources")

# Values that only the command line refuses, and why: an API server sees one object at a time.
ONLY_IN_A_FILE = {
    "a DevicePool of this name already exists": "on a cluster the second is an update of the first",
    "must be the name of a DevicePool in this file": "on a cluster pools may come from elsewhere; the operator looks",
    "must not be greater than the pool's own maxUnits": "the pool is another object; the smaller limit holds",
    "must hold one pod of the pool": "the pool is another object; the planner then has no use for it",
    "must be a multiple of the pool's unitsPerPod": "the pool is another object; the planner refuses the stage",
    "the stages so far need": "the pool is another object; the planner refuses the stages",
    "must be Disabled, as all-reduce among workers of pool": "the pool is another object; the operator tells the job",
    "the file has no HeterPSJob": "pools alone can be applied",
    "the file already has a HeterPSJob": "on a cluster the second is an update of the first",
}


@pytest.fixture
def server(admin: Kubectl) -> ApiServer:
    return ApiServer(admin.kubeconfig)


def answered(server: ApiServer, manifest: dict[str, Any]) -> Reply:
    return server.would_create(collection(manifest, "default"), manifest)


@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_every_wrong_value_is_refused_and_its_field_is_named(server: ApiServer, manifest: dict[str, Any]) -> None:
    assert answered(server, manifest).code == 201
    replies = [(mutation, answered(server, mutation.manifest)) for mutation in mutations(manifest)]
    taken = [str(mutation) for mutation, reply in replies if not reply.refused]
    unnamed = [(str(m), reply.message) for m, reply in replies if reply.refused and m.field not in reply.message]
    assert taken == []
    assert unnamed == []


@pytest.mark.parametrize("manifest", FULL, ids=lambda manifest: manifest["kind"])
def test_an_extreme_value_is_taken_unless_a_rule_refuses_it_here_too(
    server: ApiServer, manifest: dict[str, Any]
) -> None:
    schema, taken = load_schemas()[manifest["kind"]], 0
    for mutation in boundaries(manifest):
        reply = answered(server, mutation.manifest)
        if reply.code == 201:
            taken += 1
            continue
        assert reply.refused, reply.message
        messages = [fault.message for fault in schema.faults(schema.with_defaults(mutation.manifest))]
        assert messages, f"{mutation}: only the server refuses it: {reply.message}"
        assert [words for words in messages if words not in reply.message] == [], str(mutation)
    assert taken >= 5


def test_malformed_files_are_refused_or_the_difference_is_known(server: ApiServer) -> None:
    known, refused = set(), 0
    for text, replacement, problems in MALFORMED:
        head, tail = FILE.rsplit(text, maxsplit=1)
        replies = []
        for document in (head + replacement + tail).split("---\n"):
            kind = "DevicePool" if "kind: DevicePool" in document else "HeterPSJob"
            # As text: an API server parses YAML as strictly as JSON, and also rejects duplicate keys.
            replies.append(server.would_create(collection({"kind": kind}, "default"), document, "application/yaml"))
        if any(reply.refused for reply in replies):
            refused += 1
            continue
        reasons = {words for words in ONLY_IN_A_FILE for problem in problems if words in problem}
        assert reasons, f"only the command line refuses {replacement!r}: {problems}"
        known |= reasons
    assert known == set(ONLY_IN_A_FILE)
    assert refused >= 45
