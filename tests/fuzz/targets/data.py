"""Training data of users, and the cache that is built from it."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from heterps_runtime.data import index
from heterps_runtime.data.block_cache import BlockCache
from heterps_runtime.data.cache import _open
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.files import find_files
from heterps_runtime.data.index import open_index
from heterps_runtime.data.source import Source
from heterps_runtime.data.tensors import tensor_values
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.files import memory_file
from tests.heterps_runtime.helpers.data_files import columns, make_spec, write_parquet

_CACHE = Path(__file__).parents[2] / "fixtures" / "v1" / "data-cache"
_TENSORS = [{"name": "image", "shape": [2, 2], "dtype": "uint8"}]
_FLAT = {"sparse": ["flight", "carrier"], "dense": ["distance"]}
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def _reader(**changes: Any) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with memory_file(data) as path:
            source = Source(make_spec(Path("/unused"), path, **changes), "train")
            for part in source.batches():
                for i, tensor in enumerate(source.spec.tensors):
                    values = tensor_values(part.batch.column(tensor.name), tensor, i, part.place)
                    assert values.shape == (part.batch.num_rows, *tensor.shape)

    return read


def _unit_reader(**changes: Any) -> Callable[[bytes], None]:
    """Read a file as streamed data is read: find its units, then read each."""

    def read(data: bytes) -> None:
        with memory_file(data) as path:
            source = Source(make_spec(Path("/unused"), path, access="Streamed", **changes), "train")
            for unit in source.units(source.files[0]):
                for batch in source.read(source.files[0], unit):
                    assert batch.num_rows >= 0

    return read


@cache
def _streamed() -> tuple[Path, Any]:
    """Return a folder for an index, and the job's data that it is of."""
    temporary = tempfile.TemporaryDirectory(prefix="heterps-fuzz-")
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    train = write_parquet(folder / "train" / "a.parquet", columns(4), row_group_size=2)
    return folder, make_spec(folder, train, access="Streamed", windowRows=2)


def _index() -> list[bytes]:
    folder, spec = _streamed()
    open_index(spec, "train", lambda fraction, words: None)
    [meta] = folder.glob("cache/*/meta.json")
    shutil.copyfile(meta.parent / "blocks.npy", folder / "blocks.npy")
    return [meta.read_bytes()]


def _open_index_of(data: bytes) -> None:
    """Open an index with this meta.json; a damaged one is made again."""
    folder, spec = _streamed()
    (folder / "meta.json").write_bytes(data)
    opened = index._open(folder, spec, "train", find_files(spec, "train"), lambda fraction, words: None)
    if opened is not None:
        assert opened.num_rows > 0
        assert opened.layout


def _block() -> list[bytes]:
    folder, _ = _streamed()
    cached = BlockCache(folder, ["label", "dense"], 1 << 20, lambda fraction, words: None)
    cached.add(1, {"label": np.zeros(3, np.float32), "dense": np.ones((3, 2), np.float32)})
    return [(folder / "block-1").read_bytes()]


def _open_block(data: bytes) -> None:
    """Open a block of the cache; a damaged one is read again."""
    folder, _ = _streamed()
    (folder / "block-2").write_bytes(data)
    BlockCache(folder, ["label", "dense"], 1 << 20, lambda fraction, words: None).get(2)


@cache
def _cache_folder() -> Path:
    """Return a copy of a cache's folder, one for all inputs: the parser only reads it."""
    temporary = tempfile.TemporaryDirectory(prefix="heterps-fuzz-")
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    for file in _CACHE.glob("*.npy"):
        shutil.copyfile(file, folder / file.name)
    return folder


def _open_cache(data: bytes) -> None:
    """Open a cache with this meta.json; a damaged one is reported and built again."""
    folder = _cache_folder()
    (folder / "meta.json").write_bytes(data)
    _open(folder, lambda fraction, words: None)


def _table() -> Any:
    images = {"image": pa.array([[i, 2, 3, 4] for i in range(4)], pa.list_(pa.uint8()))}
    return pa.table(dict(columns(4)) | images)


def _parquet() -> list[bytes]:
    stream = io.BytesIO()
    pq.write_table(_table(), stream)
    return [stream.getvalue()]


def _arrow() -> list[bytes]:
    made = []
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        stream = io.BytesIO()
        with new(stream, _table().schema) as writer:
            writer.write_table(_table())
        made.append(stream.getvalue())
    return made


def _csv() -> list[bytes]:
    return [
        b"distance,flight,carrier,late\n1.5,1000,AA,0\n2,1001,,1\n",
        b'distance,flight,carrier,late\r\n1,2,"a,b",1\r\n',
    ]


def _criteo() -> list[bytes]:
    return [
        b"\t".join([b"1", *([b"3"] * 13), *([b"68fd1e64"] * 26)]) + b"\n" + b"\t".join([b"0", *([b""] * 39)]) + b"\n"
    ]


TARGETS = [
    Target("data.csv", _reader(format="csv", **_FLAT), (DataError,), _csv, Form.TEXT, memory=None),
    Target("data.criteo", _reader(format="criteo-tsv", label="label", dense=["I1"], sparse=["C1"]), (DataError,),
           _criteo, Form.TEXT, memory=None),
    Target("data.arrow", _reader(format="arrow", tensors=_TENSORS), (DataError,), _arrow),
    Target("data.parquet", _reader(tensors=_TENSORS), (DataError,), _parquet),
    Target("data.csv-lines", _unit_reader(format="csv", **_FLAT), (DataError, OSError), _csv, Form.TEXT, memory=None),
    Target("data.arrow-batches", _unit_reader(format="arrow", tensors=_TENSORS), (DataError, OSError), _arrow),
    Target("data.row-groups", _unit_reader(tensors=_TENSORS), (DataError, OSError), _parquet),
    Target("data.index", _open_index_of, (), _index, Form.JSON),
    Target("data.block", _open_block, (), _block),
    Target("data.cache", _open_cache, (), lambda: [(_CACHE / "meta.json").read_bytes()], Form.JSON),
]  # fmt: skip
