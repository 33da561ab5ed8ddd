"""The table of all segments: the work of every run of consecutive layers on every pool, for the exact method.

Array shapes: L layers, T pools. An array `_LLT` is indexed [first layer, last layer, pool]; entries with first > last,
and segments with a layer that the pool cannot run, are infinite. Amounts are counted in pods (`unitsPerPod` units
each), so that every whole number of pods is a valid choice.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_planner.model.cost_model import (
    SLACK,
    Work,
    bubble_seconds,
    compute_lines,
    cut_work,
    pods_for_throughput,
    server_wait,
    stage_seconds_per_sample,
    stage_work,
    transfer_work,
    with_bubble,
    work_for_throughput,
)
from heterps_planner.model.memory import is_limited, least_pods_for_memory
from heterps_planner.model.pieces import FloatArray, Piece, least_pods
from heterps_planner.model.problem import LayerTimes, Pool, Problem, table_units

__all__ = ["Segments", "build_segments"]

_LEAST_OVERLAP = 1e-12  # a divisor: with one micro-batch, no bubble is too long


@dataclass(frozen=True)
class Segments:
    """The work of every segment of layers on every pool, with prices and limits.

    Invariant: all arrays are read-only by convention; variants are made by `restricted`, `scaled` and the others.
    """

    seq_LLT: FloatArray  # noqa: N815  # c_seq, seconds per sample
    par_LLT: FloatArray  # noqa: N815  # c_par, seconds per sample and pod
    send_seq_LT: FloatArray  # noqa: N815  # d_seq of a stage that ends at this layer
    send_par_LT: FloatArray  # noqa: N815  # d_par
    price_T: FloatArray  # noqa: N815  # dollars per pod and hour
    limit_T: FloatArray  # noqa: N815  # pods
    units_T: FloatArray  # noqa: N815  # units per pod
    floor: float  # samples per second
    ceiling: float  # dollars per hour, infinite if there is none
    server_pool: int = 0
    server_par: float = 0.0  # seconds per sample and pod of the parameter servers; 0: they limit nothing
    server_least: int = 0  # pods of the parameter servers; 0: they are not charged
    server_most: float = 0.0  # the same number if it is fixed, infinite if the throughput decides
    # Seconds per sample that a segment waits for one server, a part of c_seq. m servers divide them by m. None: 0.
    wait_LLT: FloatArray | None = None  # noqa: N815
    # Seconds per sample that a segment waits in each step, see `with_bubble`. None: 0.
    bubble_LLT: FloatArray | None = None  # noqa: N815
    overlap: float = 1.0  # 1 - 1/M of M micro-batches
    least_LLT: FloatArray | None = None  # noqa: N815  # pods that the memory asks for; infinite: fits nowhere
    # Seconds of training that interruptions are expected to cost per second, for each pod of a stage. None: 0.
    loss_T: FloatArray | None = None  # noqa: N815
    server_loss: float = 0.0  # the same for each pod of the servers, whatever the throughput
    server_loss_samples: float = 0.0  # in addition, times the throughput in samples per second
    pieces: tuple[Piece, ...] = ()  # with tables: shapes (T,) and (L, L, T); seq_LLT, par_LLT are the first one's

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.seq_LLT.shape[0])

    @property
    def num_pools(self) -> int:
        """T."""
        return int(self.seq_LLT.shape[2])

    @property
    def interrupted(self) -> bool:
        """Whether units of a pool are interrupted."""
        return self.loss_T is not None

    def loss_of_server(self, throughput: float) -> float:
        """Return the seconds of training that each pod of the servers is expected to cost per second."""
        return self.server_loss + self.server_loss_samples / throughput

    def pods(self, theta_S: FloatArray) -> FloatArray:  # noqa: N803
        """Return the least pods per segment for each throughput.

        Args:
            theta_S: throughputs, shape (S,).

        Returns:
            Shape (S, L, L, T); infinite where the throughput cannot be reached within the pool's own limit.
        """
        theta = theta_S[:, None, None, None]
        waits = (0.0, 1.0) if self.bubble_LLT is None else (self.bubble_LLT, self.overlap)
        seconds = work_for_throughput(theta, *waits)
        if self.pieces:
            base = pods_for_throughput(theta, np.zeros(1), np.zeros(1), self.send_seq_LT, self.send_par_LT)
            if self.least_LLT is not None:
                base = np.maximum(base, self.least_LLT)
            need = least_pods(seconds, base, self.pieces)
        else:
            need = pods_for_throughput(theta, self.seq_LLT, self.par_LLT, self.send_seq_LT, self.send_par_LT, seconds)
            if self.least_LLT is not None:
                np.maximum(need, self.least_LLT, out=need)
        need[need > self.limit_T] = np.inf
        return need

    def least(self, first: int, last: int, pool: int) -> float:
        """Return the least pods that a stage may have."""
        return 1.0 if self.least_LLT is None else float(self.least_LLT[first, last, pool])

    def server_need(self, theta: FloatArray) -> FloatArray:
        """Return the parameter-server pods that sustain each throughput (erratum 12).

        The servers are one more stage that every sample passes: `server_par` seconds per sample and pod, no sequential
        part. So their number follows the throughput, with price and limits like those of other pods. Infinite where a
        fixed number does not sustain the throughput.
        """
        need = np.maximum(np.ceil(theta * (1 - SLACK) * self.server_par), self.server_least)
        return np.where(need <= self.server_most, need, np.inf)

    def server_throughput(self, pods: float) -> float:
        """Return the throughput that `pods` parameter-server pods sustain."""
        return math.inf if self.server_par == 0 else pods / self.server_par

    def with_servers(self, least: int, most: float) -> Segments:
        """Return a copy for `least` to `most` pods of parameter servers, each of them a server.

        Stages wait as for `most` servers. So the copy is exact for `least == most`, and otherwise a relaxation.
        """
        fixed = replace(self, server_least=least, server_most=most)
        if self.wait_LLT is None:
            return fixed
        saved = self.wait_LLT * (1 - 1 / most)
        if self.pieces:
            pieces = tuple(replace(p, seq=p.seq - saved) for p in self.pieces)
            return replace(fixed, seq_LLT=pieces[0].seq, pieces=pieces, wait_LLT=None)
        return replace(fixed, seq_LLT=np.maximum(self.seq_LLT - saved, 0.0), wait_LLT=None)  # 0: for rounding

    def for_servers(self, pods: int) -> Segments:
        """Return the segments of a plan with this number of server pods."""
        return self if self.wait_LLT is None else self.with_servers(pods, pods)

    def work(self, first: int, last: int, pool: int, pods: float) -> Work:
        """Return the computing work of one stage per sample and pod, valid near this number of pods."""
        line: Segments | Piece = self
        for piece in self.pieces:
            if piece.low[pool] <= pods <= piece.high[pool]:
                line = piece
                break
        seq, par = (line.seq_LLT, line.par_LLT) if isinstance(line, Segments) else (line.seq, line.par)
        return Work(float(seq[first, last, pool]), float(par[first, last, pool]))

    def transfer(self, last: int, pool: int) -> Work:
        """Return the transfer work of one stage per sample and pod."""
        return Work(float(self.send_seq_LT[last, pool]), float(self.send_par_LT[last, pool]))

    def stage_time(self, first: int, last: int, pool: int, pods: float) -> float:
        """Return seconds per sample of one stage, equation (3) of [HeterPS]."""
        compute = self.with_bubble(self.work(first, last, pool, pods).on(pods), first, last, pool)
        return stage_seconds_per_sample(compute, self.transfer(last, pool).on(pods))

    def with_bubble(self, compute: float, first: int, last: int, pool: int) -> float:
        """Return the seconds per sample of one stage's work together with its bubble."""
        if self.bubble_LLT is None:
            return compute
        return float(with_bubble(compute, float(self.bubble_LLT[first, last, pool]), self.overlap))

    def waiting(self, compute_LLT: FloatArray, least_LLT: FloatArray | float = 1.0) -> FloatArray:  # noqa: N803
        """Return `with_bubble` of all segments.

        Args:
            compute_LLT: seconds per sample of the work, or these times a number of pods.
            least_LLT: that number.
        """
        if self.bubble_LLT is None:
            return compute_LLT
        return with_bubble(compute_LLT, self.bubble_LLT * least_LLT, self.overlap)

    def restricted(self, allowed_LLT: NDArray[np.bool_]) -> Segments:  # noqa: N803
        """Return a copy with only the allowed segments as stages."""
        pieces = tuple(replace(p, seq=np.where(allowed_LLT, p.seq, np.inf)) for p in self.pieces)
        return replace(self, seq_LLT=np.where(allowed_LLT, self.seq_LLT, np.inf), pieces=pieces)

    def scaled(self, factor_LLT: FloatArray) -> Segments:  # noqa: N803
        """Return a copy with scaled computing times of the segments."""
        pieces = tuple(replace(p, seq=p.seq * factor_LLT, par=p.par * factor_LLT) for p in self.pieces)
        wait = None if self.wait_LLT is None else self.wait_LLT * factor_LLT
        bubble = None if self.bubble_LLT is None else self.bubble_LLT * factor_LLT
        seq, par = self.seq_LLT * factor_LLT, self.par_LLT * factor_LLT
        return replace(self, seq_LLT=seq, par_LLT=par, pieces=pieces, wait_LLT=wait, bubble_LLT=bubble)

    def of_pools(self, pools: NDArray[np.intp]) -> Segments:
        """Return the problem restricted to some of the pools, renumbered; the servers' pool is one of them."""
        return replace(
            self,
            seq_LLT=self.seq_LLT[:, :, pools],
            par_LLT=self.par_LLT[:, :, pools],
            send_seq_LT=self.send_seq_LT[:, pools],
            send_par_LT=self.send_par_LT[:, pools],
            price_T=self.price_T[pools],
            limit_T=self.limit_T[pools],
            units_T=self.units_T[pools],
            server_pool=int(np.flatnonzero(pools == self.server_pool)[0]),
            least_LLT=None if self.least_LLT is None else self.least_LLT[:, :, pools],
            wait_LLT=None if self.wait_LLT is None else self.wait_LLT[:, :, pools],
            bubble_LLT=None if self.bubble_LLT is None else self.bubble_LLT[:, :, pools],
            loss_T=None if self.loss_T is None else self.loss_T[pools],
            pieces=tuple(
                Piece(p.low[pools], p.high[pools], p.seq[:, :, pools], p.par[:, :, pools]) for p in self.pieces
            ),
        )

    def without_memory_limits(self) -> Segments:
        """Return a copy in which every segment fits into one pod."""
        return replace(self, least_LLT=None)

    def with_limit(self, pool: int, pods: float) -> Segments:
        """Return a copy with a different limit for one pool."""
        limits = self.limit_T.copy()
        limits[pool] = pods
        return replace(self, limit_T=limits)


