"""The policy network: one recurrent cell over the layers that scores every pool for each layer.

1. An embedding e of each (layer, pool) from its features, two dense layers; the second also sees the mean of the first
   over the pools, so that a pool is judged among its competitors (as in Deep Sets, Zaheer et al., 2017).
2. At layer l the cell reads the features of the layer, the mean of its embeddings, and the embedding of the choice for
   layer l - 1: equation (14) of [HeterPS] conditions on earlier actions, figure 3 does not feed them (erratum 16).
3. The score of pool t is <q(h), [e_lt, d_lt]>: the inner product of a query made from the cell's output with the
   embedding and with what earlier choices did to the pool. So one network serves any number of pools, in any order.

d = (is the pool of layer l - 1; if so, the sequential part of its stage with layer l, and what layer l adds to the
money of that stage; used share of its limit with layer l, up to 1; and beyond).

The features are finite and clipped, so a product here is invalid only if a parameter is. BLAS may report an invalid
value for finite ones all the same, rarely and on some CPUs (numpy issue 28227). So the functions ignore the report and
check their scores.

Problems and samples: P problems of equal L and T, n samples; `owner[n]` is the problem of a sample. Learning on one
problem has P = 1, imitation P = n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.pieces import FloatArray
from heterps_planner.policy.cells import Array, Cell, cell_of
from heterps_planner.policy.features import LAYER_NAMES, NAMES, Features

__all__ = ["Inputs", "Network", "Parameters", "initial_parameters", "stack"]

IntArray = NDArray[np.intp]
Parameters = dict[str, Array]
_DYNAMIC = 5
_FORBIDDEN = -1e9  # score of a pool that cannot run the layer
_products = np.errstate(invalid="ignore")


@dataclass(frozen=True)
class Inputs:
    """Features of P problems of the same size, in the precision of the network."""

    pair: Array  # (P, L, T, F)
    layer: Array  # (P, L, G)
    mask: Array  # (P, L, T): 0, or a large negative score for impossible pools
    share: Array  # shape (P, L, L, T), like the next two: of the stage of layers i..j
    sequential: Array
    extension: Array


def stack(features: list[Features], dtype: type[np.floating] = np.float32) -> Inputs:
    """Stack problems of the same size."""
    return Inputs(
        pair=np.array([item.pair for item in features], dtype),
        layer=np.array([item.layer for item in features], dtype),
        mask=np.array([np.where(item.possible, 0.0, _FORBIDDEN) for item in features], dtype),
        share=np.array([item.share for item in features], dtype),
        sequential=np.array([item.sequential for item in features], dtype),
        extension=np.array([item.extension for item in features], dtype),
    )


def initial_parameters(
    rng: np.random.Generator,
    cell: str = "lstm",
    *,
    embedding: int = 24,
    hidden: int = 48,
    dtype: type[np.floating] = np.float32,
) -> Parameters:
    """Draw parameters (Glorot scale; forget gates start open; queries start small, so that all pools are likely)."""
    wide = cell_of(cell).gates * hidden

    def draw(rows: int, columns: int, gain: float = 1.0) -> Array:
        values: Array = (rng.standard_normal((rows, columns)) * gain * np.sqrt(2 / (rows + columns))).astype(dtype)
        return values

    bias = np.zeros(wide, dtype)
    if cell == "lstm":
        bias[hidden : 2 * hidden] = 1
    result: Parameters = {
        "embed.first": draw(len(NAMES), embedding),
        "embed.first.bias": np.zeros(embedding, dtype),
        "embed.second": draw(embedding, embedding),
        "embed.mean": draw(embedding, embedding),
        "embed.second.bias": np.zeros(embedding, dtype),
        "cell.layer": draw(len(LAYER_NAMES), wide),
        "cell.mean": draw(embedding, wide),
        "cell.previous": draw(embedding, wide),
        "cell.recurrent": draw(hidden, wide),
        "cell.bias": bias,
        "query": draw(hidden, embedding + _DYNAMIC, 0.5),
        "query.bias": np.zeros(embedding + _DYNAMIC, dtype),
    }
    return result


class Network:
    """The functions of the network for given parameters, which stay constant."""

    def __init__(self, parameters: Mapping[str, Array], cell: str = "lstm") -> None:
        self.parameters = dict(parameters)
        self.cell: Cell = cell_of(cell)

    @_products
    def encode(self, inputs: Inputs) -> Encoded:
        """Compute everything that does not depend on choices."""
        w = self.parameters
        first = np.tanh(inputs.pair @ w["embed.first"] + w["embed.first.bias"])
        mean = first.mean(axis=2)
        context = mean @ w["embed.mean"] + w["embed.second.bias"]
        embedding = np.tanh(first @ w["embed.second"] + context[:, :, None])
        mean_embedding = embedding.mean(axis=2)
        drive = inputs.layer @ w["cell.layer"] + mean_embedding @ w["cell.mean"] + w["cell.bias"]
        return Encoded(self, inputs, first, mean, embedding, mean_embedding, drive)


@dataclass(frozen=True)
class Encoded:
    """P problems after the choice-independent part of the network."""

    network: Network
    inputs: Inputs
    first: Array  # (P, L, T, E)
    mean: Array  # (P, L, E)
    embedding: Array  # (P, L, T, E)
    mean_embedding: Array  # (P, L, E)
    drive: Array  # (P, L, gates * H)

    def choose(self, owner: IntArray, rng: np.random.Generator | None, temperature: float = 1.0) -> IntArray:
        """Choose pools layer by layer.

        Args:
            owner: problem of each sample, (n,).
            rng: draws the choices (Gumbel trick); None: take the most probable pool.
            temperature: values above 1 make the draws more uniform.

        Returns:
            Pools, (n, L).
        """
        decoder = _Decoder(self, owner)
        num_layers, num_pools = self.inputs.mask.shape[1:]
        shape = (num_layers, len(owner), num_pools)
        noise = None if rng is None else temperature * rng.gumbel(size=shape).astype(self.drive.dtype)
        for layer in range(num_layers):
            score = decoder.score(layer)
            decoder.take(layer, (score if noise is None else score + noise[layer]).argmax(axis=1))
        return decoder.result

    def most_probable(self, pods_LLT: FloatArray, room_T: FloatArray) -> IntArray:  # noqa: N803
        """Choose the most probable pools for a single problem, within the limits where possible.

        Args:
            pods_LLT: pods of the stage of layers i..j, infinite if too slow, shape (L, L, T).
            room_T: pods that the stages may take, shape (T,).

        Returns:
            Pools, (L,).
        """
        decoder, left = _Decoder(self, np.zeros(1, dtype=np.intp)), room_T.copy()
        begin = 0
        for layer in range(self.inputs.mask.shape[1]):
            fits = pods_LLT[layer, layer] <= left
            if layer:
                before = decoder.result[0, layer - 1]
                fits[before] = pods_LLT[begin, layer, before] <= left[before]
            score = decoder.score(layer)
            chosen = np.where(fits, score, score + _FORBIDDEN).argmax(axis=1)
            decoder.take(layer, chosen)
            if layer and chosen[0] != before:
                left[before] -= pods_LLT[begin, layer - 1, before]
                begin = layer
        result: IntArray = decoder.result[0]
        return result

    def forced(self, owner: IntArray, action: IntArray) -> Forced:
        """Run the network along given choices (n, L), and keep the values that the gradient needs."""
        return Forced(self, owner, action)


class _Decoder:
    """The network layer by layer, for choices that are made on the way."""

    def __init__(self, encoded: Encoded, owner: IntArray) -> None:
        self._encoded, self._owner = encoded, owner
        n, (num_layers, num_pools) = len(owner), encoded.inputs.mask.shape[1:]
        w, dtype = encoded.network.parameters, encoded.drive.dtype
        self._state = encoded.network.cell.start(n, len(w["cell.recurrent"]), dtype)
        self._closed = np.zeros((n, num_pools), dtype)  # share of each pool's limit that finished stages use
        self._begin = np.zeros(n, dtype=np.intp)  # first layer of the last stage
        self._rows = np.arange(n)
        self.result = np.zeros((n, num_layers), dtype=np.intp)

    @_products
    def score(self, layer: int) -> Array:
        """Advance to the layer and return the scores of its pools, (n, T). Layers are scored in order, once.

        Raises:
            FloatingPointError: a score is not finite.
        """
        encoded, owner, inputs = self._encoded, self._owner, self._encoded.inputs
        w = encoded.network.parameters
        hidden, width = len(w["cell.recurrent"]), encoded.embedding.shape[3]
        drive = encoded.drive[owner, layer]
        if layer:
            before = self.result[:, layer - 1]
            drive = drive + encoded.embedding[owner, layer - 1, before] @ w["cell.previous"]
        self._state, _ = encoded.network.cell.step(drive, w["cell.recurrent"], self._state)
        query = self._state[:, :hidden] @ w["query"] + w["query.bias"]
        if len(encoded.drive) == 1:  # one problem: a product with its embedding, without a copy for each sample
            score: Array = query[:, :width] @ encoded.embedding[0, layer].T + inputs.mask[0, layer]
            filled = self._closed + inputs.share[0, layer, layer]
        else:
            score = np.matmul(encoded.embedding[owner, layer], query[:, :width, None])[:, :, 0]
            score += inputs.mask[owner, layer]
            filled = self._closed + inputs.share[owner, layer, layer]
        if layer:
            stage = (owner, self._begin, layer, before)
            filled[self._rows, before] = self._closed[self._rows, before] + inputs.share[stage]
            score[self._rows, before] += (
                query[:, width]
                + query[:, width + 1] * inputs.sequential[stage]
                + query[:, width + 2] * inputs.extension[stage]
            )
        score += query[:, width + 3, None] * np.minimum(filled, 1)
        score += query[:, width + 4, None] * np.clip(filled - 1, 0, 2)
        _check(score)
        return score

    def take(self, layer: int, chosen: IntArray) -> None:
        """Give the layer to the chosen pools, (n,)."""
        self.result[:, layer] = chosen
        if layer:
            before = self.result[:, layer - 1]
            changed = chosen != before
            used = self._encoded.inputs.share[self._owner, self._begin, layer - 1, before]
            self._closed[self._rows, before] += np.where(changed, used, 0)
            self._begin = np.where(changed, layer, self._begin)


class Forced:
    """The network along given choices.

    Raises:
        FloatingPointError: a score is not finite.
    """

    @_products
    def __init__(self, encoded: Encoded, owner: IntArray, action: IntArray) -> None:
        self.encoded, self.owner, self.action = encoded, owner, action
        network, inputs = encoded.network, encoded.inputs
        w, cell = network.parameters, network.cell
        n, num_layers = action.shape
        width, hidden = encoded.embedding.shape[3], len(w["cell.recurrent"])
        dtype = encoded.drive.dtype
        self.layers = np.arange(num_layers)
        self.rows = np.arange(n)[:, None]
        self.picked = encoded.embedding[owner[:, None], self.layers, action]  # (n, L, E)
        drive = encoded.drive[owner]
        drive[:, 1:] += self.picked[:, :-1] @ w["cell.previous"]
        state = cell.start(n, hidden, dtype)
        self.states, self.kept = [state], []
        for layer in range(num_layers):
            state, kept = cell.step(drive[:, layer], w["cell.recurrent"], state)
            self.states.append(state)
            self.kept.append(kept)
        self.output = np.stack([state[:, :hidden] for state in self.states[1:]], axis=1)  # (n, L, H)
        self.query = self.output @ w["query"] + w["query.bias"]
        self.dynamic = _dynamic(inputs, owner, action, dtype)
        self.embedding = encoded.embedding[owner]  # (n, L, T, E)
        score = np.matmul(self.embedding, self.query[..., :width, None])[..., 0] + inputs.mask[owner]
        score += np.matmul(self.dynamic, self.query[..., width:, None])[..., 0]
        _check(score)
        score -= score.max(axis=2, keepdims=True)
        log_sum = np.log(np.exp(score).sum(axis=2, keepdims=True))
        self.log_probability = score - log_sum  # (n, L, T)
        self.probability = np.exp(self.log_probability)

    @property
    def log_likelihood(self) -> Array:
        """Logarithm of the probability of each sample's choices, (n,)."""
        result: Array = self.log_probability[self.rows, self.layers, self.action].sum(axis=1)
        return result

    @property
    def entropy(self) -> Array:
        """Mean entropy of the choices of each sample, in nats per layer, (n,)."""
        result: Array = -(self.probability * np.maximum(self.log_probability, -50)).sum(axis=2).mean(axis=1)
        return result

    def gradient(self, weight: Array, entropy_weight: float = 0.0) -> Parameters:
        """Return the gradient of `-sum(weight * log_likelihood) - entropy_weight * sum(entropy * L) / n`.

        Args:
            weight: (n,), weight of each sample's likelihood; negative weights make it less probable.
            entropy_weight: weight of the entropy bonus.
        """
        grad_score = self.probability * weight[:, None, None]
        grad_score[self.rows, self.layers, self.action] -= weight[:, None]
        if entropy_weight:
            log_probability = np.maximum(self.log_probability, -50)
            mean = (self.probability * log_probability).sum(axis=2, keepdims=True)
            grad_score += (entropy_weight / len(weight)) * self.probability * (log_probability - mean)
        return self._backward(grad_score.astype(self.output.dtype))

    @_products
    def _backward(self, grad_score: Array) -> Parameters:
        encoded, owner = self.encoded, self.owner
        network, inputs = encoded.network, encoded.inputs
        w, cell = network.parameters, network.cell
        width, hidden = encoded.embedding.shape[3], len(w["cell.recurrent"])
        n, num_layers, _ = grad_score.shape
        grad_query = np.concatenate(
            [
                np.matmul(grad_score[:, :, None], self.embedding)[:, :, 0],
                np.matmul(grad_score[:, :, None], self.dynamic)[:, :, 0],
            ],
            axis=2,
        )
        grad_output = grad_query @ w["query"].T
        grad_drive = np.empty((n, num_layers, len(w["cell.bias"])), grad_score.dtype)
        grad_rest = np.zeros_like(self.states[0][:, hidden:])
        carried = np.zeros((n, hidden), grad_score.dtype)
        for layer in range(num_layers - 1, -1, -1):
            grad_state = np.concatenate([grad_output[:, layer] + carried, grad_rest], axis=1)
            grad, grad_rest = cell.step_back(self.states[layer], self.kept[layer], grad_state)
            grad_drive[:, layer] = grad
            carried = grad @ w["cell.recurrent"].T
        before = np.stack([state[:, :hidden] for state in self.states[:-1]], axis=1)
        result = {
            "query": _outer(self.output, grad_query),
            "query.bias": grad_query.sum(axis=(0, 1)),
            "cell.recurrent": _outer(before, grad_drive),
            "cell.previous": _outer(self.picked[:, :-1], grad_drive[:, 1:]),
        }
        # Samples of one problem share its encoding, so their gradients with respect to it are summed.
        grad_embedding = np.zeros_like(encoded.embedding)
        by_score = grad_score[..., None] * self.query[:, :, None, :width]
        by_previous = grad_drive[:, 1:] @ w["cell.previous"].T
        by_score[self.rows, self.layers[:-1], self.action[:, :-1]] += by_previous
        if len(encoded.drive) == 1:
            grad_embedding[0] = by_score.sum(axis=0)
            drive = grad_drive.sum(axis=0)[None]
        else:
            np.add.at(grad_embedding, owner, by_score)
            drive = np.zeros_like(encoded.drive)
            np.add.at(drive, owner, grad_drive)
        result["cell.bias"] = drive.sum(axis=(0, 1))
        result["cell.layer"] = _outer(inputs.layer, drive)
        result["cell.mean"] = _outer(encoded.mean_embedding, drive)
        num_pools = grad_embedding.shape[2]
        grad_embedding += (drive @ w["cell.mean"].T)[:, :, None] / num_pools
        grad_second = grad_embedding * (1 - encoded.embedding * encoded.embedding)
        result["embed.second"] = _outer(encoded.first, grad_second)
        context = grad_second.sum(axis=2)
        result["embed.second.bias"] = context.sum(axis=(0, 1))
        result["embed.mean"] = _outer(encoded.mean, context)
        grad_first = grad_second @ w["embed.second"].T
        grad_first += (context @ w["embed.mean"].T)[:, :, None] / num_pools
        grad_first *= 1 - encoded.first * encoded.first
        result["embed.first"] = _outer(inputs.pair, grad_first)
        result["embed.first.bias"] = grad_first.sum(axis=(0, 1, 2))
        return result


