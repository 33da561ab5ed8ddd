"""Layers, tables, cuts and warnings of traced models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from heterps_runtime.intake import build_model, trace_model
from heterps_runtime.intake.errors import CutError
from heterps_runtime.intake.sites import Site
from heterps_runtime.partition.tables import Table
from tests.heterps_runtime.helpers.models import EXAMPLES, Awkward, Bags, Flights, Residual, TwoTower, awkward_batch


def test_layers_are_top_level_calls_with_their_kind_parameters_and_bytes() -> None:
    model = trace_model(
        build_model("tests.heterps_runtime.helpers.models:build_flights", {}, seed=0, dtype=torch.float32)
    )
    assert [layer.name for layer in model.layers] == [
        *(f"embeddings.{name}" for name in Flights.ROWS),
        *(f"mlp.{i}" for i in range(4)),
        "head",
    ]
    assert [layer.kind for layer in model.layers[-4:]] == ["ReLU", "Linear", "ReLU", "Linear"]
    assert model.layers[5].weight_bytes == 997 * 4 * 4
    assert model.layers[5].dense_bytes == 0
    assert model.layers[5].tables == (5,)
    assert model.layers[6].parameters == ("mlp.0.weight", "mlp.0.bias")
    assert model.layers[6].weight_bytes == model.layers[6].dense_bytes == (27 * 16 + 16) * 4
    assert "cat" in model.layers[5].nodes, "a function belongs to the layer begun before it"
    assert model.inputs == (*Flights.ROWS, "dense")
    assert model.tables[5] == Table(5, "embeddings.tail.weight", 997, 4, None)
    assert model.warnings == ()


def test_a_shared_table_is_one_table_with_a_site_for_each_use() -> None:
    model = trace_model(TwoTower())
    assert [t.name for t in model.tables] == ["users.weight", "items.weight", "tags.weight"]
    stage = model.stage(0, len(model.layers) - 1)
    assert stage.sites == (
        Site(0, "embedding", "", None),
        Site(1, "bag", "mean", 0),
        Site(1, "embedding", "", 0),
        Site(2, "bag", "sum", None),
    )


def test_a_module_called_twice_with_parameters_merges_the_layers_between() -> None:
    model = trace_model(Awkward())
    assert [layer.name for layer in model.layers] == [
        "table",
        "other",
        "untraceable",
        "rnn",
        "shared..shared:2",
        "act:2",
        "gate..gate:2",
        "head",
    ]
    assert model.layers[4].kind == "Linear+Tanh"
    assert model.layers[4].parameters == ("shared.weight", "shared.bias")


def test_a_module_without_parameters_called_twice_is_two_layers() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()

        def forward(self, x: Tensor) -> Any:
            return self.act(self.b(self.act(self.a(x))))

    assert [layer.name for layer in trace_model(Twice()).layers] == ["a", "act", "b", "act:2"]


def test_tied_dense_parameters_merge_layers() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    model = trace_model(module)
    assert [layer.name for layer in model.layers] == ["0..2", "3"]
    assert model.layers[0].parameters == ("0.weight", "0.bias", "2.bias")


def test_a_custom_child_is_one_layer() -> None:
    names = [layer.name for layer in trace_model(Residual()).layers]
    assert names == ["fields", "enter", "blocks.0", "blocks.1", "norm", "leave"]


def test_a_model_without_submodules_is_one_layer() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, dense: Tensor) -> Any:
            return dense @ self.w

    (layer,) = trace_model(Bare()).layers
    assert (layer.name, layer.kind, layer.parameters) == ("forward", "Bare", ("w",))


def test_values_have_the_same_names_for_every_way_to_cut() -> None:
    for example in EXAMPLES.values():
        model, again = trace_model(example.build()), trace_model(example.build())
        n = len(model.layers)
        for cut in range(1, n):
            crossing = model.stage(0, cut - 1).outputs
            assert model.stage(cut, n - 1).inputs == model.stage(cut, cut).inputs == crossing
            assert again.stage(cut - 1, cut - 1).outputs == crossing
        assert model.stage(n - 1, n - 1).outputs == ("logits",)
        assert set(model.stage(0, 0).inputs) <= set(model.inputs)


def test_a_feature_needed_only_later_passes_through_unchanged() -> None:
    model = trace_model(TwoTower())
    first = model.stage(0, 0)
    assert first.inputs == model.inputs
    assert {"item", "history", "tags_offsets"} <= set(first.outputs)
    assert "user" not in first.outputs
    assert first.gradient_inputs == ()
    assert first.gradient_outputs == ("embedding",)
    item = torch.tensor([3])
    inputs = dict.fromkeys(first.inputs, item)
    assert first.forward(inputs, [torch.zeros(1, 4)])["item"] is item


def test_sizes_are_made_again_instead_of_crossing_a_cut() -> None:
    model = trace_model(Awkward())
    for cut in range(1, len(model.layers)):
        assert all("getattr" not in name and "chunk" not in name for name in model.stage(0, cut - 1).outputs)
    assert "a" in model.stage(len(model.layers) - 1, len(model.layers) - 1).inputs, "its size is needed at the end"


def test_stages_do_not_share_parameters_with_the_users_module() -> None:
    module = Residual()
    stage = trace_model(module).stage(1, 5)
    assert not list(stage.module.parameters()), "parameters are plain attributes"
    before = stage.initial_parameters()
    assert tuple(before) == stage.parameter_names
    stage.bind({name: torch.zeros_like(value) for name, value in before.items()})
    inputs = {name: torch.ones(2, 12) for name in stage.inputs}
    assert stage.forward(inputs, [])["logits"].abs().sum() == 0
    assert module.leave.weight.abs().sum() > 0
    for name, value in stage.initial_parameters().items():
        torch.testing.assert_close(value, before[name])


def test_bags_are_brought_into_one_form_and_ids_stay_as_they_are() -> None:
    stage = trace_model(Bags()).stage(0, 4)
    one = torch.tensor([-(2**62), 2**62 + 1])
    found = stage.ids(
        {
            "wide": torch.tensor([[1, 2, 3], [41, 5, -1]]),
            "listed": torch.tensor([7, 8, 9]),
            "listed_offsets": torch.tensor([0, 1]),
            "bought": torch.tensor([1, 2]),
            "bought_offsets": torch.tensor([0, 0]),
            "price": torch.zeros(2),
            "one": one,
        }
    )
    assert found[0].ids.tolist() == [1, 2, 3, 41, 5, -1]
    assert found[0].offsets is not None
    assert found[0].offsets.tolist() == [0, 3]
    assert found[1].offsets is not None
    assert found[1].offsets.tolist() == [0, 1], "the closing offset is taken off"
    assert found[2].weights is not None
    assert found[2].weights.tolist() == [1.0, 1.0]
    assert found[4].ids.tolist() == [v + 5 for v in one.tolist()]


def test_a_feature_with_a_default_is_used_when_the_data_has_it() -> None:
    module = Awkward()
    without, given = trace_model(module), trace_model(module, features=["a", "b", "numbers", "absent"])
    assert without.inputs == ("a", "b", "numbers")
    assert any("'absent' keeps its default None" in w for w in without.warnings)
    assert given.inputs == ("a", "b", "numbers", "absent")
    assert not any("keeps its default" in w for w in trace_model(module, features=["a", "b", "numbers"]).warnings)


class Noisy(nn.Module):
    """Dropout as a module and as a function, batch normalisation, and unused things."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(3, 1)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, x: Tensor, ignored: Tensor) -> Any:
        x = F.dropout(self.drop(self.norm(x)) * self.frozen, 0.5, self.training)
        return self.out(x).squeeze(1)


