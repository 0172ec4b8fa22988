"""Blocks to stages with recompute, exactly: an integer program over known paths, with new paths added as cuts.

    x[k, n]   1 if stage k holds n blocks, under the fastest mix of recompute policies with which they fit there
    M         end of the last action plus synchronisation, over all ranks    (in units of the time to beat)
    O         longest optimizer step of any rank                             (in units of the time to beat)

    minimise M + O
    subject to   each stage has one size, all layers are placed,
                 the step is no shorter than each known path, the optimizer step no shorter than any rank's

With one stage a rank, memory is each stage's own affair: it decides which x exist and under which mix.

The step time of a placement is the longest path through its timeline. The program knows some paths, so its optimum is a
lower bound; the timeline prices the solution exactly and, where it takes longer, its critical path is one path more
(Benders 1962). There are finitely many placements, so this ends, with program and timeline in agreement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pulp

from cost_models.schedules import CriticalPath
from cost_models.specs.columns import Ints
from planner.bounds import rank_sizes
from planner.group import group_of
from planner.ilp.solution import Solution, Status
from planner.ilp.solvers import SolverName, available_solver, is_infeasible, is_proven, make_solver
from planner.mixes import fastest_mixes
from planner.paths import known_paths, window_paths
from planner.placement import TOLERANCE, Floats, Leaf, Placement
from planner.pools.bounds import leaf_sizes

CUTS_PER_ROUND = 12
"""Written-down paths added at once: enough to save rounds, few enough to keep the program small."""


@dataclass(frozen=True, slots=True)
class Column:
    """One choice for one stage: x[stage, layers]."""

    stage: int
    layers: int
    blocks: tuple[int, ...]
    """(P,): under each recompute policy."""


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
    pool: list[CriticalPath]
    """Paths that can be written down but are not rows yet."""
    paths: list[CriticalPath] = field(default_factory=list)
    """Those that are rows."""


def solve_stages(
    leaf: Leaf,
    *,
    incumbent: tuple[Placement, float] | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    time_limit: float | None = None,
    solver: SolverName | None = None,
) -> Solution:
    """The best placement of a layout, if it takes less than `cut_off` seconds; `incumbent` is a placement and its time.

    `met_paths` are critical paths of other layouts with the same pipeline. `time_limit` is in seconds; without it the
    answer is always proven.
    """
    start, name = time.monotonic(), solver or available_solver()
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    target = min(best_seconds, cut_off)
    columns = useful_columns(leaf, target)
    bound, rounds = 0.0, 0
    status: Status | None = None
    program = build_program(leaf, columns, target, met_paths) if columns is not None else None
    critical: list[CriticalPath] = []
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
        seconds = leaf.price(placement)
        if seconds < best_seconds:
            best, best_seconds = placement, seconds
        if min(best_seconds, cut_off) <= bound * (1 + TOLERANCE):
            break
        critical.append(leaf.critical_path(placement.table))
        for path in [critical[-1], *violated_paths(program, placement)]:
            step_is_no_shorter_than_path(program, path)
    if status is None:
        status, bound = _proven(best, best_seconds, cut_off)
    return Solution(
        status=status,
        placement=best,
        objective=best_seconds,
        bound=min(bound, best_seconds),
        rounds=rounds,
        seconds=time.monotonic() - start,
        paths=tuple(critical),
    )


def _proven(best: Placement | None, seconds: float, cut_off: float) -> tuple[Status, float]:
    """Nothing beats the best one and the cut-off: what that says of the leaf."""
    if best is not None and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal", seconds
    return ("infeasible" if math.isinf(cut_off) else "cut off"), cut_off


def useful_columns(leaf: Leaf, target: float) -> list[Column] | None:
    """Every choice that a placement of at most `target` seconds can hold; None where some stage has none.

    Left out is what overflows its rank, and what the bounds say takes, or leaves to the others, too much.
    """
    seconds_BR, blocks_BRP = fastest_mixes(leaf)
    useful_BR = np.isfinite(seconds_BR)
    if math.isfinite(target):
        least_R, most_R = _useful_sizes(leaf, target * (1 + TOLERANCE))
        size_B1 = np.array(leaf.sizes)[:, None]
        useful_BR &= (size_B1 >= least_R) & (size_B1 <= most_R)
    if not useful_BR.any(axis=0).all():
        return None
    return [
        Column(rank, leaf.sizes.start + size, tuple(blocks_BRP[size, rank].tolist()))
        for rank in range(leaf.pp)
        for size in np.flatnonzero(useful_BR[:, rank]).tolist()
    ]


def _useful_sizes(leaf: Leaf, step_seconds: float) -> tuple[Ints, Ints]:
    """(R,) fewest and most blocks of each rank in a placement that takes no longer."""
    if len(leaf.costs) > 1:
        return leaf_sizes(leaf, step_seconds)
    least_NR, most_NR = rank_sizes(group_of(leaf), np.array([step_seconds]))
    return least_NR[0], most_NR[0]


def build_program(
    leaf: Leaf, columns: list[Column], target: float, met_paths: Sequence[CriticalPath] = ()
) -> StageProgram:
    """The program with the paths that can be written down without a timeline."""
    scale = target if math.isfinite(target) else leaf.microbatches * float(leaf.fixed_forward.sum() + 1.0)
    problem = pulp.LpProblem("stages", pulp.LpMinimize)
    x = [problem.add_variable(f"x_{c.stage}_{c.layers}", cat=pulp.LpBinary) for c in columns]
    M, O = problem.add_variable("M", lowBound=0), problem.add_variable("O", lowBound=0)  # noqa: E741
    program = StageProgram(leaf, columns, scale, problem, x, M, O, [*met_paths, *window_paths(leaf)])
    problem += M + O, "step_seconds"
    if math.isfinite(target):
        limit = (target * (1 + TOLERANCE) - leaf.overhead) / scale
        problem += (M + O <= limit), "better_than_known"  # noqa: SIM300
    each_stage_has_one_size(program)
    all_layers_are_placed(program)
    optimizer_step_is_no_shorter_than_any(program)
    for path in known_paths(leaf):
        step_is_no_shorter_than_path(program, path)
    return program


def _sum(program: StageProgram, coefficients: Iterable[tuple[int, float]]) -> pulp.LpAffineExpression:
    """Σ coefficient · x over column indices, each given once."""
    return pulp.LpAffineExpression({program.x[i]: value for i, value in coefficients})


def each_stage_has_one_size(program: StageProgram) -> None:
    """Σ_n x[k, n] = 1 for every stage k."""
    for stage in range(program.leaf.num_stages):
        own = [(i, 1.0) for i, _ in _columns_of(program, stage)]
        program.problem += _sum(program, own) == 1, f"one_size_{stage}"


def all_layers_are_placed(program: StageProgram) -> None:
    """Σ n x[k, n] = L."""
    sizes = [(i, float(column.layers)) for i, column in enumerate(program.columns)]
    program.problem += _sum(program, sizes) == program.leaf.num_layers, "all_layers"


def optimizer_step_is_no_shorter_than_any(program: StageProgram) -> None:
    """O ≥ the optimizer step of every rank."""
    leaf = program.leaf
    fixed_R = leaf.per_rank("optimizer", leaf.no_blocks) / program.scale_seconds
    each_R = leaf.by_rank("layer_optimizer") / program.scale_seconds
    for rank in range(leaf.pp):
        blocks = [(i, float(each_R[rank]) * column.layers) for i, column in _columns_of(program, rank)]
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
    fixed = (
        path.forward_counts @ leaf.fixed_forward
        + path.backward_counts @ leaf.fixed_backward
        + path.p2p_count * leaf.cost("p2p")
        + leaf.per_rank("sync", leaf.no_blocks)[path.rank]
    )
    stage, size = (np.array([getattr(c, name) for c in program.columns]) for name in ("stage", "layers"))
    blocks = np.array([c.blocks for c in program.columns])
    each = path.forward_counts[stage] * leaf.by_stage("layer_forward")[stage]
    each = each + (stage == path.rank) * leaf.by_stage("layer_sync")[stage]
    backward = (blocks * leaf.by_stage("layer_backward")[stage]).sum(axis=-1)
    return float(fixed), size * each + path.backward_counts[stage] * backward


def chosen(program: StageProgram) -> Placement:
    """The placement the solver chose."""
    picked = {c.stage: c for c, x in zip(program.columns, program.x, strict=True) if (x.value() or 0.0) > 0.5}
    stages = [picked[stage] for stage in range(program.leaf.num_stages)]
    return Placement(tuple(c.blocks for c in stages))


def modelled_seconds(program: StageProgram, placement: Placement) -> float:
    """The step time the program's paths give this placement, in full precision."""
    leaf = program.leaf
    longest = _lengths(leaf, program.paths, placement).max()
    return float(longest + leaf.per_rank("optimizer", placement.table).max() + leaf.overhead)


