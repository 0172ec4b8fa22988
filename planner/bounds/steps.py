"""Lower bounds on the step time of every placement of a layout, for many layouts at once.

`quick_bounds` divides the work evenly and costs microseconds a layout; `capacity_bounds` finds the shortest
step in which the ranks, each with complete blocks and its own memory, can hold all blocks. Both are
admissible: no placement the search covers is faster (tests compare them with exhaustive search).

**One chunk a rank.** Paths through a pipeline (T_r: forward plus backward of rank r for one microbatch; c:
transfer delay; M: end of the last action on rank 0; W' = Σ T + 2 (p − 1) c: one microbatch down and up again;
w = p − r):

(busy)   M ≥ Σ_{i<r} T_i + 2 r c + m T_r
         Any schedule: rank r does all its work between its first microbatch's way down and its last one's way up.
(queue)  M ≥ W' + (m − 1) T_r
         GPipe: all microbatches queue at rank r, forward and backward.
(again)  M ≥ W' + Σ_{i≥r} T_i + 2 (w − 1) c + (m − w − 1) T_r
         1F1B, m > w: the first one down and up to r, pairs on rank r, the last one from r down and up.
(both)   2 M ≥ 2 W' + (2m − w − 1) T_r
         1F1B: the sum of (busy) and (again).
(loops)  M ≥ J W' + ((m − 1) mod p) T_r,  J = ⌊(m − 1) / p⌋ + 1
         1F1B, m > p: a round trip for every p microbatches, the rest as pairs on rank r.

**Several chunks a rank.** Layouts whose placements are patterns are bounded by the least work of a pattern
that fits, on the decisive ranks:

    M ≥ Σ_{i<r} (T_i of chunk 0 + 2 c) + m Σ_chunks T_r        (busy), for every rank r

If backward passes are split, weight halves may run while the last microbatch is on its way up, and T_i is a
forward pass only. The sum is taken on the first rank, which waits for none, on the last, which waits for all,
and on the last of the fullest. The quick bound needs no patterns: on the first rank, blocks that do not fit
without recomputation pay the best rate of any policy.

**Several kinds of blocks.** A rank takes at least the seconds of the lightest run of neighbouring blocks that
it may have. A run has a number of blocks of each kind; each may follow any recompute policy that leaves
memory for all. For every price of a byte, the sum over blocks of the least seconds plus priced bytes, less
the price of the available memory, bounds the seconds of a run (Lagrange); the prices at which a block of some
kind would change its policy give the tightest bound.

Shape legend: N layouts of one (pp, vpp, schedule), for the quick bound of one schedule, R ranks, C chunks of
a rank, P policies, B counts of blocks on a rank, T patterns of one choice of sizes, J runs of equally many
blocks, K kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from itertools import combinations, product

import numpy as np

from cost_models.arrays import Array, Bools, Ints, least_allowed
from cost_models.schedules.registry import PLAIN, V_SHAPED, schedule_named
from cost_models.specs.choices import Schedule
from cost_models.specs.kinds import Kinds
from planner.placement.leaf import TOLERANCE
from planner.placement.patterns import blocks_of_chunks, chunk_sizes, policy_ends
from planner.placement.rank_costs import RankCosts, cheapest_seconds

PRECISION = 1e-5
"""Relative precision of the bisection for a capacity bound, finer than the bounds are tight."""
ROUNDS, ROUNDS_IN_POOLS = 3, 2
"""Number of rounds in which the time limits of the other ranks tighten each rank's limit, on one kind of GPU
and in several pools. In pools a third round costs more than it rules out."""
TABLE_ENTRIES = 4_000_000
"""Maximum layouts × ranks × block counts in one batch, which bounds memory."""


def quick_bounds(group: RankCosts) -> Array:
    """Lower bound of each layout's step time as if ranks shared work and memory evenly, seconds (N,);
    infinite where no placement can fit."""
    if group.schedule not in PLAIN:
        return quick_chunk_bounds(group)
    (pp, _), work = group.shape, group.least_work
    fullest = group.by_rank(group.fullest_rank_value(lambda kind: kind.least_block_seconds))
    busiest = np.maximum(work / pp, (group.fixed_seconds + fullest).min(axis=1))
    if group.ranks_differ:
        each_NR = group.by_rank(group.least_block_seconds)
        busiest = np.maximum(busiest, group.balanced(group.fixed_seconds, each_NR))
    cycle = work + group.cycle_delay
    pipeline = pipeline_seconds(group.schedule, pp, group.microbatches, cycle, busiest)
    return np.where(_may_fit(group), pipeline + group.least_tail, np.inf)


def pipeline_seconds(schedule: Schedule, pp: Ints | int, m: Ints, cycle: Array, busiest: Array) -> Array:
    """Lower bound of the time at which rank 0 ends its last action, seconds (N,), from the work of the
    busiest rank and the round trip of a microbatch. Some rank takes `busiest` seconds for each of `m`
    microbatches, and a microbatch takes `cycle` seconds down the pipeline and up again."""
    steady = schedule_named(schedule).steady
    if steady == "queue":
        return cycle + (m - 1) * busiest
    if steady is None:
        return np.maximum(m * busiest, cycle)
    loops, remainder = np.divmod(m - 1, pp)
    seconds = np.maximum(m * busiest, cycle + (2 * m - pp - 1) / 2 * busiest)
    return np.where(loops >= 1, np.maximum(seconds, (loops + 1) * cycle + remainder * busiest), seconds)


def capacity_bounds(group: RankCosts, cut_off: float = np.inf, precision: float = PRECISION) -> Array:
    """Lower bound of each layout's step time with whole blocks and each rank's own memory, seconds (N,);
    infinite where the blocks do not fit.

    At most `cut_off` seconds: slower layouts get the cut-off. `precision` is relative.
    """
    if group.schedule not in PLAIN:
        return chunk_bounds(group)
    step = max(1, TABLE_ENTRIES // (group.shape[0] * len(group.limited_to(cut_off).sizes)))
    starts = range(0, len(group), step)
    parts = [group.rows(slice(start, start + step)) for start in starts] if len(starts) > 1 else [group]
    return np.concatenate([rank_bounds(part, cut_off, precision) for part in parts])


def _may_fit(group: RankCosts) -> Bools:
    """Whether every rank of each layout may hold its minimum number of blocks, and all ranks together the
    model, (N,)."""
    fit_NR = np.minimum(-least_allowed(-group.blocks_that_fit, group.allowed), group.sizes[-1])
    may: Bools = (fit_NR >= group.sizes[0]).all(axis=1) & (fit_NR.sum(axis=1) >= group.num_layers)
    for kind in group.of_kinds:
        fit_of_kind_NR = np.clip(-least_allowed(-kind.blocks_that_fit, kind.allowed), 0, kind.num_layers)
        may &= fit_of_kind_NR.sum(axis=1) >= kind.num_layers
    return may


def rank_bounds(
    group: RankCosts, cut_off: float, precision: float, seconds_NRB: Array | None = None
) -> Array:
    """Shortest step in which the ranks together have time and memory for all blocks, a lower bound of the
    step time, seconds (N,). It is found by bisection from the quick bound.

    `seconds_NRB` (N, R, B) are those of one microbatch on a rank with each size within the cut-off, at least, if they
    are known.
    """
    quick, work, group = quick_bounds(group), group.least_work, group.limited_to(cut_off)
    seconds_NRB = _rank_seconds(group) if seconds_NRB is None else seconds_NRB
    lower = np.where(np.isfinite(quick), quick, 0.0)
    upper = np.full(len(lower), cut_off)
    if np.isinf(cut_off):
        slowest = np.where(np.isfinite(seconds_NRB), seconds_NRB, 0.0).max(axis=(1, 2))
        rounds = 2 * (group.microbatches + group.shape[0])
        upper = lower + rounds * (slowest + group.cycle_delay) + group.tail(int(group.sizes[-1]))

    def enough(step: Array) -> Bools:
        """Whether the ranks of each layout can hold all blocks if the step takes `step` seconds, (N,)."""
        _, most_NR = _rank_sizes(group, seconds_NRB, step, work)
        return np.asarray(most_NR.all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers))

    possible = np.isfinite(quick) & enough(upper)
    while (upper - lower > precision * lower)[possible].any():
        middle = (lower + upper) / 2
        reached = enough(middle)
        upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
    return np.where(possible, lower, np.maximum(quick, cut_off))


def _rank_seconds(group: RankCosts) -> Array:
    """Minimum seconds of one microbatch on a rank with B blocks, (N, R, B); infinite where the blocks do not
    fit in memory."""
    if group.kinds.number > 1:
        return lightest_runs(group) + group.fixed_seconds[..., None]
    fit_NRP = group.blocks_that_fit
    best = np.full((len(group), group.shape[0], len(group.sizes)), np.inf)
    policies = np.flatnonzero(group.allowed).tolist()
    for policy in policies:
        seconds = group.by_rank(group.block_seconds)[..., policy, None] * group.sizes
        fits_NRB = group.sizes <= fit_NRP[..., policy, None]
        np.minimum(best, np.where(fits_NRB, seconds, np.inf), out=best)
    for first, second in combinations(policies, 2):
        np.minimum(best, _mixed_seconds(group, first, second), out=best)
    return np.where(group.sizes <= group.updatable[..., None], best, np.inf) + group.fixed_seconds[..., None]


def _mixed_seconds(group: RankCosts, first: int, second: int) -> Array:
    """Minimum seconds of B blocks split between the recompute policies `first` and `second` in any fraction
    that fits in memory, (N, R, B); infinite where none fits.

    Least over three policies is least over two of them: there are two conditions, the number of blocks and memory.
    """
    x, by_rank, live_NR = group.costs, group.by_rank, group.live[..., 0]
    room_NR = group.free_bytes - np.minimum(group.working[..., first], group.working[..., second])
    room_NRB = room_NR[..., None] - by_rank(x.layer_static)[..., None] * group.sizes
    room_NRB = room_NRB + TOLERANCE * by_rank(x.memory_limit)[..., None]
    need = [live_NR[..., None] * by_rank(x.layer_activation)[..., policy, None] for policy in (first, second)]
    seconds = [by_rank(group.block_seconds)[..., policy, None] for policy in (first, second)]
    with np.errstate(divide="ignore", invalid="ignore"):
        at_border = (room_NRB - group.sizes * need[1]) / (need[0] - need[1])
    at_border = np.where(np.isfinite(at_border), at_border, 0.0)  # no border if both keep equally much
    best = np.full(room_NRB.shape, np.inf)
    for first_NRB in (np.zeros_like(room_NRB), group.sizes + np.zeros_like(room_NRB), at_border):
        second_NRB = group.sizes - first_NRB
        possible = (first_NRB >= 0) & (second_NRB >= 0)
        possible &= first_NRB * need[0] + second_NRB * need[1] <= room_NRB + TOLERANCE * np.abs(room_NRB)
        spent = first_NRB * seconds[0] + second_NRB * seconds[1]
        best = np.where(possible & (spent < best), spent, best)
    return best


def rank_sizes(group: RankCosts, step: Array) -> tuple[Ints, Ints]:
    """Minimum and maximum number of blocks of each rank over all placements with a step of at most `step`
    seconds, (N, R) each.

    Where there is no such placement, some rank's most is zero, or the sum of all of them less than the model.
    """
    group = group.limited_to(float(step.max(initial=0.0)))
    return _rank_sizes(group, _rank_seconds(group), step, group.least_work)


def _rank_sizes(group: RankCosts, seconds_NRB: Array, step: Array, work: Array) -> tuple[Ints, Ints]:
    """Minimum and maximum number of blocks that each rank can have in a step of at most `step` seconds, (N,
    R) each. `seconds_NRB` are the seconds of each number of blocks. `work` is a lower bound of the seconds of
    one microbatch over all ranks.

    Where the ranks have little to spare, each must hold the blocks that the others cannot, which raises both, and none
    takes longer than with its most blocks; so a further round is tighter, and each alone is admissible.
    """
    low, high, tail = group.sizes[0], group.sizes[-1], group.least_tail
    shortest_NR = seconds_NRB.min(axis=2)
    # where a rank holds nothing, its count says so
    shortest_NR = np.where(np.isfinite(shortest_NR), shortest_NR, 0.0)
    longest_NR = np.repeat((step / group.microbatches)[:, None], group.shape[0], axis=1)
    each_NR = group.by_rank(group.least_block_seconds)
    for remaining in reversed(range(ROUNDS_IN_POOLS if group.ranks_differ else ROUNDS)):
        limit_NR = rank_limits(group, step - tail, work, shortest_NR, longest_NR) * (1 + TOLERANCE)
        count_NR = (seconds_NRB <= limit_NR[..., None]).sum(axis=2)
        most_NR = np.where(count_NR > 0, low + count_NR - 1, 0)
        spare_N = most_NR.sum(axis=1) - group.num_layers
        least_NR = np.clip(most_NR - spare_N[:, None], low, high)
        if remaining:
            needed_NR = np.take_along_axis(seconds_NRB, (least_NR - low)[..., None], axis=2)[..., 0]
            needed_N = np.where(np.isfinite(needed_NR), needed_NR, 0.0).sum(axis=1)
            rest_N = np.clip(group.num_layers - least_NR.sum(axis=1), 0, None)
            rest_seconds = cheapest_seconds(rest_N, each_NR, np.maximum(most_NR - least_NR, 0.0))
            work = np.maximum(work, needed_N + rest_seconds)
            tail = group.tail(least_NR[:, 0].astype(np.float64))
            longest_NR = limit_NR
            if group.kinds.number == 1:  # of several kinds, other runs of as many blocks may take longer
                fullest_NR = np.maximum(count_NR - 1, 0)
                full_NR = np.take_along_axis(seconds_NRB, fullest_NR[..., None], axis=2)[..., 0]
                # of two policies in fractions, which `seconds_NRB` allows, less may fit than of the faster one alone
                is_fastest = group.block_seconds <= group.least_block_seconds[:, None] * (1 + TOLERANCE)
                fit_NRP = np.where(group.by_rank(is_fastest), group.blocks_that_fit, -1.0)
                has_room = group.sizes[fullest_NR] <= fit_NRP.max(axis=-1)
                longest_NR = np.where(has_room, np.minimum(limit_NR, full_NR), limit_NR)
    return least_NR, most_NR


def rank_limits(group: RankCosts, end_N: Array, work_N: Array, least_NR: Array, longest_NR: Array) -> Array:
    """Maximum seconds that each rank may take for a microbatch if the pipeline is to end within `end_N`
    seconds, (N, R). These are the path inequalities above, solved for the rank.

    Ranks take `least_NR` to `longest_NR` seconds for one microbatch, all together at least `work_N`. Sums over other
    ranks are what all work leaves, with at most `longest_NR` on every rank that does not matter.
    """
    (pp, _), c = group.shape, group.of_first_rank(group.costs.p2p)[:, None]
    M, m, W = end_N[:, None], group.microbatches[:, None], work_N[:, None]
    rank_R = np.arange(pp)
    before_NR = np.cumsum(least_NR, axis=1) - least_NR
    limits = [(M - before_NR - 2 * rank_R * c) / m]
    upto_NR = np.cumsum(longest_NR, axis=1) - longest_NR
    after_NR = longest_NR.sum(axis=1, keepdims=True) - longest_NR - upto_NR
    cycle = W + 2 * (pp - 1) * c
    with np.errstate(divide="ignore", invalid="ignore"):
        limits.append((M - 2 * rank_R * c - W + after_NR) / (m - 1))
        steady = schedule_named(group.schedule).steady
        if steady == "queue":
            limits.append((M - cycle) / (m - 1))
        elif steady == "pairs" and pp > 1:
            window_R = pp - rank_R
            limits.append(2 * (M - cycle) / (2 * m - window_R - 1))
            least_from_NR = np.cumsum(least_NR[:, ::-1], axis=1)[:, ::-1]
            round_trip = np.maximum(W - upto_NR, least_from_NR) + 2 * (window_R - 1) * c
            limits.append(np.where(m > window_R + 1, (M - cycle - round_trip) / (m - window_R - 1), np.inf))
            loops, remainder = np.divmod(m - 1, pp)
            slack = M - (loops + 1) * cycle
            limits.append(np.where((loops >= 1) & (remainder > 0), slack / remainder, np.inf))
            limits.append(np.where((loops >= 1) & (slack < 0), -1.0, np.inf))
    return np.where(m == 1, limits[0], reduce(np.fmin, limits))


def quick_chunk_bounds(rows: RankCosts) -> Array:
    """Lower bound of the step time of layouts with several model chunks per rank, seconds (N,); infinite
    where the first rank lacks memory.

    Whichever blocks a rank has, they take no less than as many of those that take least. A block is live as often as
    the first chunk's at most, all together as often as chunks are, at least; at a price of a byte what a block takes is
    concave in that, so no less than if some were live as often as the first chunk's and the others not at all. Of one
    kind of blocks the last rank recomputes as many as the first, but for those of smaller stages.
    """
    m_N, x, stages = rows.microbatches, rows.costs, np.asarray(rows.pp * rows.vpp)
    smallest, smaller = rows.num_layers // stages, -rows.num_layers % stages
    largest = smallest + (smaller > 0)
    one_rank_has_both_ends = (rows.schedule in V_SHAPED) | (np.asarray(rows.pp) == 1)
    missing = np.minimum(smaller, 1 + one_rank_has_both_ends)  # blocks that a rank with smaller stages lacks
    fewest = rows.vpp * largest - missing
    counts_1K = np.array([[kind.num_layers for kind in rows.of_kinds]])
    most_live_N = rows.live[:, 0, 0]
    all_live_N = schedule_named(rows.schedule).live_of_rank(rows.pp, rows.vpp, m_N, 0)
    live_N = (largest * all_live_N - missing * most_live_N) / most_live_N

    static_NK = np.stack([kind.costs.layer_static for kind in rows.of_kinds], axis=1)
    held_N = cheapest_seconds(fewest, static_NK, counts_1K)
    room_N = rows.free_bytes[:, 0] - rows.least_working[:, 0] - held_N + TOLERANCE * x.memory_limit
    room_N = np.clip(room_N, -BOUNDLESS, BOUNDLESS)
    activations_N = most_live_N * cheapest_seconds(live_N, _min_activations(rows).T, counts_1K)
    fits_N = (activations_N <= room_N) & (fewest <= rows.updatable[:, 0])
    fastest_NK = np.stack([kind.least_block_seconds for kind in rows.of_kinds], axis=1)
    least_N = cheapest_seconds(fewest, fastest_NK, counts_1K)

    def paid(price_N: Array) -> Array:
        """Lower bound of the seconds of one microbatch in the first rank's blocks if each byte of memory has a
        price (Lagrange multiplier), (N,)."""
        added_N = cheapest_seconds(live_N, _priced_seconds(rows, price_N).T - fastest_NK, counts_1K)
        return least_N + added_N - price_N / most_live_N * room_N

    first_N, last_N = np.where(fits_N, _most_over_prices(rows, paid), np.inf), least_N
    if rows.kinds.number == 1:
        slowest_N = np.where(rows.allowed, rows.block_seconds, 0.0).max(axis=1)
        last_N = np.maximum(first_N - np.where(smaller > 0, slowest_N - fastest_NK[:, 0], 0.0), least_N)
    # the last rank waits for a pass of every other, whose first chunks have these blocks, but maybe the very first none
    blocks_before = (rows.pp - 1) * largest - np.minimum(smaller, np.where(smallest == 0, 1, rows.pp - 1))
    passes, block = x.stage_forward + x.p2p, rows.costs.lightest.layer_forward
    if not rows.splits_backward:
        passes, block = passes + x.stage_backward + x.p2p, rows.least_block_seconds
    wait_N = (rows.pp - 1) * passes + blocks_before * block
    first_N = m_N * (rows.fixed_seconds[:, 0] + first_N)
    last_N = wait_N + m_N * (rows.fixed_seconds[:, -1] + last_N)
    each_N = rows.fullest_rank_value(lambda kind: kind.least_block_seconds)
    fullest_N = m_N * (rows.vpp * (x.stage_forward + x.stage_backward) + each_N)
    longest_N = np.max([first_N, last_N, fullest_N, _round_trip_bounds(rows)], axis=0)
    return np.asarray(longest_N + rows.tail(fewest))


def _round_trip_bounds(rows: RankCosts) -> Array:
    """Lower bound of the step from one microbatch's way through all stages and back, plus the first stage's
    passes of the other microbatches, seconds (N,)."""
    x, light, layers, stages = rows.costs, rows.costs.lightest, rows.num_layers, rows.pp * rows.vpp
    block_N, last_N = (least_allowed(own.layer_backward, rows.allowed) for own in (x, light))
    forward = layers * x.layer_forward + stages * x.stage_forward + x.embedding_forward + x.head_forward
    backward = layers * block_N + stages * x.stage_backward + x.head_backward
    other_passes = x.stage_forward + layers // stages * light.layer_forward
    if rows.splits_backward:
        backward = backward - layers * x.layer_weight - x.head_weight
    else:
        other_passes = np.maximum(other_passes, x.stage_backward + layers // stages * last_N)
    crossings = stages - 1 - (rows.schedule in V_SHAPED)
    return np.asarray(forward + backward + 2 * crossings * x.p2p + (rows.microbatches - 1) * other_passes)


def chunk_bounds(group: RankCosts) -> Array:
    """Lower bound of the step over all placements on several model chunks per rank, seconds (N,); infinite
    where no placement fits."""
    (pp, vpp), least_N = group.shape, np.full(len(group), np.inf)
    stage_of_RC = schedule_named(group.schedule).stages_of_rank(pp, vpp)
    for sizes_S in chunk_sizes(group.num_layers, pp * vpp):
        sizes_RC = sizes_S[stage_of_RC]
        fitting = np.flatnonzero(_sizes_may_fit(group, sizes_RC))
        ends_TP = policy_ends(group.allowed, sizes_RC.T, group.uses_full_counts)
        begin_RC = (np.cumsum(sizes_S) - sizes_S)[stage_of_RC]
        step = max(1, TABLE_ENTRIES // (len(ends_TP) * vpp))
        for start in range(0, len(fitting), step):
            batch = fitting[start : start + step]
            bound = _bounds_of_sizes(group.rows(batch), sizes_RC, begin_RC, ends_TP)
            least_N[batch] = np.minimum(least_N[batch], bound)
    return least_N


def _sizes_may_fit(group: RankCosts, sizes_RC: Ints) -> Bools:
    """Whether stages of `sizes_RC` blocks may fit in each layout's memory, (N,), with the fewest activation
    bytes per block that a policy allows. A cheap filter: patterns are hundreds of thousands where blocks are
    hundreds."""
    x, least_N = group.costs.lightest, _min_activations(group).min(axis=0)
    static_NR = x.layer_static[:, None] * sizes_RC.sum(axis=1)
    kept_NR = least_N[:, None] * (group.live * sizes_RC).sum(axis=2) + static_NR
    free_NR = group.free_bytes + TOLERANCE * x.memory_limit[:, None]
    return np.asarray((kept_NR + group.least_working <= free_NR).all(axis=1))


def _bounds_of_sizes(group: RankCosts, sizes_RC: Ints, begin_RC: Ints, ends_TP: Ints) -> Array:
    """Lower bound of the step for stages of `sizes_RC` blocks that begin at the blocks `begin_RC`, seconds
    (N,)."""
    x, of_kinds, count_R = group.costs, group.of_kinds, sizes_RC.sum(axis=1)
    policies, last = np.flatnonzero(group.allowed).tolist(), len(sizes_RC) - 1
    seconds_KNP = [np.where(group.allowed, kind.block_seconds, 0.0) for kind in of_kinds]
    pass_N, way_KNP = x.stage_forward + x.stage_backward + 2 * x.p2p, seconds_KNP
    if group.splits_backward:
        pass_N = x.stage_forward + x.p2p
        policies_P = np.ones(len(group.allowed))
        way_KNP = [kind.costs.layer_forward[:, None] * policies_P for kind in of_kinds]
    fits_NT = np.ones((len(x), len(ends_TP)), dtype=np.bool_)
    longest_NT = np.repeat(_round_trip_bounds(group)[:, None], len(ends_TP), axis=1)
    first_TKP = np.zeros((len(ends_TP), len(of_kinds), len(group.allowed)), dtype=np.int64)  # of ranks before
    for rank, sizes_C in enumerate(sizes_RC):
        blocks_TCP = blocks_of_chunks(ends_TP, sizes_C, group.uses_full_counts)
        blocks_TCS = group.kinds.in_sorts(blocks_TCP, begin_RC[rank])
        blocks_TCKP = blocks_TCS.reshape(*blocks_TCP.shape[:2], len(of_kinds), -1)
        if rank in (0, last - int(np.argmax(count_R[::-1])), last):
            free_N = group.free_bytes[:, rank] + TOLERANCE * x.memory_limit
            held_NT, working_NP = np.zeros(fits_NT.shape), group.working[:, rank]
            wait_NT, work_NT = rank * pass_N[:, None], group.fixed_seconds[:, rank, None]
            for k, kind in enumerate(of_kinds):
                free_N = free_N - int(blocks_TCKP[0, :, k].sum()) * kind.costs.layer_static
                wait_NT = wait_NT + way_KNP[k] @ first_TKP[:, k].T
                work_NT = work_NT + seconds_KNP[k] @ blocks_TCKP[:, :, k].sum(axis=1).T
                for policy in policies:
                    live_NT = group.live[:, rank] @ blocks_TCKP[:, :, k, policy].T.astype(np.float64)
                    held_NT += kind.costs.layer_activation[:, policy, None] * live_NT
            sets = [np.where(blocks_TCP[..., p].any(axis=1), working_NP[:, p, None], 0.0) for p in policies]
            fits_NT &= held_NT + np.max(sets, axis=0) <= free_N[:, None]
            fits_NT &= group.updatable[:, rank, None] >= count_R[rank]
            longest_NT = np.maximum(longest_NT, wait_NT + group.microbatches[:, None] * work_NT)
        first_TKP += blocks_TCKP[:, 0]
    first_blocks = int(count_R.min() if group.splits_backward else count_R[0])
    return np.asarray(np.where(fits_NT, longest_NT, np.inf).min(axis=1) + group.tail(first_blocks))


BOUNDLESS = 1e30
"""Number of bytes that stands for unlimited memory."""


@lru_cache(maxsize=256)
def _runs(kinds: Kinds, pp: int, fewest_blocks: int, most_blocks: int) -> Ints:
    """Number of blocks of each kind in every run of consecutive blocks that a rank may have, (kinds K, ranks
    R, run lengths B, runs J). Lengths go from `fewest_blocks` to `most_blocks`. Ranks and counts with fewer
    runs repeat a run.

    All ranks have at least `fewest_blocks` blocks, so blocks lie before and behind a run. Where a run leaves none for
    the other ranks, any run stands for it.
    """
    last, runs = len(kinds.of_block), list[Ints]()
    for rank, size in product(range(pp), range(fewest_blocks, most_blocks + 1)):
        first = rank * fewest_blocks
        begin = np.arange(first, max(first, last - (pp - 1 - rank) * fewest_blocks - size) + 1)
        begin = begin[:1] if rank == 0 else begin[-1:] if rank == pp - 1 else begin
        runs_KJ = kinds.blocks_before[:, np.minimum(begin + size, last)] - kinds.blocks_before[:, begin]
        runs.append(np.array(sorted({*map(tuple, runs_KJ.T.tolist())})))
    every_J = np.arange(max(map(len, runs)))
    table = np.stack([counts[every_J % len(counts)].T for counts in runs], axis=1)
    return table.reshape(kinds.number, pp, -1, len(every_J))


def lightest_runs(group: RankCosts) -> Array:
    """Lower bound of each rank's seconds for the blocks of one microbatch, over all runs of neighbouring
    blocks of each length in `group.sizes`, (N, R, B); infinite where no run fits in memory."""
    size_B = group.sizes.tolist()
    runs_KRBJ = _runs(group.kinds, group.shape[0], size_B[0], size_B[-1]).astype(np.float64)
    costs, live_NR = [kind.costs for kind in group.of_kinds], group.live[..., 0]

    def sum_of_runs(value_of_kinds: Iterable[Array]) -> Array:
        """Sum of a value over the blocks of every run, (N, R, B, J). The value of a block of each kind is
        given, (N, R) or (N, 1)."""
        pairs = zip(value_of_kinds, runs_KRBJ, strict=True)
        return reduce(np.add, [value[..., None, None] * runs for value, runs in pairs])

    slack_N1 = TOLERANCE * group.costs.memory_limit[:, None]
    static = sum_of_runs(cost.layer_static[:, None] for cost in costs)
    room = (group.free_bytes - group.least_working + slack_N1)[..., None, None] - static
    room = np.clip(room, -BOUNDLESS, BOUNDLESS)
    updated = sum_of_runs((cost.layer_static + cost.layer_update)[:, None] for cost in costs)
    fits = sum_of_runs(kept_N[:, None] * live_NR for kept_N in _min_activations(group)) <= room
    fits &= updated <= (group.update_bytes + slack_N1)[..., None, None]

    def paid(price_N: Array) -> Array:
        """Lower bound of each run's seconds for one microbatch if each byte of memory has a price (Lagrange
        multiplier), (N, R, B, J)."""
        priced = sum_of_runs(_priced_seconds(group, price_N)[..., None])
        return priced - (price_N[:, None] / live_NR)[..., None, None] * room

    return np.asarray(np.where(fits, _most_over_prices(group, paid), np.inf).min(axis=-1))


def _min_activations(group: RankCosts) -> Array:
    """Minimum bytes of activations that a block of each kind keeps for one microbatch, over all allowed
    policies, (K, N)."""
    return np.stack([least_allowed(kind.costs.layer_activation, group.allowed) for kind in group.of_kinds])


def _priced_seconds(group: RankCosts, price_N: Array) -> Array:
    """Seconds of one block of each kind plus the price of its activation bytes, under the cheapest recompute
    policy, (K, N)."""
    priced = [kind.block_seconds + price_N[:, None] * kind.costs.layer_activation for kind in group.of_kinds]
    return np.stack([least_allowed(priced_NP, group.allowed) for priced_NP in priced])


def _most_over_prices(group: RankCosts, paid: Callable[[Array], Array]) -> Array:
    """Maximum of the bound `paid(price)` over candidate prices of activation memory, seconds (N,); prices are
    in seconds per byte of one microbatch. Candidates are zero, and each price at which a block of some kind
    changes its policy."""
    longest, policies = paid(np.zeros(len(group))), np.flatnonzero(group.allowed).tolist()
    for kind, (quick, slow) in product(group.of_kinds, combinations(policies, 2)):
        saved = kind.costs.layer_activation[:, quick] - kind.costs.layer_activation[:, slow]
        longer = kind.block_seconds[:, slow] - kind.block_seconds[:, quick]
        is_useful = (saved > 0) & (longer > 0)
        if is_useful.any():
            price_N = np.where(is_useful, longer / np.where(is_useful, saved, 1.0), 0.0)
            longest = np.maximum(longest, paid(price_N))
    return longest
