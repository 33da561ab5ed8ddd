"""A stage of a model: consecutive layers as a module.

The caller looks up rows and owns the parameters: `ids` returns what to look up, `bind` sets this step's parameters, and
`forward` computes with the lookups. A stage shares no mutable state with the user's module or other stages.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from heterps_runtime.intake import kinds
from heterps_runtime.intake.aliases import memory_chain
from heterps_runtime.intake.autocast import Region, enter_region, leave_region
from heterps_runtime.intake.errors import CutError
from heterps_runtime.intake.graph import CutGraph
from heterps_runtime.intake.linear import use_onednn
from heterps_runtime.intake.sites import Site, SiteIds, prepare_ids
from heterps_runtime.intake.trace import TRAINING

__all__ = ["LOGITS", "StageModule"]

#: The only output of the last stage.
LOGITS = "logits"
_SHORT = (torch.bfloat16, torch.float16)


class StageModule:
    """Layers `first` to `last` of a model, both inclusive.

    Attributes:
        inputs: names of the input values: the used features for the first stage, live values otherwise.
        outputs: names of the output values; `("logits",)` for the last stage. They include inputs of later stages.
        gradient_inputs: inputs that depend on trainable parameters, in order. The sender needs their gradients, if the
            tensor is floating-point.
        gradient_outputs: the same of the outputs: the next stage's `gradient_inputs`.
        sites: the lookups, in order.
        parameter_names: qualified names of trainable dense parameters.
        statistics_names: names of the buffers that training may change, such as BatchNorm's running statistics: those
            of modules that the graph calls as a whole, and those that functional norms update. Others are read only.
        module: the computation, an fx module whose parameters are plain attributes, set by `bind`.
    """

    def __init__(self, graph: CutGraph, first: int, last: int) -> None:
        self._graph = graph
        self._is_last = last == len(graph.blocks) - 1
        self._copied: dict[int, Any] = {id(p): p for p in graph.module.parameters()}  # deepcopy shares these
        arriving = graph.live(first)
        leaving = [kinds.operands(graph.output)[0]] if self._is_last else list(graph.live(last + 1))
        self.inputs: tuple[str, ...] = tuple(map(graph.name, arriving))
        self.outputs: tuple[str, ...] = (LOGITS,) if self._is_last else tuple(map(graph.name, leaving))
        carrying = {graph.name(n) for n in (*arriving, *leaving) if graph.carries_gradient(n)}
        self.gradient_inputs: tuple[str, ...] = tuple(n for n in self.inputs if n in carrying)
        self.gradient_outputs: tuple[str, ...] = (
            (LOGITS,) if self._is_last else tuple(n for n in self.outputs if n in carrying)
        )
        inside = [n for n in graph.nodes if first <= graph.layer.get(n, -2) <= last]
        self._calls = [graph.sites[n] for n in inside if n in graph.sites]
        self.sites: tuple[Site, ...] = tuple(call.site for call in self._calls)

        lookups = [n for n in inside if n in graph.sites]
        self._leaving = leaving
        self._computed = [n for n in leaving if n not in arriving or n in self._changed(inside, arriving)]
        self.module, self._forward_inputs = self._emit(inside, arriving, lookups, self._computed)
        wanted = [n for call in self._calls for n in (call.ids, call.offsets, call.weights) if n is not None]
        self._ids_module, self._ids_inputs = self._emit(inside, arriving, [], list(dict.fromkeys(wanted)), ids=True)
        self._wanted = {n: i for i, n in enumerate(dict.fromkeys(wanted))}

        self._statistics = self._find_statistics()
        self.statistics_names: tuple[str, ...] = tuple(self._statistics)
        self._slots: dict[str, list[tuple[nn.Module, str]]] = {}
        self._free_parameters()
        self.parameter_names: tuple[str, ...] = tuple(n for n in graph.parameter_names.values() if n in self._slots)
        self._training = True
        self._device_type = "cpu"
        self._product_dtype: torch.dtype | None = None
        self.bind(self.initial_parameters())

    # --- computing ----------------------------------------------------------------------------------------------------
    def ids(self, inputs: Mapping[str, Tensor]) -> list[SiteIds]:
        """The inputs of the lookups, by site, without gradients, on the CPU.

        Args:
            inputs: input values by name; those that no ids depend on are not needed. Values of another device are
                copied, so those of the CPU are better.
        """
        if not self._calls:
            return []
        with torch.no_grad():
            values = self._ids_module(self._training, *(inputs[name].cpu() for name in self._ids_inputs))
        found: list[SiteIds] = []
        for call in self._calls:
            offsets, weights = (None if n is None else values[self._wanted[n]] for n in (call.offsets, call.weights))
            found.append(prepare_ids(call, values[self._wanted[call.ids]], offsets, weights))
        return found

    @property
    def forward_inputs(self) -> frozenset[str]:
        """Names of the input values that `forward` reads or returns; `ids` alone reads the others."""
        return frozenset(self._forward_inputs) | (frozenset(self.inputs) & frozenset(self.outputs))

    def forward(self, inputs: Mapping[str, Tensor], looked_up: Sequence[Tensor]) -> dict[str, Tensor]:
        """Compute the stage.

        Args:
            inputs: input values by name, those of `forward_inputs`.
            looked_up: per site, rows (*, dim) for an embedding, or pooled rows (B, dim) for a bag.

        Returns:
            The output values by name; logits of a shorter type than float32 become float32, for the loss. An input that
            is also an output is returned unchanged.

        Raises:
            CutError: an output is not a tensor.
        """
        dtype = self._product_dtype
        with contextlib.nullcontext() if dtype is None else torch.autocast(self._device_type, dtype):
            values = self.module(self._training, *(inputs[name] for name in self._forward_inputs), *looked_up)
        computed = dict(zip(self._computed, values, strict=True))
        result: dict[str, Tensor] = {}
        for name, node in zip(self.outputs, self._leaving, strict=True):
            value = computed[node] if node in computed else inputs[name]
            if not isinstance(value, Tensor):
                raise CutError(
                    f"the value {name!r} is a {type(value).__name__}, but only tensors can leave a stage.",
                    fix="take it apart in forward right where it is made (a, b = self.layer(x)), and pass tensors on.",
                    where=node.meta["where"],
                )
            result[name] = value.float() if self._is_last and value.dtype in _SHORT else value
        return result

    # --- state --------------------------------------------------------------------------------------------------------
    def bind(self, parameters: Mapping[str, Tensor]) -> None:
        """Set parameters, without copying, so that they get gradients.

        Args:
            parameters: by qualified name; those of other stages are ignored, missing ones keep their value.
        """
        for name, slots in self._slots.items():
            value = parameters.get(name)
            if value is not None:
                for owner, attribute in slots:
                    setattr(owner, attribute, value)

    def initial_parameters(self) -> dict[str, Tensor]:
        """Copies of the user's module's values, on the CPU, in the order of `parameter_names`."""
        names = self._graph.parameter_names
        return {
            names[id(p)]: p.detach().clone() for p in self._graph.module.parameters() if names[id(p)] in self._slots
        }

    def statistics(self) -> dict[str, Tensor]:
        """The buffers that training may change, as the last micro-batch has left them, by name."""
        return {name: owner._buffers[key].detach() for name, (owner, key) in self._statistics.items()}  # type: ignore[union-attr]

    def bind_statistics(self, values: Mapping[str, Tensor]) -> None:
        """Set the buffers that training may change to copies of `values`.

        They become new tensors: graphs of earlier micro-batches may still hold the old ones for their backward.
        """
        for name, (owner, key) in self._statistics.items():
            owner._buffers[key] = values[name].clone()

    def initial_statistics(self) -> dict[str, Tensor]:
        """Copies of the user's module's values of `statistics_names`, on the CPU."""
        values = dict(self._graph.module.named_buffers(remove_duplicate=False))
        return {name: values[name].detach().clone() for name in self._statistics}

    def buffers(self) -> dict[str, Tensor]:
        """Buffers that training does not change, and frozen parameters, by their names in the user's module."""
        constants = self._graph.trace.constants
        return {
            name: tensor
            for module in (self.module, self._ids_module)
            for name, tensor in module.named_buffers(remove_duplicate=False)
            if name not in constants and name not in self._statistics
        }

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Copy values into the stage's buffers, by name; other names are ignored."""
        known = self.buffers().keys() & buffers.keys()
        for module in (self.module, self._ids_module):  # on an accelerator, each has its own
            for name, tensor in module.named_buffers(remove_duplicate=False):
                if name in known:
                    tensor.copy_(buffers[name])

    def to(self, device: torch.device | str) -> StageModule:
        """Move buffers and bound parameters to a device, once; returns the stage itself.

        Ids stay on the CPU, where they come from and are needed.
        """
        self._device_type = torch.device(device).type
        if self._device_type != "cpu":
            self._ids_module = copy.deepcopy(self._ids_module)  # it may share submodules
            self.module.to(device)
        self.bind({name: getattr(*slots[0]).detach().to(device) for name, slots in self._slots.items()})
        return self

    def multiply_in(self, dtype: torch.dtype | None) -> StageModule:
        """Set the type that `forward` computes in where `torch.autocast` does; returns the stage itself.

        Args:
            dtype: for products of matrices and convolutions; None: that of their inputs.
        """
        self._product_dtype = dtype
        return self

    def use_onednn(self) -> StageModule:
        """Let oneDNN compute large fully connected layers in float32 (`linear`); returns the stage itself."""
        use_onednn(self.module)
        return self

    def train(self, mode: bool = True) -> StageModule:
        """Switch between training and evaluation; returns the stage itself."""
        self._training = mode
        self.module.train(mode)
        self._ids_module.train(mode)
        return self

    # --- making the modules -------------------------------------------------------------------------------------------
    def _changed(self, inside: list[fx.Node], arriving: Sequence[fx.Node]) -> set[fx.Node]:
        """The inputs that this stage changes in place."""
        in_place, modules = self._graph.in_place, self._graph.modules
        ends = (memory_chain(n, in_place, modules) for n in inside if n in in_place)
        return {n for chain in ends for n in chain if n in arriving}

    def _emit(
        self,
        inside: list[fx.Node],
        arriving: Sequence[fx.Node],
        lookups: list[fx.Node],
        results: list[fx.Node],
        *,
        ids: bool = False,
    ) -> tuple[fx.GraphModule, tuple[str, ...]]:
        """Make a module of (training, inputs..., lookups...) from the part of the graph that computes `results`."""
        source, in_place = self._graph, self._graph.in_place
        needed = self._needed(inside, results, set() if ids else {n for n in inside if n in in_place})
        taken = [n for n in arriving if n in needed]
        changed = set() if ids else self._changed(inside, arriving)
        graph = fx.Graph()
        training = graph.placeholder(TRAINING)
        made: dict[fx.Node, fx.Node] = {n: graph.placeholder(n.name) for n in taken}
        made.update({n: graph.placeholder(f"lookup_{i}") for i, n in enumerate(lookups)})
        roots = {memory_chain(n, in_place, source.modules)[-1] for n in needed if n in in_place}
        for node in [*taken, *lookups]:  # the caller's tensors must not change, and may be autograd leaves
            if node in changed or node in roots:
                made[node] = graph.call_method("clone", (made[node],))

        def copied(node: fx.Node) -> fx.Node:
            if node not in made:
                assert node in source.pulled, f"{node} is not available in this stage"
                made[node] = training if node.target == TRAINING else graph.node_copy(node, copied)
            return made[node]

        region: Region | None = None
        entered: fx.Node | None = None

        def move_to(other: Region | None) -> None:
            nonlocal region, entered
            if other != region and entered is not None:
                graph.call_function(leave_region, (entered,))
            if other != region:
                entered = None if other is None else graph.call_function(enter_region, (other,))
                region = other

        for node in inside:
            if node in needed and node not in made:
                move_to(node.meta["autocast"])
                made[node] = graph.node_copy(node, copied)
                if node.meta["no_grad"] and not _makes_tuple(node, source):
                    made[node] = graph.call_method("detach", (made[node],))
        move_to(None)
        graph.output(tuple(copied(n) for n in results))
        targets = [str(n.target) for n in graph.nodes if n.op in ("call_module", "get_attr")]
        module = fx.GraphModule({t: self._copy_of(t) for t in dict.fromkeys(targets)}, graph, "Stage")
        return module, tuple(map(source.name, taken))

    def _needed(self, inside: list[fx.Node], results: list[fx.Node], effects: set[fx.Node]) -> set[fx.Node]:
        within = set(inside)
        needed: set[fx.Node] = set()
        waiting = [*results, *effects]
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            if node not in self._graph.pulled:
                needed.add(node)
            if node in self._graph.pulled or (node in within and node not in self._graph.sites):
                waiting.extend(self._graph.needs(node))
        return needed

    def _copy_of(self, target: str) -> Any:
        """A copy of a module or tensor for this stage; parameters are shared until `_free_parameters`."""
        constants = self._graph.trace.constants
        if target in constants:
            return copy.deepcopy(constants[target], self._copied)
        owner, _, attribute = target.rpartition(".")
        return copy.deepcopy(getattr(self._graph.modules[owner], attribute), self._copied)

    def _find_statistics(self) -> dict[str, tuple[nn.Module, str]]:
        """Owner and attribute of each buffer that training may change, by name.

        Other operations that change a buffer of the graph are refused (`aliases`).
        """
        found: dict[str, tuple[nn.Module, str]] = {}
        for node in self.module.graph.nodes:
            if node.op == "call_module":
                for path, owner in self.module.get_submodule(str(node.target)).named_modules(prefix=str(node.target)):
                    found.update({f"{path}.{key}": (owner, key) for key, b in owner._buffers.items() if b is not None})
            elif kinds.is_running_norm(node):
                for name in (str(operand.target) for operand in kinds.operands(node) if operand.op == "get_attr"):
                    path, _, key = name.rpartition(".")
                    owner = self.module.get_submodule(path)
                    if owner._buffers.get(key) is not None:
                        found[name] = owner, key
        return found

    def _free_parameters(self) -> None:
        """Turn trainable parameters into plain attributes, and frozen ones into buffers."""
        for owner in dict.fromkeys([*self.module.modules(), *self._ids_module.modules()]):
            for attribute, parameter in list(owner._parameters.items()):
                if parameter is None:
                    continue
                del owner._parameters[attribute]
                if parameter.requires_grad:
                    setattr(owner, attribute, parameter.detach())
                    self._slots.setdefault(self._graph.parameter_names[id(parameter)], []).append((owner, attribute))
                else:
                    owner.register_buffer(attribute, parameter.detach().clone())


def _makes_tuple(node: fx.Node, graph: CutGraph) -> bool:
    return node.op == "call_module" and kinds.is_multi_output_module(graph.modules[str(node.target)])
