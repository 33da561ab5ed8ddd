"""The traced graph, analysed for cuts: the layer of each value, and the values that cross each cut.

Layers are the top-level calls in the order of the trace. Calls that share a trainable parameter, or between which a
value cannot be sent, are merged into one layer, with all calls between them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch import fx, nn

from heterps_runtime.intake import kinds
from heterps_runtime.intake.aliases import keep_aliases_together, use_functional_forms
from heterps_runtime.intake.errors import EmbeddingError, TracingError
from heterps_runtime.intake.location import function_location
from heterps_runtime.intake.sites import find_sites, table_parameters
from heterps_runtime.intake.trace import TRAINING, Call, Trace, choose

__all__ = ["CutGraph"]


class CutGraph:
    """A traced module that can be cut before each of its layers.

    Attributes:
        nodes: the live nodes in order, without the output.
        output: returns the logits.
        tables: embedding tables in the order of first use.
        sites: the nodes that are lookups.
        pulled: nodes that never cross a cut (parameters, numbers, splits); each stage computes them itself.
        in_place: nodes that change their first argument.
        calls: top-level calls; one for the whole `forward` if there are none.
        blocks: top-level calls of each layer.
        layer: of each node that is not pulled; -1 for features.

    Raises:
        TracingError: `forward` does not return logits, takes a dictionary, or changes its own state.
        EmbeddingError: a table is used in a way that is not supported.
    """

    def __init__(self, module: nn.Module, trace: Trace) -> None:
        self.module = module
        self.trace = trace
        self.calls = trace.calls or (Call("forward", type(module).__name__),)
        self.modules = dict(module.named_modules(remove_duplicate=False))
        self.parameter_names = {id(p): name for name, p in module.named_parameters()}
        self._by_path = dict(module.named_parameters(remove_duplicate=False))
        self.output = next(n for n in trace.graph.nodes if n.op == "output")
        self._check_signature()
        owners = table_parameters(module)
        self._table_ids = set(owners)
        self._find_live_nodes()
        use_functional_forms(self.nodes, self.in_place, self.modules)
        self.tables, self.sites = find_sites(module, self.nodes, owners)
        self._find_pulled()
        together = keep_aliases_together(self.nodes, self.in_place, self.modules)
        self._needs: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self._find_trainable()
        self._check_site_arguments()
        self._assign_layers(together)

    # --- questions ----------------------------------------------------------------------------------------------------
    def needs(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The values needed to compute a node; pulled nodes are replaced by their own needs."""
        if node not in self._needs:
            found: dict[fx.Node, None] = {}
            for operand in kinds.operands(node):
                found.update(dict.fromkeys(self.needs(operand) if operand in self.pulled else (operand,)))
            self._needs[node] = tuple(found)
        return self._needs[node]

    def parameters_of(self, node: fx.Node) -> list[str]:
        """First qualified names of the trainable dense parameters of a node, including those of pulled operands."""
        found: list[str] = []
        if node.op == "call_module":
            found += [
                self.parameter_names[id(p)] for p in self.modules[str(node.target)].parameters() if p.requires_grad
            ]
        attributes = [node] if node.op == "get_attr" else []
        waiting = [o for o in kinds.operands(node) if o in self.pulled]
        while waiting:
            pulled = waiting.pop()
            attributes += [pulled] if pulled.op == "get_attr" else []
            waiting += [o for o in kinds.operands(pulled) if o in self.pulled]
        for attribute in attributes:
            parameter = self._by_path.get(str(attribute.target))
            if parameter is not None and parameter.requires_grad and id(parameter) not in self._table_ids:
                found.append(self.parameter_names[id(parameter)])
        return list(dict.fromkeys(found))

    def live(self, cut: int) -> tuple[fx.Node, ...]:
        """The values that cross the cut before layer `cut`, in order."""
        return tuple(n for n in self.nodes if n in self._last_use and self.layer[n] < cut <= self._last_use[n])

    def name(self, node: fx.Node) -> str:
        """The name of a value in messages: that of the feature or of the fx node."""
        return str(node.target) if node.op == "placeholder" else str(node.name)

    def carries_gradient(self, node: fx.Node) -> bool:
        """Whether a value depends on trainable parameters, so that its producer needs its gradient."""
        return node in self._trainable

    # --- what is live -------------------------------------------------------------------------------------------------
    def _check_signature(self) -> None:
        where = function_location(type(self.module).forward)
        if not isinstance(self.output.args[0], fx.Node):
            kind = type(self.output.args[0]).__name__.removeprefix("immutable_")
            raise TracingError(
                f"forward returns a {kind}, not one tensor of logits.",
                fix="return the logits only, of shape (B,) or (B, C).",
                where=where,
            )
        for node in self.trace.graph.nodes:
            keys = [u.args[1] for u in node.users if u.target is operator.getitem]
            strings = [key for key in keys if isinstance(key, str)]
            if node.op == "placeholder" and strings:
                raise TracingError(
                    f"forward's parameter {node.target!r} is a dictionary, but features are passed one by one.",
                    fix=f"name them as parameters: def forward(self, {', '.join(dict.fromkeys(strings))}).",
                    where=where,
                )

    def _find_live_nodes(self) -> None:
        nodes = [n for n in self.trace.graph.nodes if n.op != "output"]
        self.in_place = {n for n in nodes if kinds.is_in_place(n, self.modules)}
        live: set[fx.Node] = set()
        # An in-place call whose result is unused still changes what other nodes read.
        waiting = [*kinds.operands(self.output), *(n for n in self.in_place if n.op != "call_module")]
        while waiting:
            node = waiting.pop()
            if node not in live:
                live.add(node)
                waiting.extend(kinds.operands(node))
        self.nodes = [n for n in nodes if n in live]
        self.in_place &= live

    def _find_pulled(self) -> None:
        self.sizes: set[fx.Node] = set()
        self.pulled: set[fx.Node] = set()
        for node in self.nodes:
            if node.target == TRAINING or node.target is choose or kinds.is_size(node, self.sizes):
                self.sizes.add(node)
            if node in self.sizes or node.op == "get_attr" or kinds.is_split(node):
                self.pulled.add(node)
        if kinds.operands(self.output)[0] in self.pulled:
            raise TracingError(
                "forward returns a number, a shape, a tuple or a parameter, not a tensor of logits.",
                fix="return the logits only, of shape (B,) or (B, C).",
                where=function_location(type(self.module).forward),
            )

    # --- what depends on what -----------------------------------------------------------------------------------------
    def _find_trainable(self) -> None:
        self._trainable: set[fx.Node] = set()
        self._dependent: dict[fx.Node, fx.Node] = {}  # node -> a lookup or use of a parameter that it depends on
        for node in self.nodes:
            if node in self.pulled:
                continue
            source = node in self.sites or bool(self.parameters_of(node))
            inherited = next((self._dependent[n] for n in self.needs(node) if n in self._dependent), None)
            if source or inherited is not None:
                self._dependent[node] = node if source else inherited or node
            if (
                source or any(n in self._trainable for n in self._gradient_operands(node))
            ) and not kinds.blocks_gradient(node):
                self._trainable.add(node)

    def _gradient_operands(self, node: fx.Node) -> Iterable[fx.Node]:
        for operand in kinds.operands(node):
            if operand not in self.pulled:
                yield operand
            elif operand not in self.sizes:
                yield from self._gradient_operands(operand)

    def _check_site_arguments(self) -> None:
        for call in self.sites.values():
            arguments = [("ids", call.ids), ("offsets", call.offsets), ("per_sample_weights", call.weights)]
            for name, argument in arguments:
                if argument is None:
                    continue
                reason = self._why_not_before_lookup(argument)
                if reason:
                    raise EmbeddingError(
                        f"the {name} of the lookup of {call.table.name} {reason}, but rows are fetched before "
                        "the stage computes anything.",
                        fix=f"make the {name} from the features alone, with operations that return new tensors.",
                        where=call.where,
                    )

    def _why_not_before_lookup(self, argument: fx.Node) -> str:
        seen: set[fx.Node] = set()
        waiting = [argument]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            source = self._dependent.get(node)
            if source is not None:
                what = "looked-up rows" if source in self.sites else "a trained parameter"
                return f"depend on {what} ({source.meta['where']})"
            if node.op == "get_attr" and self.parameters_of(node):
                return f"are or depend on the trained parameter {node.target}"
            if node in self.in_place or any(u in self.in_place and u.args[0] is node for u in node.users):
                return f"are changed in place ({node.meta['where']})"
            if kinds.is_random(node) or (
                node.op == "call_module" and isinstance(self.modules[str(node.target)], _RANDOM)
            ):
                return f"are random ({node.meta['where']})"
            waiting.extend(kinds.operands(node))
        return ""

    # --- layers -------------------------------------------------------------------------------------------------------
    def _assign_layers(self, together: list[list[fx.Node]]) -> None:
        call = {n: int(n.meta["call"]) for n in self.nodes}
        for node in self.nodes:  # unpacking a tuple belongs to the node that made it
            users = [u for u in node.users if u in call]
            if node not in self.pulled and node.op != "placeholder" and users and all(_takes_apart(u) for u in users):
                call.update({u: call[node] for u in users if u not in self.pulled})
        kept = [n for n in self.nodes if n not in self.pulled and n.op != "placeholder"]
        groups = [[call[n] for n in group if n.op not in ("placeholder", "output", "get_attr")] for group in together]
        groups += self._ties(kept, call)
        used = sorted({call[n] for n in kept})
        starts = [c for c in used if not any(min(g) < c <= max(g) for g in groups if g)]
        index = {c: sum(start <= c for start in starts) - 1 for c in used}
        self.blocks = [tuple(self.calls[c] for c in used if index[c] == i) for i in range(len(starts))]
        self.layer = {n: index[call[n]] if n.op != "placeholder" else -1 for n in self.nodes if n not in self.pulled}
        self._last_use: dict[fx.Node, int] = {}
        for node in kept:
            for needed in self.needs(node):
                self._last_use[needed] = max(self._last_use.get(needed, -1), self.layer[node])
        self._last_use[kinds.operands(self.output)[0]] = len(self.blocks)

    def _ties(self, kept: list[fx.Node], call: dict[fx.Node, int]) -> list[list[int]]:
        """Groups of calls that must be one layer: by shared parameters or state, and by tuples."""
        owners: dict[str, list[int]] = {}
        tuples: list[list[int]] = []
        for node in kept:
            names = self.parameters_of(node)
            if node.op == "call_module":
                submodule = self.modules[str(node.target)]
                names += [f"buffer {id(b)}" for b in submodule.buffers()]
                if kinds.is_multi_output_module(submodule):
                    tuples.append([call[node], *(call[u] for u in node.users if u in call)])
            for name in names:
                owners.setdefault(name, []).append(call[node])
        return [*owners.values(), *tuples]


_RANDOM = nn.modules.dropout._DropoutNd


def _takes_apart(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[1], int | str)
    return node.target is getattr and node.args[1] in ("values", "indices")
