"""Numbers of the manifests, and the typed view of a job."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_operator.manifest import load_manifest
from heterps_operator.quantity import decimal_text, parse_bytes, parse_decimal, parse_quantity
from heterps_operator.spec import Elasticity, JobSpec, Pool, RunPolicy, Stage, read_spec
from tests.manifests.samples import CPU, FILE, GPU, JOB, changed, dumped, parsed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10Gi", 10 * 2**30), ("1Ki", 1024), ("2k", 2000), ("3M", 3_000_000), ("1.5Mi", 1_572_864), (4096, 4096),
        ("0.5", 1), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18), ("100m", 1), ("2Ti", 2**41), ("1P", 10**15), ("0", 0),
    ],
)  # fmt: skip
def test_sizes_are_read_as_kubernetes_reads_them(text: int | str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "10GB", "10 Gi", "1e", "ten", "1.2.3", "10Gi\n"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity; .* for example 10Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["", "1,5", "$2", "nan", "inf", "1.", ".5", "1_000"])
def test_what_is_no_decimal_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a decimal number"):
        parse_decimal(text)


@given(st.decimals(min_value=0, max_value=10**8, places=7, allow_nan=False))
def test_decimal_numbers_survive_being_written(number: Decimal) -> None:
    text = decimal_text(number)
    assert "e" not in text.lower()
    assert parse_decimal(text) == number


def test_decimal_numbers_are_written_without_padding() -> None:
    assert [decimal_text(value) for value in (Decimal("2.420"), Decimal("1E+3"), 0.04, 1e-7, 100)] == [
        "2.42", "1000", "0.04", "0.0000001", "100",
    ]  # fmt: skip


def spec_of(folder: Path, text: str) -> JobSpec:
    (folder / "job.yaml").write_text(text)
    manifest = load_manifest(folder / "job.yaml")
    return read_spec(manifest.job, manifest.pools)


def test_a_job_with_defaults_reads_as_typed_values(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FILE)
    assert spec.name == "flights"
    assert spec.mode == "Auto"
    assert spec.pools == (
        Pool("cpu", "CPU", "cpu", "cpu", 1, 8, Decimal("0.04")),
        Pool("v100", "GPU", "cuda", "nvidia.com/gpu", 2, 8, Decimal("2.42")),
    )
    assert spec.pool("v100") is spec.pools[1]
    assert (spec.training.epochs, spec.training.steps, spec.training.max_staleness) == (1, None, 4)
    assert dataclasses.astuple(spec.objective) == (0, None)
    assert (spec.scheduling.method, spec.scheduling.stages) == ("optimal", ())
    assert (spec.parameter_server.replicas, spec.parameter_server.memory_limit_bytes) == (1, None)
    assert spec.run_policy == RunPolicy(False, 3, 900, None, None, "Running", 120)
    assert spec.elasticity == Elasticity("Auto", 60, 25)
    assert not spec.evaluates


def test_every_field_of_a_job_reaches_the_typed_view(tmp_path: Path) -> None:
    job = parsed(JOB)
    fields = {
        "spec.mode": "Plan",
        "spec.data.evaluation": "data/test",
        "spec.training.steps": 9,
        "spec.training.consistency": "async",
        "spec.training.maxStaleness": 2,
        "spec.training.microBatches": 8,
        "spec.objective": {"minSamplesPerSecond": "20000.5", "maxCostPerHour": "40.00"},
        "spec.scheduling": {"method": "greedy", "timeoutSeconds": 5, "stages": [{"pool": "cpu", "lastLayer": "x"}]},
        "spec.balancing": {"policy": "bno", "intervalSeconds": 3, "minGainPercent": 7},
        "spec.elasticity": {"mode": "Off", "cooldownSeconds": 1, "maxScaleDownPercent": 50},
        "spec.parameterServer": {"replicas": 0, "memoryLimit": "8Gi", "wirePrecision": "bf16"},
        "spec.runPolicy": {
            "suspend": True, "backoffLimit": 1, "startDeadlineSeconds": 2, "activeDeadlineSeconds": 3,
            "ttlSecondsAfterFinished": 4, "cleanPodPolicy": "All", "hangTimeoutSeconds": 5,
        },
    }  # fmt: skip
    for path, value in fields.items():
        job = changed(job, path, value)
    spec = spec_of(tmp_path, dumped(parsed(CPU), parsed(GPU), job))
    assert (spec.mode, spec.evaluates) == ("Plan", True)
    assert dataclasses.astuple(spec.training) == (4096, 8, None, 9, "async", 2)
    assert dataclasses.astuple(spec.objective) == (Decimal("20000.5"), Decimal("40.00"))
    assert dataclasses.astuple(spec.balancing) == ("bno", 3, 7)
    assert dataclasses.astuple(spec.elasticity) == ("Off", 1, 50)
    assert dataclasses.astuple(spec.parameter_server) == (0, 8 * 2**30, "bf16")
    assert dataclasses.astuple(spec.run_policy) == (True, 1, 2, 3, 4, "All", 5)
    assert (spec.scheduling.method, spec.scheduling.timeout_seconds) == ("greedy", 5)
    assert spec.scheduling.stages == (Stage("cpu", "x", None),)
