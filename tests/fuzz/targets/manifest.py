"""Manifests: files of users, and their values."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from heterps_operator.addresses import below, is_uri, redacted
from heterps_operator.api.job import JobSpec
from heterps_operator.api.manifest import check_objects, read_objects
from heterps_operator.api.pool_list import read_pools
from heterps_operator.api.quantity import parse_quantity
from heterps_operator.api.yaml_source import read_documents
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.reading.pools import declared_capacity
from heterps_operator.kubernetes.reading.readable import POOL, check
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PlanDocument
from heterps_runtime.errors import UserError
from heterps_runtime.quantity import parse_bytes
from heterps_runtime.store.initial import EmbeddingInit
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.fuzz.targets.files import memory_file

_ROOT = Path(__file__).parents[3]
_EXAMPLE = _ROOT / "examples" / "flights" / "job.yaml"
_FIXTURES = _ROOT / "tests" / "fixtures" / "v1"


def _read_yaml(data: bytes) -> None:
    read_documents(data.decode(), "job.yaml")


def _validate(data: bytes) -> None:
    """Validate objects, and read them as the control loop and the runtime do."""
    objects = parse(data)
    if not isinstance(objects, list):
        return
    check_objects(objects)
    job, *pools = objects
    manifest = read_objects(job, pools)
    JobSpec.from_manifests(manifest.job, manifest.pools)
    RunConfig.from_json(manifest.run_configuration("/work"))


def _read_pools(data: bytes) -> None:
    """Read the pools of an operator as it starts, and again when the file has changed."""
    found = read_pools(data.decode(), "pools.yaml", {})
    assert not set(found.pools) & set(found.refused)
    for pool in found.pools.values():
        check(POOL, pool)
        declared_capacity(pool, 0)
    assert read_pools(data.decode(), "pools.yaml", found.pools).pools.keys() == found.pools.keys()


def _read_configuration(data: bytes) -> None:
    with memory_file(data) as path:
        RunConfig.load(path)


def _read_plan(data: bytes) -> None:
    PlanDocument.from_json(parse(data))


def _read_quantity(data: bytes) -> None:
    parse_quantity.__wrapped__(data.decode())  # without its cache, which would hide lines that repeated inputs reach


def _read_bytes(data: bytes) -> None:
    parse_bytes(data.decode(errors="replace"), "field")


def _read_address(data: bytes) -> None:
    """Read an address of data or checkpoints, which is whatever the user has written."""
    text = data.decode(errors="replace")
    found = below(text, "model")
    assert is_uri(found) == is_uri(text)
    assert len(redacted(text)) <= len(text) + 3 * text.count("@")


def _read_initial(data: bytes) -> None:
    options = parse(data)
    if isinstance(options, dict):
        EmbeddingInit.from_manifest(options)


def _documents() -> list[bytes]:
    pools_first = list(yaml.safe_load_all(_EXAMPLE.read_text()))
    return [json.dumps(sorted(pools_first, key=lambda item: item["kind"] != "HeterPSJob")).encode()]


def _pools() -> list[bytes]:
    pools = [item for item in yaml.safe_load_all(_EXAMPLE.read_text()) if item["kind"] == "DevicePool"]
    return [yaml.safe_dump_all(pools).encode()]


def _plan() -> list[bytes]:
    return [json.loads((_FIXTURES / "operator" / "plan.json").read_text())["plan.json"].encode()]


TARGETS = [
    Target("manifest.yaml", _read_yaml, (ManifestError, UnicodeDecodeError), lambda: [_EXAMPLE.read_bytes()],
           Form.TEXT, longest=4096, lines_per_byte=2000.0, memory_per_byte=4000.0),
    Target("manifest.objects", _validate, (ManifestError, NotJsonError), _documents, Form.JSON, lines_per_byte=500.0),
    Target("manifest.pools", _read_pools, (ManifestError, UnicodeDecodeError), _pools, Form.TEXT,
           longest=4096, lines_per_byte=4000.0, memory_per_byte=8000.0),
    Target("manifest.configuration", _read_configuration, (UserError,),
           lambda: [(_FIXTURES / "run-configuration.json").read_bytes()], Form.JSON),
    Target("manifest.plan", _read_plan, (ValueError, NotJsonError), _plan, Form.JSON),
    Target("manifest.quantity", _read_quantity, (ValueError,), lambda: [b"10Gi", b"-1.5e3", b"500m"], Form.TEXT,
           longest=2048),
    Target("manifest.bytes", _read_bytes, (UserError,), lambda: [b"10Gi", b"1.5M"], Form.TEXT, longest=2048),
    Target("manifest.address", _read_address, (),
           lambda: [b"s3://bucket/c?region=x", b"see s3://KEY:SECRET@bucket/c and a@b", b"/data/c"], Form.TEXT),
    Target("manifest.initial", _read_initial, (ValueError, NotJsonError),
           lambda: [b'{"distribution": "normal", "mean": "0", "std": "1"}', b'{"distribution": "uniform", "low": -1}'],
           Form.JSON),
]  # fmt: skip
