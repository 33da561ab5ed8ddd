"""Tensor columns: what is read, how it is kept and scaled, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from heterps_runtime.data import DataError, open_dataset
from heterps_runtime.data import source as source_module
from heterps_runtime.data.source import Source
from tests.heterps_runtime.helpers.data_files import CLASSES, make_spec, write_parquet

SHAPE = [1, 2, 3]
PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6)


def lists(kind: Any) -> Any:
    return pa.array(PIXELS.tolist(), kind)


def spec_of(folder: Path, column: Any, labels: Any = (0, 1, 2, 3), loss: str = CLASSES, **changes: Any) -> Any:
    """A job's data: one tensor column `image`; keys of a tensor in `changes`, other keys are fields of spec.data."""
    path = write_parquet(folder / "train.parquet", {"image": column, "late": list(labels)})
    tensor = {"name": "image", "shape": SHAPE}
    tensor |= {key: changes.pop(key) for key in ("shape", "dtype", "scale", "offset") if key in changes}
    return make_spec(folder, path, loss, dense=[], sparse=[], tensors=[tensor], **changes)


def read(spec: Any) -> Any:
    return open_dataset(spec, "train").batch(np.array([2, 0]), ["image"])["image"]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.uint8()), pa.list_(pa.uint8(), 6), pa.large_list(pa.int64()), pa.list_(pa.float64())]
)
def test_lists_of_any_kind_become_tensors_in_the_order_asked_for(tmp_path: Path, kind: Any) -> None:
    values = read(spec_of(tmp_path, lists(kind)))
    assert values.dtype == np.float32
    assert values.tolist() == PIXELS[[2, 0]].reshape(2, *SHAPE).tolist()


def test_arrow_tensors_are_read_too(tmp_path: Path) -> None:
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS.reshape(4, *SHAPE))
    assert read(spec_of(tmp_path, column)).tolist() == PIXELS[[2, 0]].reshape(2, *SHAPE).tolist()


def test_bytes_stay_bytes_in_the_cache_and_are_scaled_when_read(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, lists(pa.list_(pa.uint8(), 6)), dtype="uint8", scale="0.5", offset="-1")
    assert read(spec).tolist() == (PIXELS[[2, 0]].reshape(2, *SHAPE) * 0.5 - 1).tolist()
    [file] = (tmp_path / "cache").glob("*/tensor-0.npy")
    kept = np.load(file, mmap_mode="r")
    assert (kept.dtype, kept.shape) == (np.uint8, (4, *SHAPE))


def test_the_scale_is_no_part_of_the_cache(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"image": lists(pa.list_(pa.uint8(), 6)), "late": [0, 1, 2, 3]})

    def folders(**tensor: Any) -> int:
        read(
            make_spec(
                tmp_path, path, CLASSES, dense=[], sparse=[], tensors=[{"name": "image", "shape": SHAPE} | tensor]
            )
        )
        return len(list((tmp_path / "cache").glob("*/meta.json")))

    assert [folders(), folders(scale="2"), folders(dtype="uint8"), folders(shape=[6])] == [1, 1, 2, 3]


def test_record_batches_of_large_tensors_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_BATCH_TENSOR_BYTES", 8 * 6 * 3)  # three rows
    spec = spec_of(tmp_path, lists(pa.list_(pa.float32(), 6)))
    assert [batch.batch.num_rows for batch in Source(spec, "train").batches()] == [3, 1]
    assert read(spec).tolist() == PIXELS[[2, 0]].reshape(2, *SHAPE).tolist()


