"""Trace `forward` with torch.fx, and record the layer and the user's line of each node.

Submodules are traced, except torch's own, which become one node each. A submodule that cannot be traced and has no
table also becomes one node, which runs as ordinary Python.

`forward` is traced twice, in training and evaluation mode. Constants that differ (`F.dropout(x, p, self.training)`)
become a choice at run time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from heterps_runtime.intake.autocast import current_region
from heterps_runtime.intake.errors import IntakeError, TracingError
from heterps_runtime.intake.location import error_location, frame_location, function_location

__all__ = ["TRAINING", "Call", "Trace", "choose", "trace_forward"]

#: Name of the placeholder for the mode: whether the stage trains.
TRAINING = "heterps_training"
_WAYS_OUT = (
    "write it with tensor operations (torch.where, masks); or decide it in __init__; or move these lines into a "
    "submodule without embeddings, which then runs untraced as one layer."
)


def choose(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """The value for the current mode; called by nodes of the graph."""
    return in_training if training else in_evaluation


@dataclass(frozen=True)
class Call:
    """A top-level call: a layer, before tied layers are merged."""

    path: str
    kind: str


@dataclass(frozen=True)
class Trace:
    """A traced `forward`.

    Each node's `meta` has `call` (index into `calls`), `where` (the user's line), `no_grad`, and
    `autocast` (`autocast.current_region`).
    """

    graph: fx.Graph
    calls: tuple[Call, ...]
    features: tuple[str, ...]
    constants: dict[str, torch.Tensor]  # tensors that `forward` uses and the module does not register
    warnings: tuple[str, ...]


def trace_forward(module: nn.Module, features: Collection[str] | None) -> Trace:
    """Trace a module's `forward` in both modes.

    Args:
        module: the user's module.
        features: see `layers.trace_model`.

    Raises:
        TracingError: `forward` cannot be traced, with the line and the reason.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        raise TracingError(
            "the model has forward hooks, which tracing would pass over.",
            fix="call what the hook does in forward, or put hooks on submodules.",
            where=function_location(type(module).forward),
        )
    defaults, warnings = _kept_defaults(module, features)
    modes = {m: m.training for m in module.modules()}
    try:
        module.train()
        training, constants, leaves = _trace_with_leaves(module, defaults)
        module.eval()
        evaluation, _, _ = _trace_with_leaves(module, defaults, leaves)
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode
    if not _unify_modes(training.graph, evaluation.graph):
        warnings.append(
            f"{function_location(type(module).forward)}: forward takes different steps in training and in evaluation; "
            "HeterPS evaluates with the steps of training"
        )
    names = tuple(str(n.target) for n in training.graph.nodes if n.op == "placeholder" and n.target != TRAINING)
    return Trace(training.graph, tuple(training.calls), names, constants, tuple(warnings))


def _kept_defaults(module: nn.Module, features: Collection[str] | None) -> tuple[dict[str, Any], list[str]]:
    defaults: dict[str, Any] = {}
    warnings: list[str] = []
    where = function_location(type(module).forward)
    for parameter in inspect.signature(type(module).forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TracingError(
                f"forward takes {'*' if parameter.kind == parameter.VAR_POSITIONAL else '**'}{parameter.name}, but its "
                "parameters must name the features.",
                fix="write one parameter per feature, named as in the data: def forward(self, user, item, dense).",
                where=where,
            )
        if parameter.default is parameter.empty or (features is not None and parameter.name in features):
            continue
        defaults[parameter.name] = parameter.default
        if features is None:
            warnings.append(f"{where}: forward's parameter {parameter.name!r} keeps its default {parameter.default!r}")
    return defaults, warnings


def _trace_with_leaves(
    module: nn.Module, defaults: dict[str, Any], leaves: frozenset[str] = frozenset()
) -> tuple[_Tracer, dict[str, torch.Tensor], frozenset[str]]:
    while True:
        tracer = _Tracer(defaults, leaves)
        known = set(module.__dict__)
        try:
            with torch.enable_grad():
                tracer.trace(module)
            return tracer, _constants(module, tracer.graph), leaves
        except IntakeError:
            raise
        except Exception as error:
            failed = tracer.failed_in
            submodule = module.get_submodule(failed) if failed else module
            if not failed or failed in leaves or _holds_table(submodule):
                raise _explain(error, module, submodule, failed) from error
            leaves = leaves | {failed}
        finally:
            for name in set(module.__dict__) - known:  # fx leaves tensor constants on the traced module
                del module.__dict__[name]


def _holds_table(module: nn.Module) -> bool:
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())