def test_what_is_outside_the_guarantee_or_unused_is_a_warning() -> None:
    model = trace_model(Noisy())
    text = "\n".join(model.warnings)
    for words in ("unused.weight is a parameter that forward does not use", "does not use its parameter 'ignored'"):
        assert words in text
    [drawn] = [w for w in model.warnings if "random numbers are drawn anew for each part of a batch" in w]
    assert drawn.startswith("drop (")
    assert ") and 1 more: " in drawn
    [normed] = [w for w in model.warnings if "batch normalisation sees micro-batches" in w]
    assert normed.startswith("norm (")
    assert "unused.weight" not in model.stage(0, 2).parameter_names
    assert all(layer.name != "unused" for layer in model.layers)


def test_a_stage_follows_the_mode_and_keeps_its_own_buffers() -> None:
    module = Noisy()
    stage = trace_model(module).stage(0, 2)
    assert set(stage.buffers()) == {"frozen"}
    assert set(stage.statistics()) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) + 3
    torch.manual_seed(0)
    trained = stage.forward({"x": x}, [])["logits"]
    assert not torch.equal(trained, stage.forward({"x": x}, [])["logits"]), "dropout draws"
    assert float(module.norm.state_dict()["running_mean"].sum()) == 0.0, "the user's module is not touched"
    module.load_state_dict(stage.buffers() | stage.statistics(), strict=False)
    expected = module.eval()(x, x)
    torch.testing.assert_close(stage.train(False).forward({"x": x}, [])["logits"], expected)
    assert module.norm.training is False
    other = trace_model(module).stage(0, 2)
    other.load_buffers({"frozen": torch.full((3,), 7.0)})
    assert other.buffers()["frozen"].tolist() == [7.0, 7.0, 7.0]


