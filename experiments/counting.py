"""Operation counts of a model's layers, from running each once, forward and backward, on rows of a click log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from examples.paper.prepare import FIELDS, Chunk
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from experiments.devices import LayerCounts
from heterps_runtime.intake import LayeredModel, StageModule, build_model, trace_model
from heterps_runtime.intake.stage import LOGITS

__all__ = ["count_layers"]

_LABEL_BYTES = 4  # transferred with the activations


def count_layers(entrypoint: str, arguments: Mapping[str, Any], rows: Chunk) -> dict[str, LayerCounts]:
    """Count each layer of a model of the click log, by the layer's name.

    Args:
        entrypoint: `module:callable` of the model.
        arguments: arguments of the callable.
        rows: a batch, in which distinct ids are counted.
    """
    model = trace_model(build_model(entrypoint, dict(arguments), 0, torch.float32))
    values: dict[str, Tensor] = {name: torch.from_numpy(rows.ids[:, j].copy()) for j, name in enumerate(FIELDS)}
    values["dense"] = torch.from_numpy(rows.numbers)
    counts = {}
    for index, layer in enumerate(model.layers):
        stage = model.stage(index, index)
        counts[layer.name] = _count(model, index, stage, values, len(rows.clicks))
    return counts


def _count(model: LayeredModel, index: int, stage: StageModule, values: dict[str, Tensor], samples: int) -> LayerCounts:
    given = {name: values[name] for name in stage.inputs}
    row_elements = 0
    looked_up = []
    for site, wanted in zip(stage.sites, stage.ids(given), strict=True):
        dim = model.tables[site.table].dim
        row_elements += len(torch.unique(wanted.ids)) * dim
        shape = (len(wanted.offsets), dim) if wanted.offsets is not None else (*wanted.ids.shape, dim)
        looked_up.append(torch.zeros(shape, requires_grad=True))
    parameters = {name: value.requires_grad_() for name, value in stage.initial_parameters().items()}
    stage.bind(parameters)
    with FlopCounterMode(display=False) as counter:
        outputs = stage.forward(given, looked_up)
        made = [t for name, t in outputs.items() if name not in given and t.requires_grad]
        torch.autograd.backward(made, [torch.ones_like(t) for t in made])
    read = {str(n.target) for n in stage.module.graph.nodes if n.op == "placeholder"}
    used = [t for name, t in given.items() if name in read] + looked_up
    new = [t for name, t in outputs.items() if name not in given]
    cut = 0.0
    if stage.outputs != (LOGITS,):
        backward = [outputs[n] for n in stage.gradient_outputs if outputs[n].is_floating_point()]
        cut = _bytes([*outputs.values(), *backward]) / samples + _LABEL_BYTES
    values.update({name: t.detach().requires_grad_(t.is_floating_point()) for name, t in outputs.items()})
    return LayerCounts(
        flops=counter.get_total_flops() / samples,
        activation_bytes=_bytes(used + new) / samples,
        row_bytes=row_elements * 4 / samples,
        looked_up_bytes=_bytes(looked_up) / samples,
        cut_bytes=cut,
        weight_bytes=_bytes(list(parameters.values())),
        operations=sum(n.op.startswith("call_") for n in stage.module.graph.nodes),
    )


def _bytes(tensors: list[Tensor]) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))
