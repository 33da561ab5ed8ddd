"""Exported models load into the user's own module with plain PyTorch and safetensors."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from pyarrow import fs as pafs
from safetensors.torch import load_file

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    DamagedError,
    Origin,
    Storage,
    StorageError,
    TableRecord,
    dense_arrays,
    export_model,
    row_arrays,
    take_over,
)
from heterps_runtime.checkpoint.errors import CheckpointError
from heterps_runtime.checkpoint.format import write_tensors
from heterps_runtime.checkpoint.manifest import write_manifest
from tests.heterps_runtime.helpers.checkpoint_samples import NORMAL, Array, make_keys, make_manifest

USER = """
import torch
from torch import nn

class Shop(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.user = nn.Embedding(500, 4)
        self.item = nn.EmbeddingBag(300, 4, mode="sum", padding_idx=0)
        self.again = self.item  # one table under two names
        self.norm = nn.BatchNorm1d(8)
        self.top = nn.Linear(8, width)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

def build(width=1):
    return Shop(width)
"""
FOLDER, ORIGIN = "step-000000012.1-00000000", Origin(12, 1)
TABLES = (
    TableRecord(0, "user.weight", 500, 4, NORMAL),
    TableRecord(1, "item.weight", 300, 4, NORMAL, padding_idx=0),
)


def initial_rows(table: TableRecord, ids: Array) -> Array:
    """Rows that tell where they come from."""
    rows = np.empty((len(ids), table.dim), dtype=np.float32)
    rows[:] = (table.index * 10_000 + ids)[:, None]
    return rows


class Job:
    """A trained job of the user's module, with its checkpoint and what the model must be."""

    def __init__(self, folder: Path, tables: tuple[TableRecord, ...] = TABLES, shards: int = 2) -> None:
        (folder / "shop").mkdir()
        (folder / "shop" / "model.py").write_text(USER)
        rng = np.random.default_rng(3)
        self.storage = Storage.open(folder / "checkpoints")
        self.touched: dict[str, tuple[Array, Array]] = {}
        for table in tables:
            ids = rng.choice(np.arange(1, min(table.num_embeddings, 10_000)), 120, replace=False)
            self.touched[table.name] = (ids, rng.standard_normal((120, table.dim)).astype(np.float32))
        dense: dict[str, Array] = {
            "norm.weight": rng.random(8).astype(np.float32),
            "norm.bias": rng.random(8).astype(np.float32),
            "top.weight": rng.standard_normal((3, 8)).astype(np.float32),
            "top.bias": rng.standard_normal(3).astype(np.float32),
        }
        buffers: dict[str, Array] = {
            "norm.running_mean": rng.random(8).astype(np.float32),
            "norm.running_var": rng.random(8).astype(np.float32),
            "norm.num_batches_tracked": np.array(12),
            "scratch": np.zeros(3, dtype=np.float32),
        }
        self.expected = {name: value for name, value in (dense | buffers).items() if name != "scratch"}
        state = {f"{name}::exp_avg": value * 0 for name, value in dense.items()}
        folder_name, files = FOLDER, []
        for shard in range(shards):
            groups: dict[int, Any] = {}
            for dim in {table.dim for table in tables}:
                mine = [t for t in tables if t.dim == dim]
                keys = np.concatenate([make_keys(t.index, self.touched[t.name][0][shard::shards]) for t in mine])
                rows = np.concatenate([self.touched[t.name][1][shard::shards] for t in mine])
                groups[dim] = (keys, rows, {"sum": rows * 0})
            name = f"rows-{shard}.safetensors"
            files.append(
                write_tensors(
                    self.storage, folder_name, name, row_arrays(groups), origin=ORIGIN, role="rows", index=shard
                )
            )
        for role, values in (("dense", dense | state), ("buffers", buffers)):
            arrays = dense_arrays(values, role)
            files.append(
                write_tensors(self.storage, folder_name, f"{role}-0.safetensors", arrays, origin=ORIGIN, role=role)
            )
        base = make_manifest(12, folder_name, tuple(files))
        fingerprint = {"model.entrypoint": "model:build", "model.arguments": {"width": 3}}
        fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
        self.manifest = CheckpointManifest(**(fields | {"tables": tables, "fingerprint": fingerprint}))
        self.owner = take_over(self.storage, "shop", 0.0)
        write_manifest(self.storage, self.manifest, self.owner)
        for table in tables:
            if table.num_embeddings <= 10_000:
                whole = initial_rows(table, np.arange(table.num_embeddings))
                if table.padding_idx is not None:
                    whole[table.padding_idx] = 0
                ids, rows = self.touched[table.name]
                whole[ids] = rows
                self.expected[table.name] = whole

    @property
    def names(self) -> dict[str, str]:
        return {name: name for name in self.expected} | {"again.weight": "item.weight"}


def export(job: Job, output: str | Path, **options: Any) -> str:
    manifest = options.pop("manifest", job.manifest)
    manifest = replace(manifest, state_names=options.pop("state_names", {}))
    return export_model(job.storage, manifest, output, owner=job.owner, initial_rows=initial_rows, **options)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_model_loads_into_the_users_module_strictly(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "model"
    path = export(
        job,
        out,
        state_names=job.names,
        metrics={"auc": 0.71},
    )
    namespace: dict[str, Any] = {}
    exec(USER, namespace)
    model = namespace["build"](width=3)
    model.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    loaded = model.state_dict()
    assert set(loaded) == set(job.names)
    for name, source in job.names.items():
        np.testing.assert_array_equal(loaded[name].numpy(), job.expected[source])
    assert path == str(out)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.json", "model.safetensors"]


def test_the_receivers_readme_can_be_followed_to_the_letter(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    export(job, out, state_names=job.names)
    [code] = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out)
    monkeypatch.syspath_prepend(tmp_path / "shop")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    monkeypatch.delitem(sys.modules, "model")
    model = namespace["model"]
    assert not model.training
    with torch.no_grad():
        row = model.user(torch.tensor([3]))
    np.testing.assert_array_equal(row.numpy()[0], job.expected["user.weight"][3])


def test_large_tables_become_sorted_ids_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = TableRecord(2, "place/x.weight", 1 << 40, 2, NORMAL)
    job = Job(tmp_path, (*TABLES, big), shards=3)
    out = tmp_path / "model"
    export(job, out, dense_limit_bytes=300 * 16)
    for name, file in (("user.weight", "user.weight"), ("place/x.weight", "place%2Fx.weight")):
        table = safetensors.numpy.load_file(out / "tables" / f"{file}.safetensors")
        ids, rows = job.touched[name]
        order = np.argsort(ids)
        np.testing.assert_array_equal(table["ids"], ids[order])
        np.testing.assert_array_equal(table["rows"], rows[order])
    whole = load_file(out / "model.safetensors")
    assert "item.weight" in whole
    assert not {"user.weight", "place/x.weight"} & set(whole)

    readme = (out / "README.md").read_text()
    load, lookup = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert "strict=False" in load
    monkeypatch.chdir(out)
    namespace: dict[str, Any] = {"load_file": load_file}
    exec(lookup, namespace)
    assert sorted(namespace["row"]) == sorted(job.touched["user.weight"][0].tolist())
    assert f"| `place/x.weight` | {1 << 40} | 2 | `tables/place%2Fx.weight.safetensors` |" in readme


def test_the_description_names_every_table_tensor_and_figure(tmp_path: Path) -> None:
    job = Job(tmp_path, (*TABLES, TableRecord(2, "place.weight", 1 << 40, 2, NORMAL)))
    export(job, tmp_path / "model", metrics={"auc": 0.71})
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (described["step"], described["samples"], described["metrics"]) == (12, 768, {"auc": 0.71})
    assert "blake2b" in described["hashing"]["strings"]
    forms = {t["name"]: (t["form"], t["file"], t["numRows"]) for t in described["tables"]}
    assert forms == {
        "user.weight": ("dense", "model.safetensors", 500),
        "item.weight": ("dense", "model.safetensors", 300),
        "place.weight": ("rows", "tables/place.weight.safetensors", 120),
    }
    stored = safetensors.numpy.load_file(tmp_path / "model" / "model.safetensors")
    assert {t["name"]: (t["dtype"], tuple(t["shape"])) for t in described["tensors"]} == {
        name: (str(value.dtype), value.shape) for name, value in stored.items()
    }


def test_a_table_without_trained_rows_is_exported_empty_or_initial(tmp_path: Path) -> None:
    job = Job(tmp_path)
    tables = (*TABLES, TableRecord(5, "idle.weight", 1 << 40, 4, NORMAL), TableRecord(6, "small.weight", 5, 4, NORMAL))
    fields = {name: getattr(job.manifest, name) for name in job.manifest.__dataclass_fields__}
    manifest = CheckpointManifest(**(fields | {"tables": tables}))
    export(job, tmp_path / "model", manifest=manifest)
    idle = safetensors.numpy.load_file(tmp_path / "model" / "tables" / "idle.weight.safetensors")
    assert (idle["ids"].shape, idle["rows"].shape) == ((0,), (0, 4))
    small = safetensors.numpy.load_file(tmp_path / "model" / "model.safetensors")["small.weight"]
    np.testing.assert_array_equal(small, initial_rows(tables[-1], np.arange(5)))


def test_an_older_export_is_replaced(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "stale.txt").write_text("old")
    (tmp_path / ".model.exporting").mkdir()
    (tmp_path / ".model.exporting" / "rest").write_text("of an export that was killed")
    export(job, out)
    assert not (out / "stale.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model", "shop"]


@pytest.mark.parametrize("harm", ["truncate", "remove", "refuse"])
def test_an_export_that_fails_leaves_the_older_one(
    job: Job, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "model.json").write_text("old")
    rows = tmp_path / "checkpoints" / FOLDER / "rows-1.safetensors"
    expected: type[Exception] = DamagedError
    if harm == "truncate":
        rows.write_bytes(rows.read_bytes()[:-10])
    elif harm == "remove":
        rows.unlink()
    else:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.posix_fallocate", full)
        expected = StorageError
    with pytest.raises(expected):
        export(job, out)
    assert (out / "model.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "model", "shop"]


def test_a_name_that_the_checkpoint_does_not_hold_is_an_error(job: Job, tmp_path: Path) -> None:
    names = {**job.names, "extra.weight": "extra.weight"}
    with pytest.raises(CheckpointError, match=r"holds nothing for extra\.weight of the model"):
        export(
            job,
            tmp_path / "model",
            state_names=names,
        )
    assert not (tmp_path / "model").exists()


def test_a_model_is_exported_to_an_address(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = pafs._MockFileSystem()
    remote = Storage(filesystem, "models/shop", "mock://models/shop")
    monkeypatch.setattr(Storage, "open", lambda *_: remote)
    path = export(
        job,
        "mock://models/shop",
        dense_limit_bytes=300 * 16,
    )
    assert path == "mock://models/shop"
    names = ["README.md", "model.json", "model.safetensors", "tables/user.weight.safetensors"]
    assert remote.files() == names
    stored = safetensors.numpy.load(remote.read("model.safetensors"))
    np.testing.assert_array_equal(stored["item.weight"], job.expected["item.weight"])


def test_a_model_of_unknown_origin_still_has_a_readme(job: Job, tmp_path: Path) -> None:
    fields = {name: getattr(job.manifest, name) for name in job.manifest.__dataclass_fields__}
    export_model(
        job.storage,
        CheckpointManifest(**(fields | {"fingerprint": {}})),
        tmp_path / "m",
        owner=job.owner,
        initial_rows=initial_rows,
    )
    assert "model = ...  # your own module, built as for training" in (tmp_path / "m" / "README.md").read_text()
