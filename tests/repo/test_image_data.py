"""The data of the BalanceNet example: scikit-learn's digits, or MNIST's files."""

from __future__ import annotations

import gzip
import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

# By name: for mypy, which reads examples/flights as a folder of programs, `prepare` is another module.
prepare = importlib.import_module("examples.balancenet.prepare")


def test_the_digits_are_those_of_the_package_enlarged_and_none_is_in_both_sets() -> None:
    from sklearn.datasets import load_digits

    source, found = load_digits(), prepare.digits()
    assert {split: images.shape for split, (images, _) in found.items()} == {
        "train": (1437, 32, 32),
        "test": (360, 32, 32),
    }
    images = np.concatenate([found[split][0] for split in ("train", "test")])
    labels = np.concatenate([found[split][1] for split in ("train", "test")])
    for row in range(4):
        for column in range(4):  # each pixel is a square
            assert np.array_equal(images[:, row::4, column::4], images[:, ::4, ::4])
    small = np.rint(images[:, ::4, ::4] / 255 * 16).astype(int)

    def sorted_rows(pixels: Any, classes: Any) -> list[tuple[int, ...]]:
        return sorted(map(tuple, np.c_[pixels.reshape(len(pixels), -1).astype(int), classes].tolist()))

    assert sorted_rows(small, labels) == sorted_rows(source.images, source.target)


def test_both_sets_are_written_as_tensors_and_replaced_with_other_images(tmp_path: Path) -> None:
    pictures = np.arange(3 * 32 * 32, dtype=np.uint8).reshape(3, 32, 32)
    splits = {"train": (pictures[:2], np.array([7, 1])), "test": (pictures[2:], np.array([0]))}
    output = tmp_path / "data"
    assert (
        prepare.write(output, "one", splits) == prepare.read_marker(output) == {"recipe": "one", "train": 2, "test": 1}
    )
    table = pq.read_table(output / "train")
    assert str(table.schema.field("image").type) == "fixed_size_list<element: uint8>[1024]"
    assert table["digit"].to_pylist() == [7, 1]
    assert np.array_equal(np.array(table["image"].to_pylist(), np.uint8).reshape(2, 32, 32), pictures[:2])
    prepare.write(output, "two", {"train": splits["test"], "test": splits["test"]})
    assert prepare.read_marker(output)["train"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "nothing is left beside it"


def idx(values: Any) -> bytes:
    array = np.asarray(values, np.uint8)
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, **changed: bytes) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    for prefix, rows in (("train", 5), ("t10k", 2)):
        images = changed.get(f"{prefix}_images", idx(random.integers(0, 255, (rows, 28, 28))))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(changed.get(f"{prefix}_labels", idx(np.arange(rows))))
    return folder


def test_mnist_files_get_a_border(tmp_path: Path) -> None:
    found = prepare.mnist(write_mnist(tmp_path / "mnist"))
    assert {split: (images.shape, sorted(labels)) for split, (images, labels) in found.items()} == {
        "train": ((5, 32, 32), [0, 1, 2, 3, 4]), "test": ((2, 32, 32), [0, 1])
    }  # fmt: skip
    images, labels = found["train"]
    first = np.random.default_rng(0).integers(0, 255, (5, 28, 28)).astype(np.uint8)
    assert np.array_equal(images[:, 2:-2, 2:-2], first[labels]), "images and labels are shuffled alike"
    assert not images[:, :2].any()
    assert not images[:, :, -2:].any()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_images": idx(np.zeros(5))}, "is not an idx file with 3 axes"),
        ({"train_images": b""}, "is not an idx file with 3 axes"),
        ({"train_images": idx(np.zeros((5, 28, 28)))[:-1]}, "is incomplete: 3919 values"),
        ({"train_labels": idx(np.zeros(4))}, "5 images but 4 labels of train"),
        ({"t10k_images": idx(np.zeros((2, 40, 40)))}, "do not fit into 32 x 32"),
    ],
)
def test_wrong_mnist_files_are_named(tmp_path: Path, changed: dict[str, bytes], words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        prepare.mnist(write_mnist(tmp_path / "mnist", **changed))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="neither train-images-idx3-ubyte nor"):
        prepare.mnist(tmp_path / "empty")