def _check(score: Array) -> None:
    if not np.isfinite(score).all():
        message = "a score of the policy is not finite: its parameters are too large, or not numbers"
        raise FloatingPointError(message)


def _outer(left: Array, right: Array) -> Array:
    """Sum of outer products over all axes but the last, (a, b)."""
    product: Array = left.reshape(-1, left.shape[-1]).T @ right.reshape(-1, right.shape[-1])
    return product


def _dynamic(inputs: Inputs, owner: IntArray, action: IntArray, dtype: np.dtype[np.floating]) -> Array:
    """Return the effect of earlier choices on each pool: d of the module's docstring, (n, L, T, 5)."""
    n, num_layers = action.shape
    num_pools = inputs.mask.shape[2]
    layers, rows, problem = np.arange(num_layers), np.arange(n)[:, None], owner[:, None]
    result = np.zeros((n, num_layers, num_pools, _DYNAMIC), dtype)
    begins = np.ones((n, num_layers), dtype=bool)
    begins[:, 1:] = action[:, 1:] != action[:, :-1]
    begin = np.maximum.accumulate(np.where(begins, layers, 0), axis=1)
    # Share of the limits used by stages that ended before each layer, except the stage of the previous layer.
    ended = np.zeros((n, num_layers + 1, num_pools), dtype)
    row, layer = (action[:, 1:] != action[:, :-1]).nonzero()
    ended[row, layer + 1, action[row, layer]] = inputs.share[owner[row], begin[row, layer], layer, action[row, layer]]
    ended = ended.cumsum(axis=1)  # entry l: ended before layer l
    filled = inputs.share[problem, layers, layers]
    filled[:, 1:] += ended[rows, begin[:, :-1]]
    before = action[:, :-1]
    stage = (problem, begin[:, :-1], layers[1:], before)
    filled[rows, layers[1:], before] = ended[rows, begin[:, :-1], before] + inputs.share[stage]
    result[rows, layers[1:], before, 0] = 1
    result[rows, layers[1:], before, 1] = inputs.sequential[stage]
    result[rows, layers[1:], before, 2] = inputs.extension[stage]
    result[..., 3] = np.minimum(filled, 1)
    result[..., 4] = np.clip(filled - 1, 0, 2)
    return result
