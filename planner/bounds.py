"""Lower bounds on the step time of every placement of a layout, for many layouts at once.

`quick_bounds` shares the work evenly and costs microseconds a thousand; `capacity_bounds` asks for the shortest pipeline
time in which the ranks, each with whole blocks and its own memory, can hold all blocks. Both are admissible: no placement
the search covers is faster (tests compare them with exhaustive search).

Shape legend: N layouts of one (pp, vpp, schedule), R ranks, C chunks of a rank, P policies, B counts of blocks on a rank.

Paths through a pipeline (T_r: forward plus backward of rank r for one microbatch; c: transfer delay; M: end of the
last action on rank 0; W' = Σ T + 2 (p − 1) c: one microbatch down and up again; w = p − r)

    any        M ≥ Σ_{i<r} T_i + 2 r c + m T_r                     rank r is busy, its first and last pass pay the way
    GPipe      M ≥ W' + (m − 1) T_r                                all wait behind rank r, forward and backward
    1F1B       2 M ≥ 2 W' + (2m − w − 1) T_r                       the sum of the one above and: down and up, m − w − 1
                                                                   pairs on rank r, and from r down and up again
    1F1B       M ≥ W' + Σ_{i≥r} T_i + 2 (w − 1) c + (m − w − 1) T_r    that second path itself, where m > w
    1F1B       M ≥ J W' + ((m − 1) mod p) T_r                      J = ⌊(m − 1) / p⌋ + 1 ≥ 2 loops of p microbatches
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models.specs.columns import Ints
from cost_models.specs.layout import Schedule
from cost_models.stage_costs import StageCosts
from planner.placement import TOLERANCE, stage_sizes

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

BISECTIONS = 32
"""Halvings of the interval that holds a capacity bound: finer than the bounds are tight."""
TABLE_ENTRIES = 4_000_000
"""Layouts × ranks × counts of blocks handled at once: bounds memory."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layouts that share the shape of their pipeline."""

    costs: StageCosts
    """N rows."""
    pp: int
    vpp: int
    schedule: Schedule
    microbatches: Ints
    """(N,)"""
    num_layers: int
    allowed: Bools

    def rows(self, index: Ints | slice) -> Group:
        """Some of the layouts."""
        return Group(
            costs=self.costs.rows(index),
            pp=self.pp,
            vpp=self.vpp,
            schedule=self.schedule,
            microbatches=self.microbatches[index],
            num_layers=self.num_layers,
            allowed=self.allowed,
        )

    @cached_property
    def rank_blocks(self) -> Ints:
        """Counts of blocks one rank may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp)
        return np.arange(low * self.vpp, high * self.vpp + 1)

    @cached_property
    def block_seconds(self) -> Floats:
        """Forward plus backward of one block; infinite under a policy that may not be used."""
        seconds = self.costs.layer_forward[:, None] + self.costs.layer_backward
        return np.where(self.allowed, seconds, np.inf)

    @cached_property
    def fixed_seconds(self) -> Floats:
        """Forward plus backward of one microbatch on each rank without its blocks."""
        x = self.costs
        fixed_NR = np.repeat(self.vpp * (x.stage_forward + x.stage_backward)[:, None], self.pp, axis=1)
        fixed_NR[:, 0] += x.embedding_forward + x.embedding_backward
        fixed_NR[:, -1] += x.head_forward + x.head_backward
        return fixed_NR

    @cached_property
    def live(self) -> Floats:
        """Live microbatches of each chunk when a rank has run its warm-up and one forward more.

        One moment of the schedule: what must fit at its peak must fit then.
        """
        m_N1, rank_R = self.microbatches[:, None], np.arange(self.pp)
        if self.schedule == "gpipe":
            return np.repeat(m_N1, self.pp, axis=1)[..., None].astype(np.float64)
        if self.schedule == "1f1b":
            return np.minimum(m_N1, self.pp - rank_R)[..., None].astype(np.float64)
        round_N1 = m_N1 // np.maximum(1, m_N1 // self.pp)
        warm_up_NR = (self.vpp - 1) * round_N1 + 2 * (self.pp - 1 - rank_R)
        units_NR = np.minimum(warm_up_NR + 1, m_N1 * self.vpp)
        rounds_NR, rest_NR = np.divmod(units_NR, round_N1 * self.vpp)
        started_NRC = rest_NR[..., None] - np.arange(self.vpp) * round_N1[..., None]
        live_NRC: Floats = rounds_NR[..., None] * round_N1[..., None] + np.clip(
            started_NRC, 0, round_N1[..., None]
        )
        return live_NRC.astype(np.float64)

    @cached_property
    def least_live(self) -> Floats:
        """β: live microbatches of the chunk that keeps fewest."""
        return self.live.min(axis=-1)

    @cached_property
    def more_live(self) -> Floats:
        """α: n blocks on a rank keep at least α + β n block-microbatches, as each chunk holds the fewest blocks."""
        low, _ = stage_sizes(self.num_layers, self.pp, self.vpp)
        return low * (self.live.sum(axis=-1) - self.vpp * self.least_live)

    @cached_property
    def free_bytes(self) -> Floats:
        """Bytes left for blocks during training."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + self.live[:, 0, 0] * x.embedding_activation
        free_NR[:, -1] -= x.head_static + self.live[:, -1, -1] * x.head_activation + x.head_working
        return free_NR

    @cached_property
    def updatable(self) -> Floats:
        """Blocks whose optimizer step fits in memory."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + x.embedding_update
        free_NR[:, -1] -= x.head_static + x.head_update
        return _whole(free_NR, (x.layer_static + x.layer_update)[:, None])

    @cached_property
    def blocks_that_fit(self) -> Floats:
        """Most blocks of a rank when all use one policy (as one chunk does)."""
        x = self.costs
        free_NRP = self.free_bytes[..., None] - x.working[:, None, :]
        free_NRP = free_NRP - self.more_live[..., None] * x.layer_activation[:, None, :]
        kept_NRP = self.least_live[..., None] * x.layer_activation[:, None, :]
        fit_NRP = np.minimum(
            _whole(free_NRP, x.layer_static[:, None, None] + kept_NRP), self.updatable[..., None]
        )
        return np.where(self.allowed, fit_NRP, -1.0)

    @cached_property
    def cycle_delay(self) -> Floats:
        """Transfers of one microbatch down the virtual stages and up again."""
        return 2 * (self.pp * self.vpp - 1) * self.costs.p2p if self.pp > 1 else np.zeros(len(self.costs))

    def tail(self, blocks_N: Floats) -> Floats:
        """What follows the last backward in any case, if rank 0 holds so many blocks at least.

        The synchronisation of rank 0, where all paths end, and the optimizer step of the fullest rank.
        """
        x = self.costs
        sync = x.rank_sync + blocks_N * x.layer_sync + x.embedding_sync
        optimizer = x.rank_optimizer + -(-self.num_layers // self.pp) * x.layer_optimizer
        if self.pp == 1:
            sync, optimizer = sync + x.head_sync, optimizer + x.embedding_optimizer + x.head_optimizer
        return sync + optimizer + x.step_overhead

    @cached_property
    def least_tail(self) -> Floats:
        """The tail with as few blocks on rank 0 as the search covers."""
        return self.tail(np.full(len(self.costs), float(self.rank_blocks[0])))

    @cached_property
    def most_blocks(self) -> Floats:
        """(N, P): blocks that fit on all ranks together under each policy, whatever the others use; policies by speed."""
        x = self.costs
        light_N11 = np.where(self.allowed, x.working, np.inf).min(axis=1)[:, None, None]
        kept_NRP = self.least_live[..., None] * x.layer_activation[:, None, :]
        each_NRP = x.layer_static[:, None, None] + kept_NRP
        most_NP = np.clip(_whole(self.free_bytes[..., None] - light_N11, each_NRP), 0, None).sum(axis=1)
        return np.where(np.isinf(self.block_seconds), 0.0, most_NP)

    @cached_property
    def least_work(self) -> Floats:
        """Least seconds of one microbatch over all ranks: the fastest policy on as many blocks as could have it."""
        order_NP = np.argsort(self.block_seconds, axis=1, kind="stable")
        seconds_NP = np.take_along_axis(self.block_seconds, order_NP, axis=1)
        most_NP = np.maximum.accumulate(np.take_along_axis(self.most_blocks, order_NP, axis=1), axis=1)
        added_NP = np.diff(np.minimum(most_NP, self.num_layers), axis=1, prepend=0.0)
        blocks_N = (added_NP * np.where(np.isinf(seconds_NP), 0.0, seconds_NP)).sum(axis=1)
        total: Floats = blocks_N + self.fixed_seconds.sum(axis=1)
        return total

    @cached_property
    def may_fit(self) -> Bools:
        """(N,): False where the ranks' memory cannot hold all blocks under any policies."""
        held_NP = np.where(self.allowed, self.most_blocks, 0.0)
        may: Bools = held_NP.max(axis=1) >= self.num_layers
        if self.vpp > 1:
            return may
        fit_NR = np.minimum(self.blocks_that_fit.max(axis=-1), self.rank_blocks[-1])
        return may & (fit_NR >= self.rank_blocks[0]).all(axis=1) & (fit_NR.sum(axis=1) >= self.num_layers)


