"""Embedding call sites, which become lookups at the parameter servers.

Each use of a table ends in `F.embedding` or `F.embedding_bag` on the table's weight: a call of the module, a functional
call, or a subclass with its own `forward`. These nodes are the sites. Any other use of the weight needs the whole
table, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from heterps_runtime.intake import kinds
from heterps_runtime.intake.build import MAX_ROWS, embedding_location
from heterps_runtime.intake.errors import EmbeddingError
from heterps_runtime.partition.tables import MAX_DIM, Table

__all__ = ["Site", "SiteArguments", "SiteIds", "find_sites", "prepare_ids", "table_parameters"]


@dataclass(frozen=True)
class Site:
    """A lookup of a stage.

    For kind "bag", `SiteIds.ids` is (nnz,) and `SiteIds.offsets` is (B,): 2-D input is flattened, and the last offset
    of `include_last_offset` is removed. Rows at `padding_idx` get no gradient, and bags ignore them.
    """

    table: int
    kind: str  # "embedding" | "bag"
    mode: str  # "sum" | "mean" | "max" for bags, "" for embeddings
    padding_idx: int | None


@dataclass(frozen=True)
class SiteIds:
    """The input of a lookup: ids as the features have them, which may be outside [0, num_embeddings)."""

    ids: Tensor  # int64, any shape; (nnz,) for a bag
    offsets: Tensor | None  # int64 (B,), start of each bag
    weights: Tensor | None  # (nnz,), per_sample_weights


@dataclass(frozen=True)
class SiteArguments:
    """A site in the graph, with the nodes of its ids, offsets and weights."""

    site: Site
    table: Table
    ids: fx.Node
    offsets: fx.Node | None
    weights: fx.Node | None
    closing_offset: bool  # the user's include_last_offset
    where: str


def table_parameters(module: nn.Module) -> dict[int, nn.Module]:
    """Owner of each embedding weight, by the parameter's `id`.

    Raises:
        EmbeddingError: a weight is computed by a parametrization, frozen, or shared with another kind of layer.
    """
    owners: dict[int, nn.Module] = {}
    for name, child in module.named_modules():
        if not isinstance(child, nn.Embedding | nn.EmbeddingBag):
            continue
        weight = child._parameters.get("weight")
        where = embedding_location(child)
        if weight is None:
            raise EmbeddingError(
                f"the weight of {name} is computed from other parameters (a parametrization such as weight_norm).",
                fix="remove the parametrization: parameter servers hold plain rows.",
                where=where,
            )
        if not weight.requires_grad:
            raise EmbeddingError(
                f"the weight of {name} is frozen, but every table of a parameter server is trained.",
                fix="keep fixed values in a buffer, read as self.table[ids].",
                where=where,
            )
        if child.num_embeddings > MAX_ROWS:
            raise EmbeddingError(f"{name} has more than 2^48 rows.", fix="lower num_embeddings.", where=where)
        if child.embedding_dim > MAX_DIM:
            raise EmbeddingError(
                f"{name} has rows of more than 2^20 elements.", fix="lower embedding_dim.", where=where
            )
        owners.setdefault(id(weight), child)
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding | nn.EmbeddingBag):
            continue
        for attribute, parameter in child.named_parameters(recurse=False):
            if id(parameter) in owners:
                raise EmbeddingError(
                    f"{name or 'the model'}.{attribute} is an embedding's weight used by {type(child).__name__} "
                    "(tied weights), which needs the whole table.",
                    fix="give this layer a weight of its own; tables can only be looked up.",
                    where=embedding_location(owners[id(parameter)]),
                )
    return owners


def find_sites(
    module: nn.Module, nodes: list[fx.Node], owners: dict[int, nn.Module]
) -> tuple[tuple[Table, ...], dict[fx.Node, SiteArguments]]:
    """Tables in the order of first use, and the sites among the graph's live nodes.

    Raises:
        EmbeddingError: an option is not supported, or a weight is used other than by a lookup.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    first_name = {id(parameter): name for name, parameter in module.named_parameters()}
    tables: dict[int, Table] = {}
    sites: dict[fx.Node, SiteArguments] = {}
    for node in nodes:
        call = kinds.table_call(node)
        weight = call["weight"] if call is not None else None
        for used in kinds.operands(node):
            if used.op != "get_attr" or id(parameters.get(str(used.target))) not in owners:
                continue
            if used is not weight:
                raise EmbeddingError(
                    f"{used.target} is used directly, which needs the whole table.",
                    fix="look rows up by calling the embedding; a weight tied to an output layer must be its own "
                    "parameter; for sizes use num_embeddings and embedding_dim.",
                    where=node.meta["where"],
                )
            assert call is not None
            key = id(parameters[str(used.target)])
            num_rows, dim = parameters[str(used.target)].shape
            padding = call["padding_idx"]
            padding = padding + num_rows if padding is not None and padding < 0 else padding
            table = tables.setdefault(key, Table(len(tables), first_name[key], num_rows, dim, padding))
            sites[node] = _site(node, call, table, padding)
    return tuple(tables.values()), sites


