"""In-place operations in a graph that is cut.

`out += x` and `x.add_(1)` change a tensor that other names may refer to. Within a stage, operations keep their order.
Across a cut, two names of the same memory would become two tensors. If that would change a result, the nodes must stay
in one stage.
"""

from __future__ import annotations

from torch import fx, nn

from heterps_runtime.intake import kinds
from heterps_runtime.intake.errors import TracingError

__all__ = ["keep_aliases_together", "memory_chain", "use_functional_forms"]

Modules = dict[str, nn.Module]  # by qualified name


def memory_chain(node: fx.Node, in_place: set[fx.Node], modules: Modules) -> list[fx.Node]:
    """The nodes whose memory `node` may share, from itself back to the origin of the memory."""
    chain = [node]
    while (kinds.is_view(node, modules) or node in in_place) and kinds.operands(node):
        node = kinds.operands(node)[0]
        chain.append(node)
    return chain


def use_functional_forms(nodes: list[fx.Node], in_place: set[fx.Node], modules: Modules) -> None:
    """Replace `a += b` by `a = a + b` if no other node uses `a` afterwards. Changes nodes and `in_place`."""
    position = {node: i for i, node in enumerate(nodes)}
    for node in [n for n in nodes if n in in_place and n.target in kinds.FUNCTIONAL_FORM]:
        if not _seen_later(node, nodes, in_place, modules, position):
            node.target = kinds.FUNCTIONAL_FORM[node.target]
            in_place.discard(node)


def keep_aliases_together(nodes: list[fx.Node], in_place: set[fx.Node], modules: Modules) -> list[list[fx.Node]]:
    """Groups of nodes that must not be cut apart.

    Raises:
        TracingError: a parameter or buffer is changed in place.
    """
    position = {node: i for i, node in enumerate(nodes)}
    groups: list[list[fx.Node]] = []
    for node in (n for n in nodes if n in in_place):
        chain = memory_chain(node, in_place, modules)
        if chain[-1].op == "get_attr":
            raise TracingError(
                f"forward changes {chain[-1].target} in place, which a split model cannot carry.",
                fix="use the operation without the trailing underscore, or keep such state in a submodule of its own.",
                where=node.meta["where"],
            )
        changed = kinds.operands(node)[0]
        for other, user in _seen_later(node, nodes, in_place, modules, position):
            if other is not changed:  # the changed value itself travels with its new content
                groups.append([*chain, other, node, user])
    return groups


def _seen_later(
    node: fx.Node, nodes: list[fx.Node], in_place: set[fx.Node], modules: Modules, position: dict[fx.Node, int]
) -> list[tuple[fx.Node, fx.Node]]:
    """Earlier names of the memory that an in-place node changes, each with every later reader."""
    root = memory_chain(node, in_place, modules)[-1]
    earlier = [n for n in nodes[: position[node]] if memory_chain(n, in_place, modules)[-1] is root]
    after = position[node]
    return [(n, u) for n in earlier for u in n.users if u.op == "output" or position.get(u, -1) > after]
