"""A chain of stages in one process, against the unsplit module: what the runtime must reproduce.

Lookups and row gradients are written here a second time, plainly, from PyTorch's documentation of the two modules.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from heterps_runtime.intake import LayeredModel, Site, SiteIds, StageModule

Batch = dict[str, Tensor]


@dataclass
class Result:
    """What one forward and backward pass gives."""

    logits: Tensor
    gradients: dict[str, Tensor] = field(default_factory=dict)  # of parameters (tables dense) and float features


def unsplit(module: nn.Module, batch: Batch, upstream: Tensor) -> Result:
    """The user's module in plain PyTorch."""
    inputs = _fresh(batch)
    module.zero_grad()
    logits = module(**inputs)
    logits.backward(upstream)
    gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    return Result(logits.detach(), gradients | {n: x.grad for n, x in inputs.items() if x.grad is not None})


def chained(
    model: LayeredModel, cuts: tuple[int, ...], batch: Batch, upstream: Tensor, *, to_features: bool = False
) -> Result:
    """The same through stages that are cut before the layers `cuts`; values cross cuts detached, as over a wire.

    Args:
        to_features: carry gradients back to the features too, which training does not need.
    """
    edges = (0, *cuts, len(model.layers))
    stages = [model.stage(first, after - 1) for first, after in itertools.pairwise(edges)]
    tables = dict(model.module.named_parameters())
    weights = {t.index: tables[t.name].detach() for t in model.tables}
    gradients = {t.name: torch.zeros_like(weights[t.index]) for t in model.tables}
    features = _fresh({name: batch[name] for name in stages[0].inputs})
    arriving, record = features, []
    for stage in stages:
        assert tuple(arriving) == stage.inputs
        parameters = {n: p.requires_grad_() for n, p in stage.initial_parameters().items()}
        stage.bind(parameters)
        wanted = stage.ids(arriving)
        looked_up = [look_up(s, weights[s.table], w).requires_grad_() for s, w in zip(stage.sites, wanted, strict=True)]
        leaving = stage.forward(arriving, looked_up)
        assert tuple(leaving) == stage.outputs
        record.append((stage, arriving, parameters, wanted, looked_up, leaving))
        arriving = _fresh(leaving)
    logits = leaving["logits"].detach()
    incoming: dict[str, Tensor | None] = {"logits": upstream}
    for stage, inputs, parameters, wanted, looked_up, leaving in reversed(record):
        assert to_features or set(incoming) == set(stage.gradient_outputs)
        pairs = [(leaving[n], g) for n, g in incoming.items() if g is not None and leaving[n].requires_grad]
        torch.autograd.backward([v for v, _ in pairs], [g for _, g in pairs])
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                assert name not in gradients, f"{name} belongs to two stages"
                gradients[name] = parameter.grad
        for site, ids, rows in zip(stage.sites, wanted, looked_up, strict=True):
            if rows.grad is not None:
                table = model.tables[site.table]
                add_row_gradients(gradients[table.name], weights[site.table], site, ids, rows.grad)
        incoming = {n: inputs[n].grad for n in (stage.inputs if to_features else stage.gradient_inputs)}
    if to_features:
        gradients |= {n: x.grad for n, x in features.items() if x.grad is not None}
    return Result(logits, gradients)


def look_up(site: Site, weight: Tensor, wanted: SiteIds) -> Tensor:
    """Rows of an embedding, or pooled rows of bags."""
    if site.kind == "embedding":
        return weight[wanted.ids]
    assert wanted.offsets is not None
    num_bags, dim = wanted.offsets.shape[0], weight.shape[1]
    pooled = torch.zeros(num_bags, dim, dtype=weight.dtype)
    for bag, (rows, scale) in enumerate(_bags(site, wanted)):
        values = weight[rows] * scale[:, None]
        if len(rows):
            pooled[bag] = {"sum": values.sum(0), "mean": values.mean(0), "max": values.amax(0)}[site.mode]
    return pooled


def add_row_gradients(total: Tensor, weight: Tensor, site: Site, wanted: SiteIds, gradient: Tensor) -> None:
    """Add the gradient of what was looked up to the rows that it came from; padding rows get none."""
    if site.kind == "embedding":
        ids, rows = wanted.ids.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
        keep = ids != site.padding_idx if site.padding_idx is not None else torch.ones_like(ids, dtype=torch.bool)
        total.index_add_(0, ids[keep], rows[keep])
        return
    for bag, (ids, scale) in enumerate(_bags(site, wanted)):
        if len(ids) and site.mode == "max":
            winners = ids[weight[ids].argmax(0)]
            total[winners, torch.arange(weight.shape[1])] += gradient[bag]
        elif len(ids):
            share = scale if site.mode == "sum" else scale / len(ids)
            total.index_add_(0, ids, gradient[bag] * share[:, None])


def _bags(site: Site, wanted: SiteIds) -> list[tuple[Tensor, Tensor]]:
    """Ids and weights of each bag, without padding."""
    assert wanted.offsets is not None
    edges = [*wanted.offsets.tolist(), len(wanted.ids)]
    scale = wanted.weights if wanted.weights is not None else torch.ones(len(wanted.ids), dtype=torch.float64)
    bags = []
    for start, stop in itertools.pairwise(edges):
        ids = wanted.ids[start:stop]
        keep = ids != site.padding_idx if site.padding_idx is not None else torch.ones_like(ids, dtype=torch.bool)
        bags.append((ids[keep], scale[start:stop][keep]))
    return bags


def _fresh(values: Batch) -> Batch:
    """Detached copies; floating-point ones are leaves that want a gradient."""
    return {n: v.detach().clone().requires_grad_(v.is_floating_point()) for n, v in values.items()}


def assert_equal(got: Result, expected: Result, *, but: frozenset[str] = frozenset()) -> None:
    """Equal to rounding in float64; a parameter that got no gradient counts as having a zero one."""
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-12, atol=1e-12)
    for name in (set(expected.gradients) | set(got.gradients)) - but:
        zero = torch.zeros_like(next(r.gradients[name] for r in (expected, got) if name in r.gradients))
        ours, theirs = got.gradients.get(name, zero), expected.gradients.get(name, zero)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, msg=f"{name}: {ours} instead of {theirs}")


__all__ = ["Result", "StageModule", "add_row_gradients", "assert_equal", "chained", "look_up", "unsplit"]