class _Tracer(fx.Tracer):
    """fx's tracer, with layers, lines and untraced submodules."""

    proxy_buffer_attributes = True

    def __init__(self, defaults: dict[str, Any], leaves: frozenset[str]) -> None:
        super().__init__()
        self.trace_asserts = True
        self.calls: list[Call] = []
        self.failed_in = ""  # path of the innermost module at the time of a failure
        self._defaults = defaults
        self._leaves = leaves
        self._inside_layer = False
        self._failing = False

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Make a placeholder for each parameter of `forward` that is a feature."""
        arguments: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(root_fn).parameters.items())[1:]:
            value = self._defaults[name] if name in self._defaults else self.create_proxy("placeholder", name, (), {})
            arguments[parameter.name] = value
        positional_only = [
            arguments.pop(name)
            for name, parameter in inspect.signature(root_fn).parameters.items()
            if parameter.kind == parameter.POSITIONAL_ONLY and name in arguments
        ]

        def forward() -> Any:
            return root_fn(self.root, *positional_only, **arguments)

        return forward, []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Torch's own modules without tables, and modules that cannot be traced."""
        if module_qualified_name in self._leaves:
            return True
        return super().is_leaf_module(m, module_qualified_name) and not _holds_table(m)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Begin a layer if this is a top-level call, and record where tracing fails."""
        path = self.path_of_module(m)
        begins = not self._inside_layer and type(m).forward is not nn.Sequential.forward
        if begins:
            self.calls.append(Call(path, type(m).__name__))
            self._inside_layer = True
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if not self._failing:
                self.failed_in, self._failing = path, True
            raise
        finally:
            if begins:
                self._inside_layer = False

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Record the layer, line and autocast of a node, and whether gradients are off."""
        node = super().create_node(*args, **kwargs)
        node.meta["call"] = max(len(self.calls) - 1, 0)
        node.meta["where"] = frame_location()
        node.meta["no_grad"] = not torch.is_grad_enabled()
        node.meta["autocast"] = current_region()
        return node


def _explain(error: Exception, root: nn.Module, module: nn.Module, path: str) -> TracingError:
    where = error_location(error) or function_location(type(module).forward)
    text = str(error)
    if "inputs to control flow" in text:
        reason = f"control flow depends on a tensor's value or shape at {_short(where)}"
    elif "cannot be iterated" in text or "argument of type 'Proxy' is not iterable" in text:
        reason = f"a loop runs over a tensor, whose length is not known, at {_short(where)}"
    elif "'len' is not supported" in text:
        reason = f"len() of a tensor is taken at {_short(where)} (x.shape[0] can be traced)"
    elif "does not support item assignment" in text:
        reason = f"a tensor is changed by item assignment at {_short(where)}"
    elif "not installed as a submodule" in text:
        reason = f"a module is created or reached outside the model's own submodules at {_short(where)}"
    elif "Proxy" in text:
        reason = f"a tensor is turned into a Python or numpy value at {_short(where)} ({text})"
    else:
        reason = f"{type(error).__name__}: {text}"
    if not path:
        subject = f"{type(root).__name__}.forward cannot be traced"
    elif _holds_table(module):
        subject = (
            f"{path} ({type(module).__name__}) cannot be traced, and holds an embedding, so it cannot run untraced"
        )
    else:
        subject = f"{path} ({type(module).__name__}) failed"
    return TracingError(f"{subject}: {reason}.", fix=_WAYS_OUT, where=where)


def _short(where: str) -> str:
    return where.replace("\\", "/").rsplit("/", 1)[-1]


def _constants(root: nn.Module, graph: fx.Graph) -> dict[str, torch.Tensor]:
    """Tensors of the graph that are neither parameters nor buffers."""
    registered = dict(root.named_parameters(remove_duplicate=False)) | dict(root.named_buffers(remove_duplicate=False))
    found: dict[str, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in registered:
            owner: Any = root
            for part in str(node.target).split("."):
                owner = getattr(owner, part)
            found[str(node.target)] = owner
    return found


def _unify_modes(training: fx.Graph, evaluation: fx.Graph) -> bool:
    """Make constants depend on the mode if they differ between two otherwise equal graphs.

    Returns:
        False if the graphs differ in more than constants; then nothing changes.
    """
    ours, theirs = list(training.nodes), list(evaluation.nodes)
    same = [(a.op, a.target, a.name) for a in ours] == [(b.op, b.target, b.name) for b in theirs]
    pairs = [
        (a, _flatten((a.args, a.kwargs)), _flatten((b.args, b.kwargs))) for a, b in zip(ours, theirs, strict=False)
    ]
    if not same or any(len(x) != len(y) for _, x, y in pairs):
        return False
    if any(isinstance(p, fx.Node) != isinstance(q, fx.Node) for _, x, y in pairs for p, q in zip(x, y, strict=True)):
        return False
    mode: fx.Node | None = None
    for node, in_training, in_evaluation in pairs:
        if all(_equal(p, q) for p, q in zip(in_training, in_evaluation, strict=True)):
            continue
        if mode is None:
            with training.inserting_before(ours[0]):
                mode = training.placeholder(TRAINING)
                mode.meta.update(ours[0].meta)
        values: list[Any] = []
        for p, q in zip(in_training, in_evaluation, strict=True):
            if _equal(p, q):
                values.append(p)
                continue
            with training.inserting_before(node):
                choice = training.call_function(choose, (mode, p, q))
                choice.meta.update(node.meta)
            values.append(choice)
        remaining = iter(values)
        node.args = tuple(_rebuild(a, remaining) for a in node.args)
        node.kwargs = {key: _rebuild(value, remaining) for key, value in node.kwargs.items()}
    return True


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _flatten(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _flatten(item)]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    return [value]


def _rebuild(value: Any, leaves: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)([_rebuild(item, leaves) for item in value])
    if isinstance(value, dict):
        return {key: _rebuild(item, leaves) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(next(leaves), next(leaves), next(leaves))
    return next(leaves)


def _equal(p: Any, q: Any) -> bool:
    if isinstance(p, fx.Node):
        return bool(p.name == q.name)
    return type(p) is type(q) and bool(p == q or p is q)
