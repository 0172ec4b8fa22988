"""Blocks to stages with recompute, exactly: an integer program over known paths, with new paths added as cuts.

    x[k, n, q]   1 if virtual stage k holds n blocks under recompute policy q
    M            end of the last action plus synchronisation, over all ranks       (scaled by the cut-off)
    O            longest optimizer step of any rank                                (scaled by the cut-off)
    W[r]         working set of rank r                                             (scaled by the memory limit)

    minimise M + O
    subject to   each stage has one size, all layers are placed, every rank fits in memory,
                 the step is no shorter than each known path, nor than the optimizer step of any rank

The step time of a placement is the longest path through its timeline. The program knows some paths, so its optimum is a
lower bound; the timeline prices the solution exactly and, where it takes longer, its critical path is one path more
(Benders 1962). There are finitely many placements, so this ends, with program and timeline in agreement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pulp

from cost_models.schedules import CriticalPath
from planner.ilp.solution import Solution, Status
from planner.ilp.solvers import SolverName, available_solver, is_infeasible, is_proven, make_solver
from planner.paths import known_paths
from planner.placement import TOLERANCE, Floats, Leaf, Placement


@dataclass(frozen=True, slots=True)
class Column:
    """One choice for one virtual stage."""

    stage: int
    layers: int
    policy: int


@dataclass
class StageProgram:
    """The program of one leaf, and the columns by which it speaks of placements."""

    leaf: Leaf
    columns: list[Column]
    scale_seconds: float
    problem: pulp.LpProblem
    x: list[pulp.LpVariable]
    M: pulp.LpVariable
    O: pulp.LpVariable  # noqa: E741
    paths: list[CriticalPath] = field(default_factory=list)


def solve_stages(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Solution:
    """The best placement of a layout, if it takes less than `cut_off` seconds; `incumbent` is a placement and its time.

    `time_limit` is in seconds; without it the answer is always proven.
    """
    start, name = time.monotonic(), solver or available_solver()
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    target = min(best_seconds, cut_off)
    columns = useful_columns(leaf, target)
    bound, rounds, status = 0.0, 0, None
    program = build_program(leaf, columns, target) if columns is not None else None
    while program is not None and status is None:
        left = None if time_limit is None else time_limit - (time.monotonic() - start)
        if left is not None and left <= 0:
            status = "stopped"
            break
        program.problem.solve(make_solver(name, left))
        rounds += 1
        if is_infeasible(program.problem):
            break
        if not is_proven(program.problem):
            status = "stopped"
            break
        placement = chosen(program)
        bound = max(bound, modelled_seconds(program, placement))
        if not np.all(fit := _ranks_that_fit(leaf, placement)):
            _forbid(program, placement, ~fit)
            continue
        seconds = leaf.price(placement)
        if seconds < best_seconds:
            best, best_seconds = placement, seconds
        if min(best_seconds, cut_off) <= bound * (1 + TOLERANCE):
            break
        step_is_no_shorter_than_path(program, _critical_path(leaf, placement))
    if status is None:
        status, bound = _proven(best, best_seconds, cut_off)
    return Solution(
        status=status,
        placement=best,
        objective=best_seconds,
        bound=min(bound, best_seconds),
        rounds=rounds,
        seconds=time.monotonic() - start,
    )


def _proven(best: Placement | None, seconds: float, cut_off: float) -> tuple[Status, float]:
    """Nothing beats the best one and the cut-off: what that says of the leaf."""
    if best is not None and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal", seconds
    return ("infeasible" if math.isinf(cut_off) else "cut off"), cut_off


def useful_columns(leaf: Leaf, target: float) -> list[Column] | None:
    """Every (stage, size, policy) that a placement of at most `target` seconds can use; None where a stage has none.

    Left out: what alone overflows its rank, what keeps its rank busy beyond the target, and policies that another one
    matches in time and in every kind of memory (with one chunk a rank any faster policy that fits does).
    """
    columns: list[Column] = []
    least_S = _least_seconds(leaf)
    tail = float(leaf.per_rank("sync", np.full(leaf.num_stages, leaf.sizes.start))[0]) + leaf.cost("step_overhead")
    for stage in range(leaf.num_stages):
        rank = stage % leaf.pp
        others = float(sum(least_S[other] for other in range(rank, leaf.num_stages, leaf.pp) if other != stage))
        way = float(least_S[:rank].sum()) + 2 * rank * leaf.cost("p2p") + tail
        allowed = [int(q) for q in np.flatnonzero(leaf.allowed[stage])]
        found = [
            Column(stage, size, policy)
            for size in leaf.sizes
            for policy in _efficient(leaf, stage, size, allowed)
            if leaf.microbatches * (_seconds(leaf, stage, size, policy) + others) + way <= target * (1 + TOLERANCE)
        ]
        if not found:
            return None
        columns += found
    return columns


def _seconds(leaf: Leaf, stage: int, size: int, policy: int) -> float:
    """Forward plus backward of one microbatch."""
    fixed = leaf.fixed_forward[stage] + leaf.fixed_backward[stage]
    return float(fixed + size * (leaf.cost("layer_forward") + leaf.policy_cost("layer_backward")[policy]))


def _least_seconds(leaf: Leaf) -> Floats:
    """(S,): no stage takes less for one microbatch."""
    size = leaf.sizes.start
    return np.array(
        [
            min(_seconds(leaf, stage, size, int(policy)) for policy in np.flatnonzero(leaf.allowed[stage]))
            for stage in range(leaf.num_stages)
        ]
    )


def _efficient(leaf: Leaf, stage: int, size: int, allowed: list[int]) -> list[int]:
    """The policies worth considering for so many blocks on this stage, fastest first."""
    layer = leaf.policy_cost("layer_backward")
    fastest_first = sorted(allowed, key=lambda policy: (layer[policy], policy))
    fitting = [policy for policy in fastest_first if _fits_alone(leaf, stage, size, policy)]
    if leaf.vpp == 1:
        return fitting[:1]
    memory = np.stack([leaf.policy_cost("layer_activation"), leaf.policy_cost("working")])
    return [
        policy
        for i, policy in enumerate(fitting)
        if not any((memory[:, faster] <= memory[:, policy]).all() for faster in fitting[:i])
    ]


def _fits_alone(leaf: Leaf, stage: int, size: int, policy: int) -> bool:
    """Whether the rank fits with this choice on the stage and no block at all on its other chunks."""
    layers_S = np.zeros(leaf.num_stages, dtype=np.int64)
    layers_S[stage] = size
    light = int(np.argmin(leaf.policy_cost("working")))
    policies_S = np.full(leaf.num_stages, light)
    policies_S[stage] = policy
    return bool(leaf.rank_bytes(layers_S, policies_S)[stage % leaf.pp] <= leaf.memory_limit)


def build_program(leaf: Leaf, columns: list[Column], target: float) -> StageProgram:
    """The program with the paths that can be written down without a timeline."""
    paths = known_paths(leaf)
    scale = target if math.isfinite(target) else _some_seconds(leaf)
    problem = pulp.LpProblem("stages", pulp.LpMinimize)
    x = [problem.add_variable(f"x_{c.stage}_{c.layers}_{c.policy}", cat=pulp.LpBinary) for c in columns]
    M, O = problem.add_variable("M", lowBound=0), problem.add_variable("O", lowBound=0)  # noqa: E741
    program = StageProgram(leaf, columns, scale, problem, x, M, O)
    problem += M + O, "step_seconds"
    if math.isfinite(target):
        overhead = leaf.cost("step_overhead")
        problem += M + O <= (target * (1 + TOLERANCE) - overhead) / scale, "better_than_known"
    each_stage_has_one_size(program)
    all_layers_are_placed(program)
    if leaf.vpp > 1:
        for rank in range(leaf.pp):
            rank_fits_in_memory(program, rank)
    optimizer_step_is_no_shorter_than_any(program)
    for path in paths:
        step_is_no_shorter_than_path(program, path)
    return program


def _some_seconds(leaf: Leaf) -> float:
    """The order of magnitude of a step."""
    return float(_least_seconds(leaf).sum()) * leaf.microbatches


def _sum(program: StageProgram, coefficients: Iterable[tuple[int, float]]) -> pulp.LpAffineExpression:
    """Σ coefficient · x over column indices, each given once."""
    return pulp.LpAffineExpression({program.x[i]: value for i, value in coefficients})


def each_stage_has_one_size(program: StageProgram) -> None:
    """Σ_{n,q} x[k, n, q] = 1 for every stage k."""
    for stage in range(program.leaf.num_stages):
        own = [(i, 1.0) for i, column in enumerate(program.columns) if column.stage == stage]
        program.problem += _sum(program, own) == 1, f"one_size_{stage}"


def all_layers_are_placed(program: StageProgram) -> None:
    """Σ n x[k, n, q] = L."""
    sizes = [(i, float(column.layers)) for i, column in enumerate(program.columns)]
    program.problem += _sum(program, sizes) == program.leaf.num_layers, "all_layers"


def rank_fits_in_memory(program: StageProgram, rank: int) -> None:
    """One row for each maximal set of live microbatches, one for the optimizer step, in shares of the limit.

    With one chunk a rank every column fits by itself and no row is needed.
    """
    leaf, own = program.leaf, _columns_of_rank(program, rank)
    limit, working_q = leaf.memory_limit, leaf.policy_cost("working")
    W = program.problem.add_variable(f"W_{rank}", lowBound=0)
    for chunk in range(leaf.vpp):
        stage = chunk * leaf.pp + rank
        working = [(i, working_q[c.policy] / limit) for i, c in own if c.stage == stage]
        program.problem += W - _sum(program, working) >= 0, f"working_{stage}"
    head_working = leaf.cost("head_working") if rank == leaf.pp - 1 else 0.0
    free = limit - float(leaf.rank_static[rank])
    ends_S = leaf.at_ends("embedding_activation", "head_activation")
    activation_q, static = leaf.policy_cost("layer_activation"), leaf.cost("layer_static")
    for row, live_C in enumerate(leaf.live[rank]):
        ends = float(sum(live_C[chunk] * ends_S[chunk * leaf.pp + rank] for chunk in range(leaf.vpp)))
        kept = [
            (i, c.layers * (static + live_C[c.stage // leaf.pp] * activation_q[c.policy]) / limit)
            for i, c in own
        ]
        program.problem += (
            _sum(program, kept) + W <= (free - ends - head_working) / limit,
            f"memory_{rank}_{row}",
        )
    update = float(leaf.sum_by_rank(leaf.at_ends("embedding_update", "head_update"))[rank])
    updated = [(i, c.layers * (static + leaf.cost("layer_update")) / limit) for i, c in own]
    program.problem += _sum(program, updated) <= (free - update) / limit, f"memory_{rank}_optimizer"


def optimizer_step_is_no_shorter_than_any(program: StageProgram) -> None:
    """O ≥ the optimizer step of every rank."""
    leaf = program.leaf
    fixed_R = leaf.per_rank("optimizer", np.zeros(leaf.num_stages, dtype=np.int64)) / program.scale_seconds
    each = leaf.cost("layer_optimizer") / program.scale_seconds
    for rank in range(leaf.pp):
        blocks = [(i, each * column.layers) for i, column in _columns_of_rank(program, rank)]
        program.problem += program.O - _sum(program, blocks) >= float(fixed_R[rank]), f"optimizer_{rank}"


def step_is_no_shorter_than_path(program: StageProgram, path: CriticalPath) -> None:
    """M ≥ the length of one path plus the synchronisation of the rank it ends on."""
    fixed, seconds = _path_seconds(program, path)
    coefficients = [(i, value) for i, value in enumerate((seconds / program.scale_seconds).tolist()) if value]
    row = program.M - _sum(program, coefficients) >= fixed / program.scale_seconds
    program.problem += row, f"path_{len(program.paths)}"
    program.paths.append(path)


def _path_seconds(program: StageProgram, path: CriticalPath) -> tuple[float, Floats]:
    """What the path takes in any case, and what each column adds to it."""
    leaf = program.leaf
    nothing_S = np.zeros(leaf.num_stages, dtype=np.int64)
    fixed = (
        path.forward_counts @ leaf.fixed_forward
        + path.backward_counts @ leaf.fixed_backward
        + path.p2p_count * leaf.cost("p2p")
        + leaf.per_rank("sync", nothing_S)[path.rank]
    )
    stage, size = (np.array([getattr(c, name) for c in program.columns]) for name in ("stage", "layers"))
    policy = np.array([c.policy for c in program.columns])
    each = path.forward_counts[stage] * leaf.cost("layer_forward")
    each = each + path.backward_counts[stage] * leaf.policy_cost("layer_backward")[policy]
    each = each + (stage % leaf.pp == path.rank) * leaf.cost("layer_sync")
    return float(fixed), size * each


def chosen(program: StageProgram) -> Placement:
    """The placement the solver chose."""
    picked = {
        c.stage: c for c, x in zip(program.columns, program.x, strict=True) if (x.value() or 0.0) > 0.5
    }
    stages = [picked[stage] for stage in range(program.leaf.num_stages)]
    return Placement(tuple(c.layers for c in stages), tuple(c.policy for c in stages))


def modelled_seconds(program: StageProgram, placement: Placement) -> float:
    """The step time the program's paths give this placement, in full precision."""
    leaf, layers_S, policies_S = program.leaf, np.array(placement.layers), np.array(placement.policies)
    forward_S, backward_S = leaf.forward(layers_S), leaf.backward(layers_S, policies_S)
    sync_R, p2p = leaf.per_rank("sync", layers_S), leaf.cost("p2p")
    lengths = [
        path.forward_counts @ forward_S
        + path.backward_counts @ backward_S
        + path.p2p_count * p2p
        + sync_R[path.rank]
        for path in program.paths
    ]
    return float(max(lengths) + leaf.per_rank("optimizer", layers_S).max() + leaf.cost("step_overhead"))


def _critical_path(leaf: Leaf, placement: Placement) -> CriticalPath:
    return leaf.critical_path(np.array(placement.layers), np.array(placement.policies))


def _ranks_that_fit(leaf: Leaf, placement: Placement) -> Floats:
    bytes_R = leaf.rank_bytes(np.array(placement.layers), np.array(placement.policies))
    within: Floats = bytes_R <= leaf.memory_limit
    return within


def _forbid(program: StageProgram, placement: Placement, ranks_R: Floats) -> None:
    """Rounding let a rank overflow by less than the solver sees: forbid just this combination of its chunks."""
    for rank in np.flatnonzero(ranks_R).tolist():
        same = [
            (i, 1.0)
            for i, c in _columns_of_rank(program, rank)
            if (c.layers, c.policy) == (placement.layers[c.stage], placement.policies[c.stage])
        ]
        name = f"overflow_{program.problem.numConstraints()}"
        program.problem += _sum(program, same) <= program.leaf.vpp - 1, name


def _columns_of_rank(program: StageProgram, rank: int) -> list[tuple[int, Column]]:
    return [(i, c) for i, c in enumerate(program.columns) if c.stage % program.leaf.pp == rank]