def violated_paths(program: StageProgram, placement: Placement) -> list[CriticalPath]:
    """The longest paths of the pool that the program should have known; they leave the pool."""
    if not program.pool:
        return []
    length = _lengths(program.leaf, program.pool, placement)
    known = _lengths(program.leaf, program.paths, placement).max()
    longest_first = np.argsort(-length, kind="stable")[:CUTS_PER_ROUND].tolist()
    new = [i for i in longest_first if length[i] > known * (1 + TOLERANCE)]
    found = [program.pool[i] for i in new]
    program.pool = [path for i, path in enumerate(program.pool) if i not in new]
    return found


def _lengths(leaf: Leaf, paths: list[CriticalPath], placement: Placement) -> Floats:
    """Seconds of some paths, each with the synchronisation of the rank it ends on."""
    blocks_SP = placement.table
    forward = np.stack([path.forward_counts for path in paths]) @ leaf.forward(blocks_SP)
    backward = np.stack([path.backward_counts for path in paths]) @ leaf.backward(blocks_SP)
    transfers = np.array([path.p2p_count for path in paths]) * leaf.cost("p2p")
    tails: Floats = leaf.per_rank("sync", blocks_SP)[[path.rank for path in paths]]
    return forward + backward + transfers + tails


def _columns_of(program: StageProgram, stage: int) -> list[tuple[int, Column]]:
    return [(i, column) for i, column in enumerate(program.columns) if column.stage == stage]