def test_slices_of_arrow_files_are_read_from_their_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_BATCH_TENSOR_BYTES", 8 * 6 * 3)
    table = pa.table({"image": lists(pa.list_(pa.uint8(), 6)), "late": [0, 1, 2, 3]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    tensors = [{"name": "image", "shape": SHAPE, "dtype": "uint8"}]
    spec = make_spec(tmp_path, tmp_path / "a.arrow", CLASSES, format="arrow", dense=[], sparse=[], tensors=tensors)
    everything = open_dataset(spec, "train").batch(np.arange(4), ["image"])["image"]
    assert everything.tolist() == PIXELS.reshape(4, *SHAPE).tolist()


ROWS: list[Any] = PIXELS.tolist()


@pytest.mark.parametrize(
    ("column", "changes", "words"),
    [
        ([*ROWS[:3], ROWS[0][:5]], {}, ["has 5 values in row 4 of", "the shape [1, 2, 3] needs 6"]),
        ([ROWS[0], None, *ROWS[2:]], {}, ["column 'image' is missing (null) in row 2 of"]),
        ([ROWS[0], [1, 2, None, 4, 5, 6], *ROWS[2:]], {}, ["value 2 of column 'image' is missing", "in row 2 of"]),
        (
            [[0.0] * 6, [0.0, float("nan")] * 3, *ROWS[2:]],
            {},
            ["value 1 of", "is nan, which is not finite", "row 2 of"],
        ),
        ([[1e39] * 6, *ROWS[1:]], {}, ["value 0 of column 'image' is 1e+39, which is not finite in float32"]),
        ([*ROWS[:3], [256] * 6], {"dtype": "uint8"}, ["is 256, which uint8 cannot hold (0 to 255)", "in row 4 of"]),
        ([[-1] * 6, *ROWS[1:]], {"dtype": "uint8"}, ["is -1, which uint8 cannot hold", "set dtype to float32"]),
        (
            [[0.5] * 6, *ROWS[1:]],
            {"dtype": "uint8"},
            ["tensors[0].dtype: is uint8", "holds double; set dtype to float32"],
        ),
        ([1, 2, 3, 4], {}, ["has the type int64, but a tensor must be a list of numbers", "fixed_size_list"]),
        ([[[1] * 6]] * 4, {}, ["holds lists of lists", "one flat list in C order"]),
        ([["a"] * 6] * 4, {}, ["holds string, but a tensor must be made of numbers"]),
        (
            lists(pa.list_(pa.uint8(), 6)),
            {"shape": [5]},
            ["[5] has 5 values, but the lists of column 'image'", "have 6"],
        ),
        (ROWS, {"shape": []}, ["tensors[0].shape: must be the sizes of a row's tensor, such as [1, 28, 28]", "is []"]),
        (ROWS, {"shape": [1 << 20, 1 << 20]}, ["at most 268,435,456 elements in all"]),
        (ROWS, {"dtype": "uint16"}, ["dtype: must be one of float32, uint8, is 'uint16'; did you mean 'uint8'?"]),
        (ROWS, {"scale": "0"}, ["scale and offset must be finite and scale not zero, are 0.0 and 0.0"]),
        (ROWS, {"format": "csv"}, ["the format csv has no lists; write the data as parquet or arrow"]),
    ],
)
def test_a_wrong_tensor_is_named_with_the_fix(tmp_path: Path, column: Any, changes: Any, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(spec_of(tmp_path, column, **changes), "train")
    text = str(caught.value)
    assert text.startswith("spec.data.tensors")
    assert [word for word in words if word not in text] == [], text


def test_a_missing_column_of_tensors_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"images": ROWS, "late": [0, 1, 2, 3]})
    spec = make_spec(tmp_path, path, CLASSES, dense=[], sparse=[], tensors=[{"name": "image", "shape": SHAPE}])
    with pytest.raises(DataError, match=r"spec.data.tensors: there is no column 'image' in .*did you mean 'images'"):
        open_dataset(spec, "train")


@pytest.mark.parametrize(("name", "words"), [("late", "contains the label"), ("dense", "cannot be called 'dense'")])
def test_names_that_batches_use_themselves_are_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_spec(tmp_path, "a", dense=[], sparse=[], tensors=[{"name": name, "shape": SHAPE}])


def test_a_column_is_a_tensor_or_an_id(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tensors\[0\]: column 'image' is also listed under spec.data.sparse"):
        make_spec(tmp_path, "a", dense=[], sparse=["image"], tensors=[{"name": "image", "shape": SHAPE}])


# --- classes ----------------------------------------------------------------------------------------------------------
def test_labels_beyond_the_declared_classes_are_named_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"must be a class number from 0 to 2 \(spec.data.classes is 3\), but is 3 in row 4"
    ):
        open_dataset(spec_of(tmp_path, ROWS, classes=3), "train")
    assert open_dataset(spec_of(tmp_path, ROWS, classes=4), "train").num_rows == 4


def test_declared_classes_make_the_labels_of_any_loss_class_numbers(tmp_path: Path) -> None:
    data = open_dataset(spec_of(tmp_path, ROWS, loss="my.losses:smoothed", classes=4), "train")
    assert data.batch(np.arange(4), ["image"])["label"].dtype == np.int64
    with pytest.raises(DataError, match=r"spec.data.classes: is 4, but .*binary_cross_entropy.* needs labels 0 and 1"):
        spec_of(tmp_path, ROWS, loss="torch.nn.functional:binary_cross_entropy_with_logits", classes=4)