def _site(node: fx.Node, call: dict[str, Any], table: Table, padding: int | None) -> SiteArguments:
    where = node.meta["where"]
    for option in ("max_norm", "scale_grad_by_freq"):
        if call[option]:
            raise EmbeddingError(
                f"the lookup of {table.name} has {option}={call[option]}, which is not supported.",
                fix=f"leave {option} out.",
                where=where,
            )
    if node.meta["no_grad"]:
        raise EmbeddingError(
            f"{table.name} is looked up under torch.no_grad().",
            fix="look up with gradients on, and detach() the result.",
            where=where,
        )
    bag = "mode" in call
    weights, closing = call.get("per_sample_weights"), call.get("include_last_offset", False)
    if weights is not None and call["mode"] != "sum":
        raise EmbeddingError(
            f"the lookup of {table.name} has per_sample_weights with mode={call['mode']!r}.",
            fix='use mode="sum", the only one that torch allows.',
            where=where,
        )
    arguments = {"ids": call["input"], "offsets": call.get("offsets"), "per_sample_weights": weights}
    for name, argument in arguments.items():
        if not isinstance(argument, fx.Node) and (argument is not None or name == "ids"):
            raise EmbeddingError(
                f"the {name} of the lookup of {table.name} are a constant.",
                fix="pass a tensor that is made from the features.",
                where=where,
            )
    site = Site(table.index, "bag" if bag else "embedding", call.get("mode", ""), padding)
    return SiteArguments(site, table, call["input"], call.get("offsets"), weights, closing, where)


def prepare_ids(call: SiteArguments, ids: Tensor, offsets: Tensor | None, weights: Tensor | None) -> SiteIds:
    """Convert the arguments of a lookup to `SiteIds`.

    Raises:
        EmbeddingError: the ids are not integers, or a bag has no offsets.
    """
    if ids.dtype not in (torch.int64, torch.int32):
        raise EmbeddingError(
            f"the ids of {call.table.name} are {ids.dtype}, not int64.",
            fix="name a feature that holds ids, or convert with .long().",
            where=call.where,
        )
    wanted = ids.detach().long()
    weights = None if weights is None else weights.detach()
    if call.site.kind == "embedding":
        return SiteIds(wanted, None, None)
    if wanted.dim() == 2:
        rows, length = wanted.shape
        starts = torch.arange(rows, device=wanted.device) * length
        return SiteIds(wanted.reshape(-1), starts, None if weights is None else weights.reshape(-1))
    if offsets is None:
        raise EmbeddingError(
            f"the bags of {call.table.name} have ids of shape {tuple(ids.shape)} and no offsets.",
            fix="pass offsets with 1-D ids, or 2-D ids.",
            where=call.where,
        )
    offsets = offsets.detach().long()
    if call.closing_offset:
        stop = int(offsets[-1])
        wanted, offsets = wanted[:stop], offsets[:-1]
        weights = None if weights is None else weights[:stop]
    return SiteIds(wanted, offsets, weights)