class FunctionalNorm(nn.Module):
    """Batch normalisation as a function, and a buffer that is only read."""

    mean: Tensor
    variance: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 2)
        for name, value in (("mean", 0.0), ("variance", 1.0), ("shift", 2.0)):
            self.register_buffer(name, torch.full((2,), value))

    def forward(self, x: Tensor) -> Any:
        return F.batch_norm(self.enter(x) + self.shift, self.mean, self.variance, training=self.training)


def test_statistics_of_a_micro_batch_leave_those_that_it_began_with_alone() -> None:
    stage = trace_model(FunctionalNorm()).stage(0, 0)
    assert stage.statistics_names == ("mean", "variance")
    assert set(stage.buffers()) == {"shift"}
    before = stage.initial_statistics()
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    stage.bind_statistics(before)
    first = stage.forward({"x": x}, [])["logits"]
    after = stage.statistics()
    assert not torch.equal(after["mean"], before["mean"])
    assert before["mean"].tolist() == [0.0, 0.0]
    stage.bind_statistics(before)  # a second micro-batch begins before the backward of the first one
    stage.forward({"x": x}, [])
    assert torch.equal(stage.statistics()["mean"], after["mean"]), "it has begun where the first one did"
    first.sum().backward()  # type: ignore[no-untyped-call]


def test_tracing_leaves_the_users_module_as_it_was() -> None:
    module = Awkward().eval()
    module.rnn.train()
    before = set(module.__dict__), [m.training for m in module.modules()]
    trace_model(module)
    assert (set(module.__dict__), [m.training for m in module.modules()]) == before


def test_a_tuple_that_would_cross_a_cut_is_refused_when_it_does() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (x, x) if x.sum() > 0 else (x, -x)

    class Use(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return sum(pair) if pair[0].sum() > 0 else pair[0]

    model = trace_model(nn.Sequential(Pair(), Use()))
    x = torch.ones(2)
    assert model.stage(0, 1).forward({"input": x}, [])["logits"].tolist() == [2.0, 2.0]
    with pytest.raises(CutError, match=r"is a tuple, but only tensors can leave a stage\. To do: take it apart"):
        model.stage(0, 0).forward({"input": x}, [])


def test_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers 2\.\.9 do not exist, the model has 0\.\.5"):
        trace_model(Residual()).stage(2, 9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_stage_moves_to_the_gpu_and_computes_the_same() -> None:
    module = Awkward()
    batch = awkward_batch(torch.Generator().manual_seed(1), 6)
    model = trace_model(module)
    stage = model.stage(0, len(model.layers) - 1).to("cuda")
    there = {name: value.to("cuda") for name, value in batch.items()}
    wanted = stage.ids(batch)
    assert wanted[0].ids.device.type == "cpu"
    tables = [module.table.weight, module.other.weight]
    looked_up = [tables[s.table].detach().to("cuda")[w.ids] for s, w in zip(stage.sites, wanted, strict=True)]
    logits = stage.forward(there, looked_up)["logits"]
    torch.testing.assert_close(logits.cpu(), module(**batch), rtol=1e-3, atol=1e-3)
