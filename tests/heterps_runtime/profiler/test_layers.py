"""Layer by layer, a step does the work of a whole step."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.data import DataSpec, open_dataset
from heterps_runtime.intake import resolve_loss
from heterps_runtime.partition.pieces import DensePiece
from heterps_runtime.profiler.layers import LayerProbe
from heterps_runtime.profiler.memory import SavedBytes, anonymous_bytes, device_bytes
from heterps_runtime.profiler.rehearsal import _rehearsed
from heterps_runtime.profiler.transfers import TransferProbe
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard
from heterps_runtime.store.keys import UniqueKeys
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.worker.model import UserModel
from heterps_runtime.worker.rows.lookups import LookupBlock
from tests.heterps_runtime.helpers.jobs import configuration

CPU = torch.device("cpu")
SGD = {"dense": {"name": "sgd", "learningRate": "0.5"}, "sparse": {"name": "sgd", "learningRate": "0.5"}}


def _probe(
    folder: Path, model: str, *, all_reduces: bool = False, **servers: Any
) -> tuple[LayerProbe, RunConfig, UserModel]:
    document = configuration(folder / "work", model, optimizer=SGD)
    document["job"]["spec"]["parameterServer"] |= servers
    config = RunConfig.from_json(document)
    data = open_dataset(DataSpec.from_manifest(config.data, config.loss, config.work_directory / "cache"), "train")
    user = UserModel.build(config, data.schema.features)
    return LayerProbe(config, user, data, resolve_loss(config.loss), CPU, all_reduces=all_reduces), config, user


def test_a_profile_needs_no_disk_of_the_servers_and_no_second_one(tmp_path: Path) -> None:
    """Theirs may be a volume that a profiler's pod does not have."""
    (tmp_path / "file").write_text("")
    spill = {"memory": 1, "directory": str(tmp_path / "file" / "folder")}
    probe, config, _ = _probe(tmp_path, "flights", spill=spill)
    assert config.spill is not None
    probe.step(probe.largest)
    document = configuration(tmp_path / "work")
    document["job"]["spec"]["parameterServer"] |= {"spill": spill, "replication": 2}
    rehearsed = RunConfig.from_json(_rehearsed(document))
    assert (rehearsed.spill, rehearsed.replication) == (None, 1), "there is one server, without copies of its rows"


@pytest.mark.parametrize("name", ["flights", "two_tower", "residual", "picture"])
def test_a_step_layer_by_layer_changes_the_parameters_as_a_whole_step_does(name: str, tmp_path: Path) -> None:
    probe, config, model = _probe(tmp_path, name)
    values, label = probe._batch(probe.largest)
    probe._next = 0  # the same batch again
    shard = Shard(config, 0)
    whole = model.layered.stage(0, len(model.layered.layers) - 1)
    initial = {n: t.numpy() for n, t in whole.initial_parameters().items()}
    pieces = {n: DensePiece(0, value.shape, value.reshape(-1)) for n, value in initial.items()}
    shard.define(model.layered.tables, pieces, {})
    leaves = {n: t.requires_grad_() for n, t in whole.initial_parameters().items()}
    block = LookupBlock(whole.sites, model.layered.tables, [whole.ids(values)], UniqueKeys(), CPU, 1)
    keys = {dim: known.keys for dim, known in block.keys.items()}
    block.fill(shard.pull(keys))
    looked_up = block.forward(0, training=True)
    whole.bind(leaves)
    torch.autograd.backward(resolve_loss(config.loss)(whole.forward(values, looked_up)["logits"], label))
    block.backward(0)
    gradients = {n: leaf.grad.numpy().reshape(-1) for n, leaf in leaves.items() if leaf.grad is not None}
    shard.push(0, "all", Gradients(tuple((c.dim, c.keys.keys, c.values) for c in block.gradients()), gradients, {}))
    shard.commit_dense(0, probe.largest)
    shard.commit_rows(0, probe.largest)

    probe.step(probe.largest)

    assert set(probe._shard.dense.names) == set(shard.dense.names)
    for parameter in shard.dense.names:
        (mine,), (expected,) = probe._shard.dense.pull([parameter]), shard.dense.pull([parameter])
        np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-12)
    measured = probe._shard.pull(keys)
    for dim, expected in shard.pull(keys).items():
        mine = measured[dim]
        np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("all_reduces", [False, True])
