"""Batches: what a model's forward gets, for any rows in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_runtime.data import BatchOrder, DataError, Dataset, open_dataset
from heterps_runtime.data.ids import text_id
from tests.heterps_runtime.helpers.data_files import columns, make_spec, write_parquet

ALL = ("flight", "carrier", "tags", "tags_offsets", "dense")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return open_dataset(make_spec(tmp_path, write_parquet(tmp_path / "a.parquet", columns(100))), "train")


def test_rows_are_gathered_in_the_order_asked_for(dataset: Dataset) -> None:
    rows, expected = np.array([7, 2, 2, 99, 0]), columns(100)
    batch = dataset.batch(rows, ALL)
    assert batch["flight"].tolist() == [expected["flight"][r] for r in rows]
    assert batch["carrier"].tolist() == [text_id(expected["carrier"][r] or "") for r in rows]
    assert batch["dense"].tolist() == [[expected["distance"][r], expected["hour"][r]] for r in rows]
    assert batch["label"].tolist() == [expected["late"][r] for r in rows]
    assert batch["tags"].tolist() == [text_id(t) for r in rows for t in expected["tags"][r]]
    assert batch["tags_offsets"].tolist() == [0, 1, 3, 5, 5]


def test_only_what_the_model_asks_for_is_gathered(dataset: Dataset) -> None:
    assert dataset.batch(np.arange(3), ["carrier"]).keys() == {"carrier", "label"}
    assert dataset.batch(np.arange(3), ["tags", "tags_offsets"]).keys() == {"tags", "tags_offsets", "label"}


def test_arrays_go_to_torch_as_they_are(dataset: Dataset) -> None:
    for array in dataset.batch(np.arange(50), ALL).values():
        tensor = torch.from_numpy(array)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() == array.ctypes.data
        tensor += 1  # writable, and not the cache itself
    assert dataset.batch(np.array([0]), ["flight"])["flight"].tolist() == [1000]


def test_lists_are_what_an_embedding_bag_takes(dataset: Dataset) -> None:
    rows = np.array([4, 0, 5])
    batch = dataset.batch(rows, ALL)
    bag = torch.nn.EmbeddingBag(50, 3, mode="sum", dtype=torch.float64)  # a bag's sum may be close to 0
    pooled = bag(torch.from_numpy(batch["tags"]) % 50, torch.from_numpy(batch["tags_offsets"]))
    for row, vector in zip(rows, pooled, strict=True):
        ids = [text_id(t) % 50 for t in columns(100)["tags"][row]]
        assert torch.allclose(vector, bag.weight[ids].sum(dim=0))


def test_no_rows_and_rows_without_lists_are_allowed(dataset: Dataset) -> None:
    empty = dataset.batch(np.empty(0, np.int64), ALL)
    assert {n: a.shape for n, a in empty.items()} == {
        "flight": (0,),
        "carrier": (0,),
        "tags": (0,),
        "tags_offsets": (0,),
        "dense": (0, 2),
        "label": (0,),
    }
    batch = dataset.batch(np.array([0, 3]), ALL)  # rows whose lists are empty
    assert batch["tags"].shape == (0,)
    assert batch["tags_offsets"].tolist() == [0, 0]


def test_an_epoch_reads_every_row_once(dataset: Dataset) -> None:
    order = BatchOrder(dataset.num_rows, 32, seed=3)
    steps = range(order.batches.per_epoch)
    flights = [dataset.batch(order.rows(s, 0, order.batches.size(s)), ["flight"])["flight"] for s in steps]
    assert sorted(np.concatenate(flights).tolist()) == columns(100)["flight"]


def test_the_schema_names_what_a_model_may_ask_for(dataset: Dataset) -> None:
    assert dataset.schema.features == ("flight", "carrier", "tags", "tags_offsets", "dense")
    dataset.check_features(ALL)
    dataset.check_features(["carrier"])


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (["carier"], "asks for 'carier', which spec.data does not give; did you mean 'carrier'?"),
        (["hour"], "asks for 'hour', which spec.data does not give; dense columns are passed together"),
        (["flight_offsets"], "that column has one value per row and therefore no offsets"),
        (["x"], r"\(given: flight, carrier, tags, tags_offsets, dense\)"),
        (["tags"], "column 'tags' contains lists, so the model's forward must take both 'tags' and 'tags_offsets'"),
    ],
)
def test_a_model_that_asks_for_something_else_is_refused(dataset: Dataset, features: list[str], words: str) -> None:
    with pytest.raises(DataError, match=f"spec.model.entrypoint: .*{words}"):
        dataset.check_features(features)


def test_a_model_that_asks_for_numbers_which_no_one_named_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(5))
    dataset = open_dataset(make_spec(tmp_path, path, dense=[], sparse=["flight"]), "train")
    with pytest.raises(DataError, match=r"asks for 'dense'.*list numeric columns under spec\.data\.dense"):
        dataset.check_features(["flight", "dense"])
    assert dataset.batch(np.array([1]), ["flight"]).keys() == {"flight", "label"}


def test_numbers_alone_are_allowed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(5))
    dataset = open_dataset(make_spec(tmp_path, path, sparse=[]), "train")
    assert dataset.batch(np.array([4]), ["dense"])["dense"].tolist() == [[4.0, 4.0]]
