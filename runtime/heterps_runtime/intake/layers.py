"""A model as layers, which the profiler measures, the planner places and the workers run.

`trace_model` finds the layers (`trace`, `graph`); `LayeredModel.stage` makes a module of consecutive layers (`stage`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torch import nn

from heterps_runtime.intake import kinds
from heterps_runtime.intake.build import BUILD_WARNINGS, PROCESS_STATE
from heterps_runtime.intake.errors import IntakeError
from heterps_runtime.intake.graph import CutGraph
from heterps_runtime.intake.stage import StageModule
from heterps_runtime.intake.trace import Call, trace_forward
from heterps_runtime.partition.tables import Table

__all__ = ["Layer", "LayeredModel", "trace_model"]

_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd


@dataclass(frozen=True)
class Layer:
    """A layer.

    The second call of a module is another layer, named `name:2`. Merged layers are named `first..last`, and their kinds
    are joined with `+`.
    """

    name: str
    kind: str  # class name of the module, such as Linear or Embedding
    parameters: tuple[str, ...]  # qualified names of trainable dense parameters
    weight_bytes: int  # of the dense parameters, and of whole tables
    dense_bytes: int  # of the dense parameters alone
    tables: tuple[int, ...]  # indices of the tables in use
    nodes: tuple[str, ...]  # names of the traced values


class LayeredModel:
    """A traced model.

    Attributes:
        layers: in the order of calls.
        tables: embedding tables by index, in the order of first use.
        inputs: parameters of `forward` that are features, in its order.
        warnings: for the user: unused parameters, layers outside the same-model guarantee.
        module: the user's module.
    """

    def __init__(self, graph: CutGraph) -> None:
        self._graph = graph
        self.module = graph.module
        self.tables: tuple[Table, ...] = graph.tables
        self.inputs: tuple[str, ...] = graph.trace.features
        names = _unique_names(graph.calls)
        self.layers: tuple[Layer, ...] = tuple(self._layer(i, names) for i in range(len(graph.blocks)))
        self.warnings: tuple[str, ...] = self._find_warnings()

    def stage(self, first: int, last: int) -> StageModule:
        """The layers `first` to `last`, both inclusive, as a module.

        Raises:
            ValueError: the layers do not exist.
        """
        if not 0 <= first <= last < len(self.layers):
            raise ValueError(f"stage: layers {first}..{last} do not exist, the model has 0..{len(self.layers) - 1}")
        return StageModule(self._graph, first, last)

    def _layer(self, index: int, names: dict[int, str]) -> Layer:
        graph, block = self._graph, self._graph.blocks[index]
        nodes = [n for n in graph.nodes if graph.layer.get(n) == index]
        used = {name for node in nodes for name in graph.parameters_of(node)}
        tables = sorted({graph.sites[n].site.table for n in nodes if n in graph.sites})
        by_name = dict(self.module.named_parameters())

        def size(names: Iterable[str]) -> int:
            return sum(by_name[name].numel() * by_name[name].element_size() for name in names)

        dense = size(used)
        return Layer(
            name=names[id(block[0])] + (f"..{names[id(block[-1])]}" if len(block) > 1 else ""),
            kind="+".join(dict.fromkeys(call.kind for call in block)),
            parameters=tuple(name for name in by_name if name in used),
            weight_bytes=dense + size(self.tables[table].name for table in tables),
            dense_bytes=dense,
            tables=tuple(tables),
            nodes=tuple(n.name for n in nodes),
        )

    def _find_warnings(self) -> tuple[str, ...]:
        graph = self._graph
        found = [*self.module.__dict__.get(BUILD_WARNINGS, ()), *graph.trace.warnings]
        used = {p for layer in self.layers for p in layer.parameters} | {t.name for t in self.tables}
        for name, parameter in self.module.named_parameters():
            if name not in used and parameter.requires_grad:
                found.append(f"{name} is a parameter that forward does not use; it is not trained")
        live = set(graph.nodes)
        for node in graph.trace.graph.nodes:
            if node.op == "placeholder" and node not in live and node.target in self.inputs:
                found.append(f"forward does not use its parameter {node.target!r}")
        norms, random = [], []
        for node in graph.nodes:
            module = graph.modules.get(str(node.target)) if node.op == "call_module" else None
            inner = list(module.modules()) if module is not None else []
            place = f"{node.name} ({node.meta['where']})"
            if any(isinstance(m, _NORMS) for m in inner) or kinds.is_batch_norm(node):
                norms.append(place)
            if any(isinstance(m, _DROPOUTS) for m in inner) or kinds.is_random(node):
                random.append(place)
        reasons = (
            (norms, "batch normalisation sees micro-batches"),
            (random, "random numbers are drawn anew for each part of a batch"),
        )
        for places, reason in reasons:
            if places:
                more = f" and {len(places) - 1} more" if len(places) > 1 else ""
                found.append(f"{places[0]}{more}: {reason}, so the trained model depends on how batches are split")
        return tuple(dict.fromkeys(found))


def trace_model(module: nn.Module, features: Collection[str] | None = None) -> LayeredModel:
    """Find the layers of a module.

    Args:
        module: the user's module; it is not changed.
        features: names of the data's features. A parameter of `forward` with a default keeps it unless it is a feature.
            None: all parameters with defaults keep them.

    Raises:
        TracingError: `forward` cannot be traced; the message has the line, the reason and remedies.
        EmbeddingError: a table is used in a way that is not supported.
        IntakeError: the name of a parameter or buffer has `::`.
    """
    for name, _ in (*module.named_parameters(), *module.named_buffers()):
        if "::" in name:
            raise IntakeError(f"{name}: names with '::' are kept for the state of optimizers.", fix="rename it.")
    with PROCESS_STATE:
        return LayeredModel(CutGraph(module, trace_forward(module, features)))


def _unique_names(calls: tuple[Call, ...]) -> dict[int, str]:
    """Name of each call, by the call's `id`."""
    seen: dict[str, int] = {}
    names: dict[int, str] = {}
    for call in calls:
        seen[call.path] = seen.get(call.path, 0) + 1
        names[id(call)] = call.path if seen[call.path] == 1 else f"{call.path}:{seen[call.path]}"
    return names
