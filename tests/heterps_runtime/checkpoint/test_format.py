"""State files: readable by the safetensors library, verified by size and checksum, read in slices."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heterps_runtime.checkpoint import DamagedError, FileEntry, Storage, StorageError
from heterps_runtime.checkpoint.format import (
    Origin,
    TensorFile,
    TensorSpec,
    create_tensor_file,
    verify_file,
    write_tensors,
)

DTYPES = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
]


ORIGIN = Origin(20, 1)

# Headers of valid JSON, found by fuzzing.
UNREADABLE = (
    b'{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32","shape":[0],"data_offsets":["0",0]}}',
    b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[NaN,0]}}',
    b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[-20,0]}}',
    b'{"a":{"dtype":"F64","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}',
    b'{"a":{"dtype":"F32","shape":[' + b"9223372036854775807," * 5000 + b'1],"data_offsets":[0,0]}}',
    b'{"__metadata__":{"version":1}}',
    b"[" * 100_000,
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path)


def test_the_safetensors_library_reads_what_is_written(storage: Storage, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {dtype: (rng.random((5, 3)) * 100).astype(dtype) for dtype in DTYPES}
    arrays["scalar"] = np.array(7)
    arrays["empty"] = np.empty((0, 4), dtype=np.float32)
    arrays["big endian"] = np.arange(5, dtype=">i4")
    arrays["not contiguous"] = np.arange(12.0).reshape(3, 4).T
    entry = write_tensors(storage, "s", "x.safetensors", arrays, origin=ORIGIN, role="dense", index=3)

    assert entry.bytes == (tmp_path / "s/x.safetensors").stat().st_size
    assert (entry.name, entry.role, entry.index) == ("x.safetensors", "dense", 3)
    loaded = safetensors.numpy.load_file(tmp_path / "s/x.safetensors")
    with TensorFile(storage, "s/x.safetensors") as file:
        assert set(loaded) == set(file.specs) == set(arrays)
        for name, value in arrays.items():
            np.testing.assert_array_equal(loaded[name], value)
            own = file.read(name)
            np.testing.assert_array_equal(own, value)
            assert own.shape == value.shape
            assert own.flags.aligned
    verify_file(storage, "s", entry, ORIGIN)


def test_files_of_the_safetensors_library_are_read(storage: Storage, tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {"b": np.arange(6, dtype=np.int8), "a": np.ones((2, 3), dtype=np.float16)}
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors", metadata={"k": "v"})
    with TensorFile(storage, "x.safetensors") as file:
        assert set(file.specs) == set(arrays)
        for name, value in arrays.items():
            np.testing.assert_array_equal(file.read(name), value)


@settings(max_examples=40, deadline=None)
@given(
    arrays=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        ),
        max_size=4,
    ),
    start=st.integers(0, 5),
    length=st.integers(0, 5),
)
def test_any_arrays_come_back_whole_and_in_slices(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray], start: int, length: int
) -> None:
    storage = Storage.open(tmp_path_factory.mktemp("format"))
    verify_file(storage, "s", write_tensors(storage, "s", "x", arrays, origin=ORIGIN, role="rows"), ORIGIN)
    with TensorFile(storage, "s/x") as file:
        for name, value in arrays.items():
            np.testing.assert_array_equal(file.read(name), value)
            if value.ndim:
                np.testing.assert_array_equal(file.read(name, start, start + length), value[start : start + length])


def test_arrays_outlive_the_file_they_were_read_from(storage: Storage) -> None:
    write_tensors(storage, "s", "x", {"a": np.arange(1000)}, origin=ORIGIN, role="rows")
    with TensorFile(storage, "s/x") as file:
        values = file.read("a")
    storage.delete("s/x")
    assert values.sum() == 499_500


def test_writing_does_not_copy_the_arrays(storage: Storage) -> None:
    big = np.zeros((4_000_000, 8), dtype=np.float32)  # 128 MB
    turned = np.zeros((8, 1_000_000), dtype=np.float32).T  # 32 MB, not contiguous
    tracemalloc.start()
    try:
        write_tensors(storage, "s", "x", {"big": big, "turned": turned}, origin=ORIGIN, role="rows")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


def test_a_type_that_cannot_be_stored_is_named_before_anything_is_written(storage: Storage) -> None:
    with pytest.raises(ValueError, match="array 'z': type complex128 cannot be stored"):
        write_tensors(storage, "s", "x", {"z": np.zeros(2, dtype=complex)}, origin=ORIGIN, role="rows")
    assert storage.files() == []


def damaged(storage: Storage, path: Path, contents: bytes, entry: FileEntry) -> str:
    path.write_bytes(contents)
    with pytest.raises(DamagedError) as caught:
        verify_file(storage, "s", entry, ORIGIN)
    return str(caught.value)


def test_damage_is_found_and_named(storage: Storage, tmp_path: Path) -> None:
    entry = write_tensors(storage, "s", "x", {"a": np.arange(100)}, origin=ORIGIN, role="rows")
    path = tmp_path / "s/x"
    whole = path.read_bytes()
    assert "has 500 bytes instead of" in damaged(storage, path, whole[:500], entry)
    flipped = bytearray(whole)
    flipped[700] ^= 1
    assert "x was changed after it was written (checksum crc32:" in damaged(storage, path, bytes(flipped), entry)
    verify_file(storage, "s", entry, ORIGIN, contents=False)
    path.unlink()
    with pytest.raises(DamagedError, match="x is missing"):
        verify_file(storage, "s", entry, ORIGIN)


def test_a_state_of_another_commit_is_refused_although_the_file_is_whole(storage: Storage) -> None:
    entry = write_tensors(storage, "s", "x", {"a": np.arange(3)}, origin=Origin(19, 1), role="rows")
    for contents in (True, False):
        with pytest.raises(
            DamagedError, match="x has the state of step 19, lineage 1, and should have that of step 20"
        ):
            verify_file(storage, "s", entry, ORIGIN, contents=contents)
    with pytest.raises(DamagedError, match="should have that of step 19, lineage 2"):
        verify_file(storage, "s", entry, Origin(19, 2))


def test_a_file_that_does_not_name_its_commit_is_no_part_of_a_checkpoint(storage: Storage, tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(3)}, tmp_path / "x")
    with TensorFile(storage, "x") as file, pytest.raises(DamagedError, match="does not say which commit"):
        _ = file.origin


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "has only 0 bytes"),
        (b"\xff" * 100, "not a safetensors file"),
        (b"\x04" + bytes(7) + b"nope", "unreadable header"),
        (b"\x02" + bytes(7) + b"[]", "unreadable header"),
        (b"\x40" + bytes(7) + b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'.ljust(64), "unreadable header"),
        (b"\x40" + bytes(7) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(64), "is truncated"),
        *((len(text).to_bytes(8, "little") + text, "unreadable header") for text in UNREADABLE),
    ],
)
def test_a_file_that_is_no_state_file_is_refused(
    storage: Storage, tmp_path: Path, contents: bytes, reason: str
) -> None:
    (tmp_path / "x").write_bytes(contents)
    with pytest.raises(DamagedError, match=reason):
        TensorFile(storage, "x")


def test_an_array_that_is_not_there_is_named(storage: Storage) -> None:
    write_tensors(storage, "s", "x", {"a": np.arange(3)}, origin=ORIGIN, role="rows")
    with TensorFile(storage, "s/x") as file, pytest.raises(DamagedError, match="s/x has no array 'b'"):
        file.read("b")


def test_a_file_laid_out_first_and_filled_later_is_a_safetensors_file(tmp_path: Path) -> None:
    specs = {
        "ids": TensorSpec(np.dtype(np.int64), (3,)),
        "rows": TensorSpec(np.dtype(np.float32), (3, 2)),
        "none": TensorSpec(np.dtype(np.float32), (0, 2)),
    }
    arrays = create_tensor_file(tmp_path / "x.safetensors", specs)
    arrays["rows"][2] = 5
    arrays["ids"][:] = [1, 2, 3]
    del arrays
    loaded = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert loaded["rows"].tolist() == [[0, 0], [0, 0], [5, 5]]
    assert loaded["ids"].tolist() == [1, 2, 3]
    assert loaded["none"].shape == (0, 2)


def test_space_that_is_not_there_is_refused_before_the_file_is_mapped(tmp_path: Path) -> None:
    specs = {"rows": TensorSpec(np.dtype(np.float32), (1 << 50, 2))}
    with pytest.raises(StorageError, match=r"could not write .*x\.safetensors"):
        create_tensor_file(tmp_path / "x.safetensors", specs)
    assert list(tmp_path.iterdir()) == []
