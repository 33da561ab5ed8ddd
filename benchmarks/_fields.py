"""A network of 100 fields. Its inputs are too many to be written down, so torch.fx writes the forward method."""

from __future__ import annotations

from benchmarks._clicks import NETWORKS
from examples.paper.clicks.parts import NUM_DENSE, NUM_IDS, Concat, FullyConnected, Slot
from examples.paper.prepare import field_names
from torch import fx, nn

__all__ = ["build"]

_SLOTS = ("user", "item", "context")


def build() -> nn.Module:
    """The entry point of the network `fields`: ids (B,) by field and numbers (B, 13) -> logits (B,)."""
    network = NETWORKS["fields"]
    root = nn.Module()
    for name in _SLOTS:
        root.add_module(name, Slot(NUM_IDS, network.dim))
    [hidden] = network.hidden
    root.concat = Concat()
    root.fc = FullyConnected(network.fields * network.dim + NUM_DENSE, hidden)
    root.output = nn.Linear(hidden, 1)

    graph = fx.Graph()
    ids = [graph.placeholder(name) for name in field_names(network.fields)]
    dense = graph.placeholder("dense")
    rows = [
        graph.call_module(name, (ids[first:end],)) for name, (first, end) in zip(_SLOTS, network.slots, strict=True)
    ]
    x = graph.call_module("concat", (*rows, dense))
    for layer in ("fc", "output"):
        x = graph.call_module(layer, (x,))
    graph.output(graph.call_method("squeeze", (x, -1)))
    return fx.GraphModule(root, graph)
