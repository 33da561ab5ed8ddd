"""Kinds of nodes of the traced graph, for cutting.

The graph is traced without example inputs, so a node is classified by its operation alone.

- *sizes*: numbers and shapes (`x.shape[0]`, `x.size()`, `x.item()`). They never cross a cut: each stage computes them
  from the tensor.
- *splits*: tuples of views (`x.chunk(2)`). They do not cross cuts either.
- *views* share memory with their first argument; *in-place* operations change it.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import fx, nn

__all__ = [
    "FUNCTIONAL_FORM",
    "blocks_gradient",
    "is_batch_norm",
    "is_in_place",
    "is_multi_output_module",
    "is_random",
    "is_running_norm",
    "is_size",
    "is_split",
    "is_view",
    "operands",
    "table_call",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SIZE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "itemsize", "nbytes", "layout"})
_SIZE_METHODS = _words(
    "size dim ndimension numel nelement stride element_size item tolist get_device is_floating_point "
    "is_contiguous is_complex __len__"
)
_SPLIT_NAMES = _words("chunk split unbind tensor_split hsplit vsplit dsplit split_with_sizes")
_VIEW_NAMES = _words(
    "view view_as reshape reshape_as flatten unflatten ravel transpose t permute squeeze unsqueeze expand expand_as "
    "narrow select diagonal detach contiguous to swapaxes movedim real imag"
)
_BLOCKING_NAMES = _words(
    "detach argmax argmin argsort eq ne lt le gt ge isnan isfinite isinf long int bool short byte sign round floor "
    "ceil trunc bucketize searchsorted zeros_like ones_like empty_like full_like rand_like randn_like new_zeros "
    "new_ones new_empty new_full new_tensor"
)
_RANDOM_NAMES = _words(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout rand rand_like randn "
    "randn_like randint randint_like randperm bernoulli normal multinomial poisson gumbel_softmax rrelu "
    "bernoulli_ normal_ uniform_ random_ exponential_"
)
#: In-place operators, and operators with the same value that do not change their argument.
FUNCTIONAL_FORM: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.imatmul: operator.matmul,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}


#: Modules that return their argument, or a view of it; a dropout does without training or with p = 0.
_VIEW_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd)


def operands(node: fx.Node) -> list[fx.Node]:
    """The distinct nodes among a node's arguments, in order."""
    return list(node.all_input_nodes)


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def is_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """Whether a node is a number, a shape, a device or a dtype; `sizes` are the earlier ones."""
    if node.op == "call_function":
        if node.target is getattr:
            return node.args[1] in _SIZE_ATTRIBUTES
        inputs = operands(node)
        arithmetic = getattr(node.target, "__module__", "") in ("_operator", "math", "builtins")
        return arithmetic and bool(inputs) and all(i in sizes for i in inputs)
    if node.op == "call_method":
        return node.target in _SIZE_METHODS or node.args[0] in sizes
    return False


def is_split(node: fx.Node) -> bool:
    """Whether a node is a tuple of views of one tensor."""
    return _name(node) in _SPLIT_NAMES


def is_view(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node may share memory with its first argument."""
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], _VIEW_MODULES)
    if node.op == "call_function" and node.target in (getattr, operator.getitem):
        return True
    return _name(node) in _VIEW_NAMES or is_split(node)


def is_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node changes its first argument."""
    if node.op == "call_module":
        return any(getattr(m, "inplace", False) is True for m in modules[str(node.target)].modules())
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") and not name.endswith("__")
    if node.op != "call_function":
        return False
    if node.target in FUNCTIONAL_FORM or (_name(node).endswith("_") and not _name(node).endswith("__")):
        return True
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # built-in operations publish no signature and have no `inplace` argument
        return bool(node.kwargs.get("inplace"))
    return bound.arguments.get("inplace") is True


def is_multi_output_module(module: nn.Module) -> bool:
    """Whether a torch module returns a tuple."""
    return isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention) and not isinstance(
        module, nn.RNNCell | nn.GRUCell
    )


def is_random(node: fx.Node) -> bool:
    """Whether a function node draws random numbers."""
    return _name(node) in _RANDOM_NAMES


def is_batch_norm(node: fx.Node) -> bool:
    """Whether a function node normalises over the batch."""
    return _name(node) == "batch_norm"


def is_running_norm(node: fx.Node) -> bool:
    """Whether a function node may update running statistics that it is given."""
    return _name(node) in ("batch_norm", "instance_norm")


def blocks_gradient(node: fx.Node) -> bool:
    """Whether no gradient passes through a node."""
    return bool(node.meta.get("no_grad")) or _name(node) in _BLOCKING_NAMES


def table_call(node: fx.Node) -> dict[str, Any] | None:
    """The named arguments of an `F.embedding` or `F.embedding_bag` node, None for any other node."""
    if node.op != "call_function" or node.target not in (F.embedding, F.embedding_bag):
        return None
    call = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    call.apply_defaults()
    return dict(call.arguments)
