"""Credentials in addresses are refused, and no message repeats them."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from heterps_operator.addresses import below, redacted
from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.manifest import Manifest
from heterps_operator.api.schema import load_schemas
from heterps_operator.cli.log_format import LOG_FORMATS
from heterps_runtime.contract import CREDENTIALS_PATTERN
from tests.heterps_operator.helpers.job_world import World, events

REFUSED = (
    "s3://KEY:SECRET@bucket/c",
    "s3://KEY:SEC/RET@bucket/c",
    "S3://KEY@bucket/c",
    "hdfs://user:SECRET@host:8020/c",
    "abfs://:SECRET@account.blob.core.windows.net/c",
    "abfs://container:SECRET@account.dfs.core.windows.net/c",
    "gs://user:SECRET@bucket",
)
REFUSED_OPTIONS = (
    "abfs://container@account.dfs.core.windows.net/c?sv=2025&sig=SECRET%3D&se=1",
    "abfs://container@account.dfs.core.windows.net/c?account_key=SECRET",
    "abfs://account.blob.core.windows.net?client_id=x&client_secret=SECRET#y",
    "ABFSS://c@a.dfs.core.windows.net/?sas_token=SECRET",
)
ALLOWED = (
    "s3://bucket/c?endpoint_override=http%3A%2F%2Fhost%3A9000",
    "s3://bucket/c?endpoint_override=http://host:9000",
    "s3://bucket/a@b:c",
    "gs://anonymous@bucket/c",
    "abfs://container@account.dfs.core.windows.net/c",
    "abfs://container@account.dfs.core.windows.net/c?credential_kind=workload_identity&client_id=x",
    "abfs://container@account.dfs.core.windows.net/sig=a",
    "hdfs://namenode:8020/c",
    "hdfs://namenode:8020",
    "hdfs://[::1]:8020/c",
    "file:///C:/c",
    "/data/user:name@host",
    "data/c",
)


@pytest.mark.parametrize("address", REFUSED)
def test_credentials_are_recognised_and_redacted(address: str) -> None:
    assert re.match(CREDENTIALS_PATTERN, address)
    told = redacted(f"cannot open {address}: no such bucket")
    assert "SEC" not in told
    assert "KEY" not in told
    assert "://***@" in told


@pytest.mark.parametrize("address", REFUSED_OPTIONS)
def test_secret_options_are_recognised_and_redacted(address: str) -> None:
    assert re.match(CREDENTIALS_PATTERN, address)
    told = redacted(f'cannot open "{address}": no such container')
    assert "SECRET" not in told
    assert "=***" in told
    assert told.endswith('": no such container')


@pytest.mark.parametrize("address", ALLOWED)
def test_other_addresses_and_paths_are_not_taken_for_credentials(address: str) -> None:
    assert not re.match(CREDENTIALS_PATTERN, address)


def test_the_custom_resource_has_the_same_expression() -> None:
    spec = load_schemas()["HeterPSJob"].openapi["properties"]["spec"]["properties"]
    places = (spec["data"]["properties"]["train"], spec["data"]["properties"]["evaluation"],
              spec["checkpoint"]["properties"]["path"])  # fmt: skip
    for place in places:
        [rule] = place["x-kubernetes-validations"]
        assert rule["rule"].replace("\\\\", "\\") == f"!self.matches('{CREDENTIALS_PATTERN}')"


def test_a_name_is_appended_to_the_path_and_not_to_the_query() -> None:
    assert below("s3://bucket/c?endpoint_override=x&region=y", "model") == (
        "s3://bucket/c/model?endpoint_override=x&region=y"
    )
    assert below("s3://bucket", "model") == "s3://bucket/model"
    assert below("/data/c/", "model") == "/data/c/model"
    assert below("s3://", "model") == "s3:///model"
    assert below("s3://[bucket/c#x", "model") == "s3://[bucket/c/model#x", "no client has parsed it yet"
    job = {"spec": {"checkpoint": {"path": "s3://bucket/c/?region=y"}}}
    assert pod_configuration(Manifest(job, [], Path("/")))["modelPath"] == "s3://bucket/c/model?region=y"


def test_a_long_message_is_redacted_at_once() -> None:
    """An expression that backtracks would need hours."""
    for text in ("a@b x://" + "a:" * 500_000, "a@b " + "a" * 1_000_000, "a@b " + "x://u:" * 200_000):
        assert redacted(text) == text
    assert redacted("s3://a:b@c" * 3) == "s3://***@c" * 3


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_has_no_credentials_not_even_in_a_traceback(form: str) -> None:
    try:
        raise ValueError(REFUSED[0])
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed: %s", (REFUSED[0],), (ValueError, error, None))
    text = LOG_FORMATS[form]().format(record)
    assert text.count("s3://***@bucket/c") == 2
    assert "SECRET" not in text


def test_a_job_with_credentials_that_got_into_the_cluster_is_refused_and_copied_nowhere(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.edit(lambda job: job["spec"]["checkpoint"].update(path=REFUSED[0]))
    world.controller().turn()
    assert world.condition("Planned")["reason"] == "InvalidSpec"
    assert "spec.checkpoint.path" in world.status["message"]
    assert "spec.credentials" in world.status["message"]
    assert [reason for reason, _ in events(world)] == ["InvalidSpec"]
    assert "SECRET" not in str(world.server.objects)