def _whole(space: Floats, each: Floats) -> Floats:
    """How many times `each` goes into `space`, never too few for rounding."""
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.floor(space / each * (1 + np.copysign(TOLERANCE, space)))
    return np.where(each > 0, count, np.where(space >= 0, np.inf, -1.0))


def quick_bounds(group: Group) -> Floats:
    """(N,) seconds: work shared evenly, memory respected on average; infinite where no placement can fit."""
    x, m, pp = group.costs, group.microbatches, group.pp
    work = group.least_work
    cycle = work + group.cycle_delay
    whole = group.fixed_seconds.min(axis=1) + -(-group.num_layers // pp) * group.block_seconds.min(axis=1)
    busiest = np.maximum(work / pp, whole)
    if group.schedule == "gpipe":
        pipeline = cycle + (m - 1) * busiest
    elif group.schedule == "1f1b":
        loops, rest = np.divmod(m - 1, pp)
        pipeline = np.maximum(m * busiest, cycle + (2 * m - pp - 1) / 2 * busiest)
        pipeline = np.where(loops >= 1, np.maximum(pipeline, (loops + 1) * cycle + rest * busiest), pipeline)
    else:
        low, _ = stage_sizes(group.num_layers, pp, group.vpp)
        stage = x.stage_forward + x.stage_backward + low * group.block_seconds.min(axis=1)
        embedding = x.embedding_forward + x.embedding_backward
        way = (pp - 1) / 2 * (stage + 2 * x.p2p) + (pp - 1) / pp * embedding
        pipeline = np.maximum(cycle, m * work / pp + way)
    return np.where(group.may_fit, pipeline + group.least_tail, np.inf)


def capacity_bounds(group: Group) -> Floats:
    """(N,) seconds: the least M in which whole blocks, in each rank's memory, all find a place; infinite where none do."""
    entries = group.pp * len(group.rank_blocks)
    step = max(1, TABLE_ENTRIES // entries)
    parts = [
        _capacity_bounds(group.rows(slice(start, start + step))) for start in range(0, len(group.costs), step)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _capacity_bounds(group: Group) -> Floats:
    """Bisect the step time between the quick bound and one at which memory alone decides."""
    quick = quick_bounds(group)
    seconds_NRB = _rank_seconds(group)
    lower = np.where(np.isfinite(quick), quick, 0.0)
    slowest = np.where(np.isfinite(seconds_NRB), seconds_NRB, 0.0).max(axis=(1, 2))
    rounds = 2 * (group.microbatches + group.pp)
    upper = (
        lower
        + rounds * (slowest + group.cycle_delay)
        + group.tail(group.rank_blocks[-1:].astype(np.float64))
    )
    possible = _all_blocks_find_a_place(group, seconds_NRB, upper) & np.isfinite(quick)
    for _ in range(BISECTIONS):
        middle = (lower + upper) / 2
        enough = _all_blocks_find_a_place(group, seconds_NRB, middle)
        upper, lower = np.where(enough, middle, upper), np.where(enough, lower, middle)
    return np.where(possible, lower, np.inf)


def _rank_seconds(group: Group) -> Floats:
    """(N, R, B): least seconds of one microbatch on a rank that holds so many blocks; infinite where they do not fit.

    One policy for the rank, or, with several chunks, the best mix of two policies: the linear relaxation of choosing
    one per block under one memory row has such a mix as its optimum.
    """
    blocks_B = group.rank_blocks.astype(np.float64)
    best = np.full((len(group.costs), group.pp, len(blocks_B)), np.inf)
    for policy in np.flatnonzero(group.allowed).tolist():
        seconds_NRB = group.block_seconds[:, policy, None, None] * blocks_B
        np.minimum(
            best,
            np.where(blocks_B <= group.blocks_that_fit[..., policy, None], seconds_NRB, np.inf),
            out=best,
        )
    if group.vpp > 1:
        for fast in np.flatnonzero(group.allowed).tolist():
            for light in np.flatnonzero(group.allowed).tolist():
                if fast != light:
                    np.minimum(best, _mixed_seconds(group, fast, light), out=best)
    return best + group.fixed_seconds[..., None]


def _mixed_seconds(group: Group, fast: int, light: int) -> Floats:
    """(N, R, B): as many blocks under `fast` as memory holds, the others under `light`."""
    x, blocks_B = group.costs, group.rank_blocks.astype(np.float64)
    kept, spared = x.layer_activation[:, fast], x.layer_activation[:, light]
    working = np.minimum(x.working[:, fast], x.working[:, light])
    light_NR = group.free_bytes - working[:, None] - group.more_live * np.minimum(kept, spared)[:, None]
    per_light_NR = x.layer_static[:, None] + group.least_live * spared[:, None]
    left_NRB = light_NR[..., None] - per_light_NR[..., None] * blocks_B
    swapped_NR = group.least_live * (kept - spared)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        fast_NRB = np.where(swapped_NR[..., None] > 0, left_NRB / swapped_NR[..., None], np.inf)
    fast_NRB = np.clip(fast_NRB * (1 + TOLERANCE), 0, blocks_B)
    saved = (group.block_seconds[:, light] - group.block_seconds[:, fast])[:, None, None]
    seconds = group.block_seconds[:, light, None, None] * blocks_B - fast_NRB * saved
    slack = TOLERANCE * x.memory_limit[:, None, None]
    fits = (left_NRB >= -slack) & (blocks_B <= group.updatable[..., None]) & (saved >= 0)
    return np.where(fits, seconds, np.inf)


def _all_blocks_find_a_place(group: Group, seconds_NRB: Floats, step_N: Floats) -> Bools:
    """(N,): whether ranks within the limits that a step of `step_N` seconds sets can hold the model.

    The limits use lower bounds on all work and on the tail. Where the ranks have little to spare, each must hold the
    blocks that the others cannot, which raises both; so the second round is tighter, and each alone is admissible.
    """
    work_N, tail_N = group.least_work, group.least_tail
    for _ in range(2):
        limit_NR = _rank_limits(group, seconds_NRB, step_N - tail_N, work_N) * (1 + TOLERANCE)
        count_NR = (np.isfinite(seconds_NRB) & (seconds_NRB <= limit_NR[..., None])).sum(axis=2)
        most_NR = np.where(count_NR > 0, group.rank_blocks[0] + count_NR - 1, 0)
        spare_N = most_NR.sum(axis=1) - group.num_layers
        least_NR = np.clip(most_NR - spare_N[:, None], group.rank_blocks[0], group.rank_blocks[-1])
        index_NR1 = (least_NR - group.rank_blocks[0])[..., None]
        needed_NR = np.take_along_axis(seconds_NRB, index_NR1, axis=2)[..., 0]
        needed_N = np.where(np.isfinite(needed_NR), needed_NR, 0.0).sum(axis=1)
        rest_N = np.clip(group.num_layers - least_NR.sum(axis=1), 0, None)
        work_N = np.maximum(work_N, needed_N + rest_N * group.block_seconds.min(axis=1))
        tail_N = group.tail(least_NR[:, 0].astype(np.float64))
    enough: Bools = (count_NR > 0).all(axis=1) & (spare_N >= 0)
    return enough


def _rank_limits(group: Group, seconds_NRB: Floats, pipeline_N: Floats, work_N: Floats) -> Floats:
    """(N, R): the most seconds per microbatch each rank may take if the pipeline ends by `pipeline_N`; see the paths above."""
    x, pp = group.costs, group.pp
    M, m, rank_R = pipeline_N[:, None], group.microbatches[:, None], np.arange(pp)
    least_NR = seconds_NRB.min(axis=2)
    least_NR = np.where(np.isfinite(least_NR), least_NR, 0.0)  # where a rank holds nothing, its count says so
    if group.vpp > 1:
        low, _ = stage_sizes(group.num_layers, pp, group.vpp)
        first_chunk = x.stage_forward + x.stage_backward + low * group.block_seconds.min(axis=1)
        least_NR = np.repeat(first_chunk[:, None], pp, axis=1)
        least_NR[:, 0] += x.embedding_forward + x.embedding_backward
    way_NR = np.cumsum(least_NR, axis=1) - least_NR + 2 * rank_R * x.p2p[:, None]
    limit_NR = (M - way_NR) / m
    if group.vpp > 1 or pp == 1:
        return limit_NR
    cycle = (work_N + group.cycle_delay)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        if group.schedule == "gpipe":
            return np.minimum(limit_NR, np.where(m > 1, (M - cycle) / (m - 1), limit_NR))
        others = rank_R * M / m  # ranks before r take at most M / m each
        after = (pp - 1 - rank_R) * M / m
        way_back = 2 * rank_R * x.p2p[:, None]
        limits = [(M - way_back - work_N[:, None] + after) / (m - 1)]
        window = pp - rank_R
        limits.append(2 * (M - cycle) / (2 * m - window - 1))
        again = work_N[:, None] + 2 * (window - 1) * x.p2p[:, None]
        limits.append(np.where(m > window + 1, (M - cycle - again + others) / (m - window - 1), np.inf))
        loops, rest = np.divmod(m - 1, pp)
        round_trips = np.where(
            rest > 0, (M - (loops + 1) * cycle) / rest, np.where(M >= (loops + 1) * cycle, np.inf, -1)
        )
        limits.append(np.where(loops >= 1, round_trips, np.inf))
    for limit in limits:
        limit_NR = np.minimum(limit_NR, np.where(np.isnan(limit), np.inf, limit))
    return limit_NR
