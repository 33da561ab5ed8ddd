"""The flights example: an honest data set, an ordinary PyTorch model, and the same ids with and without HeterPS."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from heterps_operator.api.manifest import load_manifest
from heterps_runtime.data import DataSpec, open_dataset

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights"
ACTUAL = ("dep_time", "dep_delay", "arr_time", "air_time")  # what is only known when it is too late


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """Imports modules of the example as a user's Python does, whose path holds its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("flights") / "data"
    said = run_prepare(output)
    assert "train  258,579 flights, 24.3% more than 15 minutes late" in said
    assert "test    68,767 flights, 21.5% more than 15 minutes late" in said
    return output


@pytest.fixture(scope="module")
def spec(prepared: Path) -> dict[str, Any]:
    """`spec` of the example's job, with the data prepared here."""
    spec: dict[str, Any] = load_manifest(EXAMPLE / "job.yaml").job["spec"]
    for split in ("train", "evaluation"):
        spec["data"][split] = str(prepared / Path(spec["data"][split]).name)
    return spec


@pytest.fixture(scope="module")
def source(example: Any) -> Any:
    return example("prepare").read_source()


@pytest.fixture(scope="module")
def built(example: Any, source: Any) -> Any:
    """The whole table, and which rows are for training."""
    return example("prepare").build(source)


def run_prepare(output: Path) -> str:
    command = [sys.executable, str(EXAMPLE / "prepare.py"), "--output", str(output)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_preparing_again_changes_nothing(prepared: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in prepared.rglob("*.parquet")}
    assert "is up to date" in run_prepare(prepared)
    assert {p: p.stat().st_mtime_ns for p in prepared.rglob("*.parquet")} == before
    assert len(before) == 5


def test_the_test_set_is_the_last_days_of_each_month(source: Any, built: Any) -> None:
    _, train = built
    flights = source["flights"].filter(pc.is_valid(source["flights"]["arr_delay"]))
    days = flights["day"].to_numpy()
    assert train.tolist() == (days < 25).tolist()
    assert set(np.unique(flights["month"].to_numpy()[~train])) == set(range(1, 13))


def test_no_feature_knows_what_happened_after_the_planned_departure(example: Any, source: Any, built: Any) -> None:
    table, _ = built
    assert not set(table.column_names) & {*ACTUAL, "arr_delay"}
    flights = source["flights"]
    for name in ACTUAL:
        i = flights.column_names.index(name)
        flights = flights.set_column(i, name, pa.nulls(len(flights), flights[name].type))
    # Delays turned round: every label changes sides or stays, and nothing else may move.
    i = flights.column_names.index("arr_delay")
    flights = flights.set_column(i, "arr_delay", pc.subtract(0, flights["arr_delay"]))
    other, _ = example("prepare").build(source | {"flights": flights})
    assert other.drop_columns(["late"]).equals(table.drop_columns(["late"]))
    assert not other["late"].equals(table["late"])


def test_numbers_are_standardised_by_the_training_days_alone(prepared: Path, spec: dict[str, Any]) -> None:
    train, test = (pq.read_table(prepared / split) for split in ("train", "test"))
    complete = ("distance", "departure_minute", "planned_minutes", "departures")
    for name in complete:
        values = train[name].to_numpy().astype(np.float64)
        assert abs(values.mean()) < 1e-5
        assert abs(values.std() - 1) < 1e-5
    assert any(abs(float(test[name].to_numpy().mean())) > 1e-3 for name in complete)
    for name in spec["data"]["dense"]:
        assert np.isfinite(train[name].to_numpy()).all()


def test_the_model_takes_what_the_manifest_gives(example: Any, spec: dict[str, Any], tmp_path: Path) -> None:
    model = example("flights.model").build(**spec["model"]["arguments"])
    parameters = list(inspect.signature(model.forward).parameters)
    data = DataSpec.from_manifest(spec["data"], spec["model"]["loss"], tmp_path / "cache")
    dataset = open_dataset(data, "evaluation")
    dataset.check_features(parameters)
    assert sorted(parameters) == sorted(dataset.schema.features)
    assert dataset.num_rows == 68_767
    assert [name for name, _ in model.named_children()] == [
        "flight_tables",
        "route_tables",
        "plane_tables",
        "time_tables",
        "concat",
        "linear1",
        "relu1",
        "linear2",
        "relu2",
        "output",
    ]


def test_predicting_without_heterps_sees_the_same_ids(example: Any, spec: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = example("flights.model").build(embedding_dim=4, hidden=(8, 4))
    table = pq.read_table(spec["data"]["evaluation"]).slice(0, 500)
    plain = example("predict").predict(model, table, spec["data"])

    dataset = open_dataset(
        DataSpec.from_manifest(spec["data"], spec["model"]["loss"], tmp_path / "cache"), "evaluation"
    )
    batch = dataset.batch(np.arange(500), dataset.schema.features)
    tables = {n.rsplit(".", 1)[-1]: m for n, m in model.named_modules() if isinstance(m, torch.nn.Embedding)}
    inputs = {n: torch.from_numpy(batch[n]) for n in dataset.schema.features}
    inputs |= {n: inputs[n] % tables[n].num_embeddings for n in dataset.schema.single_valued}
    with torch.no_grad():
        assert torch.equal(model(**inputs), torch.from_numpy(plain))
    assert batch["label"].tolist() == table["late"].to_pylist()


def test_the_model_and_the_prediction_do_not_import_heterps() -> None:
    sources = [EXAMPLE / "predict.py", *(EXAMPLE / "flights").glob("*.py")]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "torch" in imported
    assert not any(name.startswith("heterps") for name in imported)


def test_the_examples_auc_is_exact(example: Any) -> None:
    from scipy.stats import rankdata  # half a second, which only the process that runs this test pays

    rng = np.random.default_rng(0)
    logits = rng.integers(0, 50, 2000).astype(np.float32)  # with ties
    labels = (rng.random(2000) < 0.3).astype(np.int8)
    late = int(labels.sum())
    expected = (rankdata(logits)[labels == 1].sum() - late * (late + 1) / 2) / (late * (2000 - late))
    assert example("predict").area_under_curve(logits, labels) == pytest.approx(expected)