def build_segments(problem: Problem) -> Segments:
    """Build the table of all segments of a problem.

    Args:
        problem: a validated problem.
    """
    num_layers, num_pools = len(problem.layers), len(problem.pools)
    starts = [_ranges(pool, problem) for pool in problem.pools]
    pieces: list[Piece] = []
    bubble = bubble_seconds(problem)
    for r in range(max(map(len, starts))):
        seq = np.full((num_layers, num_layers, num_pools), np.inf)
        par = np.zeros_like(seq)
        low, high = np.ones(num_pools), np.zeros(num_pools)
        for t, pool in enumerate(problem.pools):
            if r < len(starts[t]):
                begin, low[t], high[t] = starts[t][r]
                _sum_segments(problem, pool, begin, seq[:, :, t], par[:, :, t])
        pieces.append(Piece(low, high, seq, par))
    send_seq = np.zeros((num_layers, num_pools))
    send_par = np.zeros((num_layers, num_pools))
    for t, pool in enumerate(problem.pools):
        for i, layer in enumerate(problem.layers[:-1]):
            if (times := layer.pools.get(pool.name)) is not None:
                send = transfer_work(times, problem)
                send_seq[i, t], send_par[i, t] = send.sequential, send.parallel / pool.units_per_pod
    least: FloatArray | None = None
    if is_limited(problem):
        least = np.stack([least_pods_for_memory(problem, pool) for pool in problem.pools], axis=-1)
    server = problem.parameter_server
    server_pool = problem.pool_index(server.pool) if server else 0
    pod = problem.pools[server_pool].units_per_pod
    units = server.units if server else 0
    segments = Segments(
        seq_LLT=pieces[0].seq,
        par_LLT=pieces[0].par,
        send_seq_LT=send_seq,
        send_par_LT=send_par,
        price_T=np.array([pool.price_per_unit_hour * pool.units_per_pod for pool in problem.pools]),
        limit_T=np.array([float(pool.max_pods) for pool in problem.pools]),
        units_T=np.array([float(pool.units_per_pod) for pool in problem.pools]),
        floor=problem.min_samples_per_second,
        ceiling=math.inf if problem.max_cost_per_hour is None else problem.max_cost_per_hour,
        server_pool=server_pool,
        server_par=(server.cores_per_sample_per_second or 0.0) / pod if server else 0.0,
        server_least=max(1, server.least_units // pod if server else 0) if units is None else units // pod,
        server_most=math.inf if units is None else units // pod,
        wait_LLT=_waits(problem) if server else None,
        bubble_LLT=None if bubble is None else np.repeat(bubble[:, :, None], num_pools, axis=2),
        overlap=max(1 - 1 / problem.micro_batches, _LEAST_OVERLAP),
        least_LLT=least,
        pieces=tuple(pieces) if len(pieces) > 1 else (),
        **_losses(problem, server_pool),
    )
    return segments if units is None else segments.for_servers(units // pod)


def _losses(problem: Problem, server_pool: int) -> dict[str, Any]:
    """Return the fields of `Segments` that say what interruptions cost; none if there are none."""
    per_second = [pool.interruptions_per_unit_hour * pool.units_per_pod / 3600 for pool in problem.pools]
    if not any(per_second):
        return {}
    cost, of_server = problem.interruption, per_second[server_pool] if problem.parameter_server is not None else 0.0
    return {
        "loss_T": np.array(per_second) * cost.worker_seconds,
        "server_loss": of_server * cost.server_seconds,
        "server_loss_samples": of_server * cost.checkpoint_samples / 2,
    }


def _waits(problem: Problem) -> FloatArray | None:
    """Return the seconds per sample that each segment waits for one server, shape (L, L, T); None: nothing waits."""
    num_layers, num_pools = len(problem.layers), len(problem.pools)
    wait_LT = np.zeros((num_layers, num_pools))  # noqa: N806
    alone_LT = np.zeros((num_layers, num_pools))  # noqa: N806  # in a plan of one stage
    for t, pool in enumerate(problem.pools):
        for i, layer in enumerate(problem.layers):
            if (times := layer.pools.get(pool.name)) is not None:
                wait_LT[i, t] = server_wait(times, problem, pipelined=True)
                alone_LT[i, t] = server_wait(times, problem)
    if not wait_LT.any():
        return None
    result = np.zeros((num_layers, num_layers, num_pools))
    for first in range(num_layers):
        result[first, first:] = wait_LT[first:].cumsum(axis=0)
    result[0, -1] = alone_LT.sum(axis=0)
    return result


def _ranges(pool: Pool, problem: Problem) -> list[tuple[float, float, float]]:
    """Return (from units, least pods, most pods) of each range on which a pool's stages have one line."""
    edges = [0.0, *map(float, table_units(pool, problem.layers)), math.inf]
    pod = pool.units_per_pod
    found = []
    for begin, end in itertools.pairwise(edges):
        low, high = max(1.0, float(math.ceil(begin / pod))), end if end == math.inf else float(end // pod)
        if low <= high and end > pod:  # a single pod also belongs to the next range
            found.append((begin, low, high))
    return found


def _sum_segments(
    problem: Problem,
    pool: Pool,
    units: float,
    seq_LL: FloatArray,  # noqa: N803
    par_LL: FloatArray,  # noqa: N803
) -> None:
    """Fill in the work of all segments of a pool on the range that starts at this number of units."""
    num_layers, pod = len(problem.layers), pool.units_per_pod
    layer_seq, layer_par = np.full(num_layers, np.inf), np.zeros(num_layers)
    alone = np.full(num_layers, np.inf)  # c_seq of each layer in a plan of one stage

    def on_range(times: LayerTimes, *, pipelined: bool) -> Work:
        return [w for begin, w in compute_lines(times, problem, pipelined=pipelined) if begin <= units][-1]

    for i, layer in enumerate(problem.layers):
        if (times := layer.pools.get(pool.name)) is not None:
            work = on_range(times, pipelined=True)
            alone[i] = on_range(times, pipelined=False).sequential
            layer_seq[i], layer_par[i] = work.sequential, work.parallel / pod
    once = stage_work((), pool, problem)
    end_seq, end_par = np.zeros(num_layers), np.zeros(num_layers)  # messages of the cut after each layer
    for i, layer in enumerate(problem.layers[:-1]):
        if (times := layer.pools.get(pool.name)) is not None:
            cut = cut_work(times, problem)
            end_seq[i], end_par[i] = cut.sequential, cut.parallel / pod
    begin_seq = np.concatenate([[0.0], end_seq[:-1]])
    begin_par = np.concatenate([[0.0], end_par[:-1]])
    for i in range(num_layers):
        seq_LL[i, i:] = once.sequential + np.cumsum(layer_seq[i:]) + begin_seq[i] + end_seq[i:]
        par_LL[i, i:] = once.parallel / pod + np.cumsum(layer_par[i:]) + begin_par[i] + end_par[i:]
    seq_LL[0, num_layers - 1] = once.sequential + alone.sum()