def test_every_layer_is_charged_with_its_own_kind_of_work(all_reduces: bool, tmp_path: Path) -> None:
    probe, _, model = _probe(tmp_path, "flights", all_reduces=all_reduces)
    probe.step(probe.largest)
    times = probe.step(probe.largest)
    for layer, seconds in zip(model.layered.layers, times, strict=True):
        assert seconds.compute > 0
        assert (seconds.rows > 0) == bool(layer.tables)
        if layer.parameters:
            assert seconds.dense > 0
    linear = next(i for i, layer in enumerate(model.layered.layers) if layer.kind == "Linear")
    assert probe.input_bytes[linear] == 27 * 8  # six embeddings of four and three numbers, in float64


def test_images_and_their_activations_are_counted_and_a_cut_of_one_sample_is_measured(tmp_path: Path) -> None:
    probe, _, model = _probe(tmp_path, "normed_picture")
    probe.step(probe.largest)
    kinds = [layer.kind for layer in model.layered.layers]
    bytes_per_sample = dict(zip(kinds, probe.input_bytes, strict=True))
    assert probe.input_bytes[0] == 50 * 8  # two channels of 5 x 5, in float64
    assert bytes_per_sample["AdaptiveAvgPool2d"] == 100 * 8
    cuts = probe.cuts(1)  # one sample is too few for batch normalisation in training
    assert [array.shape for array in cuts[kinds.index("AdaptiveAvgPool2d")].forward] == [(1, 4), (1,)]
    probe.step(probe.largest)  # in training again


@pytest.mark.parametrize("all_reduces", [False, True])
def test_memory_of_layers_is_that_of_weights_and_of_what_backward_needs(all_reduces: bool, tmp_path: Path) -> None:
    probe, _, model = _probe(tmp_path, "flights", all_reduces=all_reduces)
    memory = dict(zip([layer.name for layer in model.layered.layers], probe.memory(), strict=True))
    layers = {layer.name: layer for layer in model.layered.layers}
    linear = next(name for name, layer in layers.items() if layer.kind == "Linear")
    copies = 4 if all_reduces else 3  # without momentum there is no state
    assert memory[linear].resident == copies * layers[linear].weight_bytes
    outputs = layers[linear].weight_bytes / 8 / (27 + 1)  # of 27 inputs and a bias
    assert memory[linear].activation == outputs * 8  # its inputs are the outputs of the layer before
    assert all(one.activation > 0 for name, one in memory.items() if layers[name].tables)
    probe.step(probe.largest)


def test_memory_that_several_layers_share_counts_once() -> None:
    saved = SavedBytes(set())
    weight = torch.ones(10, 10, requires_grad=True)
    known = SavedBytes(saved._known)
    known.add([weight])
    value = torch.ones(5, 10)
    with saved.counting():
        one = value @ weight
        two = one.exp() * one
    assert known.total == 400
    assert saved.total == 3 * 200  # the inputs of both, and the result of exp
    assert two.requires_grad


def test_the_memory_of_this_process_is_known() -> None:
    size = 64 << 20
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not what was freed before
    before = anonymous_bytes()
    for page in range(0, size, mmap.PAGESIZE):
        held[page] = 1
    after = anonymous_bytes()
    held.close()
    assert before is not None
    assert after is not None
    assert after - before > size / 2
    assert device_bytes(CPU) is None


def test_a_cut_carries_the_live_tensors_and_comes_back_as_gradients(tmp_path: Path) -> None:
    probe, _, model = _probe(tmp_path, "two_tower")
    cuts = probe.cuts(8)
    assert len(cuts) == len(model.layered.layers) - 1
    for i, cut in enumerate(cuts):
        stage = model.layered.stage(0, i)
        assert len(cut.forward) == len(stage.outputs) + 1  # and the label
        assert len(cut.backward) == len(stage.gradient_outputs)
    link = TransferProbe(CPU, LinkSecurity("a token of the tests", encrypted=False))
    try:
        measured = [link.measure(cut) for cut in cuts]
        assert all(seconds > 0 and processor > 0 for seconds, processor in measured)
    finally:
        link.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_layers_are_timed_on_an_accelerator(tmp_path: Path) -> None:
    config = RunConfig.from_json(configuration(tmp_path / "work", "flights", precision="fp32"))
    data = open_dataset(DataSpec.from_manifest(config.data, config.loss, config.work_directory / "cache"), "train")
    model = UserModel.build(config, data.schema.features)
    probe = LayerProbe(config, model, data, resolve_loss(config.loss), torch.device("cuda", 0), all_reduces=True)
    probe.step(probe.largest)
    assert all(seconds.compute > 0 for seconds in probe.step(probe.largest))
