"""Integer program that chooses a layout and places its blocks, with the known critical paths as rows.

    y[l]      1 if layout l is chosen
    x[l, j]   1 if layout l has its column j: for plain pipelines a number of blocks on one stage, under the fastest mix
              of recompute policies that fits there; else a pattern of blocks and policies for all stages
    M[l]      end of the last action plus synchronisation, over all ranks           (in units of the time to beat)
    U[l]      longest optimizer step of any rank                                    (in units of the time to beat)

    minimise Σ M[l] + U[l] + overhead[l] y[l]  +  Σ bound[l] y[l] of layouts without columns
    subject to   one layout, each of its stages one size, all its layers placed (or one pattern),
                 all stages with one number of blocks in full if the trainer counts them,
                 every rank of a pattern within its memory,
                 the step no shorter than each known path of the layout, the optimizer step no shorter than any rank's

The step time of a placement is the longest path through its timeline. The program knows only some paths, so
its optimum is a lower bound. A layout that is not chosen has no blocks, so its M and U are 0, and the relaxed
program is no weaker than the weakest relaxed layout (Balas 1985, the hull of a union).

Cutting planes: the timeline prices each solution exactly and, if it takes longer, its critical path becomes
one row more (Benders 1962). There are finitely many placements, so this ends, with program and timeline in
agreement.

As the program of record it chooses among the layouts that bounds do not exclude. The other layouts have
bounds above its optimum, so that is the optimum over all; agreement with the search is the certificate.

If all stages recompute the same number of first blocks in full, every number makes a layout of its own, whose
stages have one mix for their blocks. Numbers are tried best bound first, until no remaining bound is below the
best placement.

Shape legend: J columns, S stages, P recompute policies, N numbers in full, R ranks (each one stage), B counts of
blocks, C classes of positions where a stage may begin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from threading import Event
from typing import NamedTuple

import numpy as np
import pulp

from cost_models.arrays import Array, Bools, Ints
from cost_models.errors import RunError
from cost_models.schedules.timeline import CriticalPath
from planner.bounds.steps import rank_bounds
from planner.exact.labels import Choices, choices_in_time, choices_of, place_by_labels
from planner.exact.solvers import Solved, SolverName, available_solver, solve, weighted_sum
from planner.objectives import ClosingProgram
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, Task, final_status
from planner.placement.mixes import good_placement, priced_mixes
from planner.placement.patterns import chunk_patterns
from planner.placement.rank_costs import RankCosts

OVERLOOKED = 1e-5
"""Relative violation of a limit that a solver may overlook; patterns that exceed memory by less are left out."""


class Columns(NamedTuple):
    """Binary variables ("columns") of one layout in the integer program. Each stands for a block count of one
    stage, or for a pattern (a placement on all stages)."""

    blocks: Ints
    """Number of blocks that each column places on each stage under each policy, (J, S, P)."""
    stage: Ints
    """Stage of each column, (J,); −1 for a pattern of all stages."""
    start: Ints
    """Class of positions where each column's stage begins, (J,)."""
    number: Ints
    """Number of first blocks recomputed in full, (J,); 0 if stages do not share a number."""

    @classmethod
    def of_stages(cls, leaf: Leaf, stage_J: Ints, blocks_JP: Ints, start_J: Ints, number_J: Ints) -> Columns:
        """Create J columns of an integer program that each place blocks on a single stage."""
        blocks = np.zeros((len(stage_J), *leaf.no_blocks.shape), dtype=np.int64)
        blocks[np.arange(len(stage_J)), stage_J] = blocks_JP
        return cls(blocks, stage_J, start_J, number_J)

    @classmethod
    def of_patterns(cls, patterns: Ints) -> Columns:
        """Create a column of an integer program for each pattern (a placement on all stages), (J, S, P)."""
        none = np.zeros(len(patterns), dtype=np.int64)
        return cls(patterns, none - 1, none, none)

    def only(self, mask: Bools) -> Columns:
        """Select the columns for which a mask is true."""
        return Columns(*(column[mask] for column in self))

    @classmethod
    def joined(cls, tables: Sequence[Columns]) -> Columns:
        """Concatenate several `Columns`."""
        return cls(*map(np.concatenate, zip(*tables, strict=True)))

    @property
    def num_blocks(self) -> Ints:
        """Number of blocks that each column places, (J,)."""
        return np.asarray(self.blocks.sum(axis=(1, 2)))


@dataclass(eq=False)
class Choice:
    """One layout in the integer program, with its variables and columns."""

    leaf: Leaf
    columns: Columns
    y: pulp.LpVariable
    x: list[pulp.LpVariable]
    M: pulp.LpVariable
    U: pulp.LpVariable
    paths: list[CriticalPath] = field(default_factory=list)
    """Critical paths that are rows of the program."""

    def sum(self, of_columns: Array, of_layout: float = 0.0) -> pulp.LpAffineExpression:
        """Linear expression Σ coefficient · x over the columns of the layout, plus `of_layout` · y."""
        return weighted_sum(zip([*self.x, self.y], [*of_columns.tolist(), of_layout], strict=True))

    def placement(self) -> Placement:
        """Placement of the layout in the solver's solution, which must choose the layout."""
        picked = np.array([(x.value() or 0.0) > 0.5 for x in self.x])
        return Placement.of(self.columns.blocks[picked].sum(axis=0))


class Program:
    """Integer program that chooses a layout and places its blocks. A layout has either columns for its
    placements or only a lower bound."""

    def __init__(self, bounds: Sequence[float], target: float) -> None:
        self.scale = target
        self.problem = pulp.LpProblem("record", pulp.LpMinimize)
        self.choices: dict[int, Choice] = {}
        """Layouts with placements."""
        self.y = [self.problem.add_variable(f"y_{row}", cat=pulp.LpBinary) for row in range(len(bounds))]
        self._cost = {y: bound / target for y, bound in zip(self.y, bounds, strict=True)}
        self.problem += pulp.lpSum(self.y) == 1, "one_layout"

    @property
    def step(self) -> pulp.LpAffineExpression:
        """Linear expression of the chosen layout's step time, in units of the time to beat."""
        return pulp.LpAffineExpression(self._cost)

    def bound(self, number: int, seconds: float) -> None:
        """Raise the lower bound of a layout without columns to `seconds`."""
        self._cost[self.y[number]] = seconds / self.scale

    def place(self, number: int, leaf: Leaf, columns: Columns, paths: Iterable[CriticalPath]) -> None:
        """Replace a layout's lower bound in the program by variables (columns) for its placements. Known
        critical paths are added as constraints (rows).

        Where y[l] = 1, U[l] ≥ the optimizer step of every rank of the layout.
        """
        y = self.y[number]
        names = (f"x_{number}_{j}" for j in range(len(columns.blocks)))
        x = [self.problem.add_variable(name, cat=pulp.LpBinary) for name in names]
        M, U = (self.problem.add_variable(f"{name}_{number}", lowBound=0) for name in "MU")
        self._cost |= {y: leaf.overhead / self.scale, M: 1.0, U: 1.0}
        choice = self.choices[number] = Choice(leaf, columns, y, x, M, U)
        for row, name in _rows_of_placements(choice):
            self.problem += row, name
        fixed_R = leaf.once_a_step("optimizer", leaf.no_blocks)
        own_JR = (leaf.once_a_step("optimizer", columns.blocks) - fixed_R) / self.scale
        for rank, fixed in enumerate(fixed_R.tolist()):
            longest = choice.sum(own_JR[:, rank], fixed / self.scale)
            self.problem += U - longest >= 0, f"optimizer_{y.name}_{rank}"
        for path in paths:
            self.step_is_no_shorter_than_path(choice, path)

    @property
    def chosen_layout(self) -> int:
        """Index of the layout that the solver's solution chooses."""
        return next(number for number, y in enumerate(self.y) if (y.value() or 0.0) > 0.5)

    def solve(self, solver: SolverName, seconds: float = math.inf) -> Solved:
        """Minimise the step time with the solver, and return the result with its bound in seconds.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C meanwhile.
        """
        stop = Event()
        self.problem.setObjective(self.step)
        solved = solve(self.problem, solver, seconds=seconds, interrupt=stop)
        if stop.is_set():
            raise KeyboardInterrupt
        return solved._replace(bound=solved.bound * self.scale)

    def step_is_no_shorter_than_path(self, choice: Choice, path: CriticalPath) -> None:
        """Add the constraint that the layout's step, if it is chosen (y[l] = 1), is at least as long as a
        critical path. M is the step; the path includes the synchronisation of its last rank."""
        fixed = float(path_lengths(choice.leaf, [path], choice.leaf.no_blocks)[0])
        own_J = (path_lengths(choice.leaf, [path], choice.columns.blocks)[:, 0] - fixed) / self.scale
        length = choice.sum(own_J, fixed / self.scale)
        self.problem += choice.M - length >= 0, f"path_{choice.y.name}_{len(choice.paths)}"
        choice.paths.append(path)

    def steps_are_no_shorter_than_path(self, leaf: Leaf, path: CriticalPath) -> None:
        """Add a row that bounds the step by one critical path of a layout, for every layout of the same pipeline."""
        for choice in self.choices.values():
            if pipeline_of(choice.leaf) == pipeline_of(leaf):
                self.step_is_no_shorter_than_path(choice, path)

    def modelled_seconds(self, choice: Choice, placement: Placement) -> float:
        """Step seconds of a placement in full precision, from only those critical paths that are rows of the
        program."""
        leaf, blocks = choice.leaf, placement.table
        longest = float(path_lengths(leaf, choice.paths, blocks).max())
        return longest + float(leaf.once_a_step("optimizer", blocks).max()) + leaf.overhead


def _rows_of_placements(choice: Choice) -> Iterator[tuple[pulp.LpConstraint, str]]:
    """Yield named constraints of the integer program that make the chosen columns of a layout l exactly one
    placement if the layout is chosen (y[l] = 1), and no placement otherwise. Of all columns j:

        Σ x[j] that begin in a class = Σ x[j] of the stage before that end in it      each stage but the first, each
                                                                                      class of positions but the first
        Σ x[j] of a stage with a number = Σ x[j] of the first stage with it           each number in full but the first
        Σ x[j] of a stage = y[l]                                                      each stage; a pattern is all
        Σ blocks[j] x[j] = L y[l]
        Σ bytes[r, j] x[j] ≤ limit[r] y[l]                                            each rank of patterns

    The columns of the first stage all begin with the model, and what is left of a stage's one size is the first class,
    or the first number. Columns of plain pipelines fit by construction.
    """
    leaf, columns, kinds, name = choice.leaf, choice.columns, choice.leaf.kinds, choice.y.name
    stage_J, number_J, later_stages = columns.stage, columns.number, range(1, leaf.num_stages)
    end_J = kinds.class_after(columns.start, columns.num_blocks)
    for stage, start in product(later_stages if leaf.is_plain else (), range(1, kinds.classes)):
        begins = (stage_J == stage) & (columns.start == start)
        ends = (stage_J == stage - 1) & (end_J == start)
        yield choice.sum(begins.astype(np.float64) - ends) == 0, f"joined_{name}_{stage}_{start}"
    for number, stage in product(np.unique(number_J)[1:].tolist(), later_stages):
        more_J = (number_J == number) * ((stage_J == stage).astype(np.float64) - (stage_J == 0))
        yield choice.sum(more_J) == 0, f"as_many_{name}_{stage}_{number}"
    for stage in np.unique(stage_J).tolist():
        yield choice.sum((stage_J == stage).astype(np.float64), -1.0) == 0, f"one_size_{name}_{stage}"
    yield choice.sum(columns.num_blocks.astype(np.float64), -leaf.num_layers) == 0, f"all_layers_{name}"
    if not leaf.is_plain:
        full_JR = leaf.rank_bytes(columns.blocks) / leaf.memory_limit.clip(min=1.0)
        for rank in range(leaf.pp):
            yield choice.sum(full_JR[:, rank], -1.0) <= 0, f"memory_{name}_{rank}"


SLOWED = 1.05
"""Factor by which one rank is slowed to find the critical path through that rank."""
HANDED_OVER = 1e-3
"""Delay of a transfer between ranks in the search for critical paths, as a share of a forward pass."""


def paths_through(leaf: Leaf) -> list[CriticalPath]:
    """Critical paths of a pipeline of equal ranks with one rank slowed down, a path for each slowed rank. In
    plain pipelines every rank is slowed in turn, else the first, middle and last."""
    paths = []
    for rank in range(leaf.pp) if leaf.is_plain else sorted({0, leaf.pp // 2, leaf.pp - 1}):
        forward_S = np.where(leaf.rank_of_stage == rank, SLOWED, 1.0)
        halves = (forward_S, forward_S) if leaf.splits_backward else (2 * forward_S, 0 * forward_S)
        tail_R = HANDED_OVER * np.arange(leaf.pp)[::-1]
        paths.append(leaf.timeline.critical_path(forward_S, halves[0], HANDED_OVER, tail_R, halves[1]))
    return paths


def stage_columns(choices: Choices) -> Columns:
    """Columns of a plain pipeline in the integer program, a column for each useful block count of each stage.
    The first stage begins the model."""
    leaf = choices.leaf
    useful = choices.useful & ((np.arange(leaf.pp)[:, None] > 0) | (choices.classes == 0))
    stage_J, index_J = np.nonzero(useful)
    blocks_JP, start_J = choices.blocks[index_J, stage_J], choices.classes[index_J]
    return Columns.of_stages(leaf, stage_J, blocks_JP, start_J, np.full(len(stage_J), leaf.full_count or 0))


def path_lengths(leaf: Leaf, paths: Sequence[CriticalPath], blocks: Ints) -> Array:
    """Seconds of each critical path under each of the placements `blocks`, including gradient synchronisation
    of the path's last rank, (..., paths)."""
    first_S, second_S = leaf.halves(blocks)
    return (
        leaf.forward(blocks) @ np.stack([path.forward_counts for path in paths], axis=1)
        + first_S @ np.stack([path.backward_counts for path in paths], axis=1)
        + second_S @ np.stack([path.weight_counts for path in paths], axis=1)
        + np.array([path.p2p_count for path in paths]) * leaf.cost("p2p")
        + leaf.once_a_step("sync", blocks)[..., [path.rank for path in paths]]
    )


Pipeline = tuple[str, int, int, int]
"""Schedule, pp, vpp and number of microbatches of a pipeline, which decide its critical paths."""


def pipeline_of(leaf: Leaf) -> Pipeline:
    """Key of a layout's pipeline; layouts with equal keys have the same critical paths."""
    return leaf.schedule, leaf.pp, leaf.vpp, leaf.microbatches


def minimum(layouts: Sequence[tuple[Task, Columns]], target: float, solver: SolverName | None) -> Solution:
    """Find the best placement of any of the layouts within `target` seconds by an integer program over their
    columns. Critical paths are added as rows until the program's optimum equals the time on the timeline.

    `optimal` where nothing takes less than the bound, `infeasible` without solutions; stops at the deadline, and once
    nothing can beat the cut-off.
    """
    program = Program([0.0] * len(layouts), target)
    deadline = min([task.deadline for task, _ in layouts], default=math.inf)
    cut_off = min([task.cut_off for task, _ in layouts], default=math.inf)
    leaves = {pipeline_of(task.leaf): task.leaf for task, _ in layouts}
    paths = {pipeline: paths_through(leaf) for pipeline, leaf in leaves.items()}
    for number, (task, columns) in enumerate(layouts):
        own_path = [task.leaf.critical_path(task.incumbent[0].table)] if task.incumbent else []
        met_paths = [*paths[pipeline_of(task.leaf)], *task.met_paths, *own_path]
        program.place(number, task.leaf, columns, met_paths)
    program.problem += (program.step <= 1.0), "no_worse_than_known"
    best, best_seconds, bound, rounds, critical = None, math.inf, 0.0, 0, list[CriticalPath]()
    status: Status = "stopped"
    while (seconds_left := deadline - time.monotonic()) > 0:
        solved = program.solve(solver or available_solver(), seconds=seconds_left)
        rounds += 1
        if solved.verdict == "infeasible":
            status = "optimal" if best else "infeasible"
        if solved.verdict != "optimal":
            break
        choice = program.choices[program.chosen_layout]
        placement = choice.placement()
        seconds = choice.leaf.price(placement)
        if seconds < best_seconds:
            best, best_seconds = placement, seconds
        bound = max(bound, program.modelled_seconds(choice, placement))
        if min(best_seconds, cut_off) <= bound * (1 + TOLERANCE):
            status = "optimal"
            break
        critical.append(choice.leaf.critical_path(placement.table))
        program.steps_are_no_shorter_than_path(choice.leaf, critical[-1])
    return Solution(status, best, best_seconds, bound, rounds, tuple(critical))


def solve_record(
    survivors: Sequence[Task], best_seconds: float, solver: SolverName | None = None
) -> ClosingProgram | None:
    """Record of one integer program, solved over the layouts that lower bounds did not exclude and checked to
    have the search's `best_seconds` as its optimum; None if time runs out.

    Raises:
        RunError: they differ, so search and program cannot both be right.
    """
    name, target = solver or available_solver(), best_seconds * (1 + TOLERANCE)
    tables = [(task, columns_in_time(task.leaf, target, task.met_paths)) for task in survivors]
    layouts = [(task, columns) for task, columns in tables if columns is not None]
    result = minimum(layouts, target, name)
    if result.status == "stopped":
        return None
    if result.status == "infeasible" or not math.isclose(result.bound, best_seconds, rel_tol=10 * TOLERANCE):
        claim = "nothing as good" if result.status == "infeasible" else f"{result.bound:.9g} s"
        message = f"the integer program finds {claim} where the search finds {best_seconds:.9g} s: one of them is wrong"
        raise RunError(message, hint="please report the question")
    columns = sum(len(columns.stage) for _, columns in layouts)
    return ClosingProgram(solver=name, layouts=len(survivors), columns=columns, objective=result.bound)


def columns_in_time(leaf: Leaf, target: float, met_paths: Sequence[CriticalPath]) -> Columns | None:
    """Columns (binary variables that place blocks) of a layout whose step may take at most `target` seconds;
    None if no step is so short. A plain pipeline has columns for its stages, other pipelines a column for
    each pattern."""
    if leaf.is_plain:
        numbered_leaves = leaves_by_full_count(leaf, target * (1 + TOLERANCE))
        choices = [choices_in_time(numbered_leaf, target, met_paths) for _, numbered_leaf in numbered_leaves]
        tables = [stage_columns(own) for own in choices if own is not None]
        return Columns.joined(tables) if tables else None
    patterns = chunk_patterns(leaf)
    patterns = patterns[leaf.busy_seconds(patterns) <= target]
    fullest = (leaf.rank_bytes(patterns) / leaf.memory_limit.clip(min=1.0)).max(axis=-1, initial=0.0)
    patterns = patterns[leaf.fits(patterns) | (fullest > 1 + OVERLOOKED)]
    return Columns.of_patterns(patterns) if len(patterns) else None


MOST_TRIED = 3
"""Number of counts of fully recomputed blocks for which a good placement is sought, as the best count nearly
always has one of the lowest bounds."""
PRECISION = 1e-3
"""Relative precision of the lower bounds that order the counts of fully recomputed blocks."""


def leaves_by_full_count(leaf: Leaf, cut_off: float = math.inf) -> list[tuple[float, Leaf]]:
    """Copies of a placement problem, one for each number of blocks that every stage recomputes in full, with
    a lower bound of each copy's step in seconds. The lowest bound comes first. Only bounds below `cut_off`
    are returned. If there is no number to choose, the problem itself is returned alone.

    Of two numbers with which the same stages fit only the smaller is kept: it dominates if every choice in time is in
    time there too, and as fast.
    """
    if not leaf.uses_full_counts or leaf.full_count is not None:
        return [(0.0, leaf)]
    group = RankCosts.of(leaf).limited_to(cut_off)
    size_B = group.sizes
    number_N = np.arange(int(size_B[-1]) + 1)
    seconds_NBCR = _seconds(leaf, number_N, size_B)
    within_NBCR = np.isfinite(seconds_NBCR) & (leaf.microbatches * seconds_NBCR <= cut_off * (1 + TOLERANCE))
    held_N = np.where(within_NBCR.any(axis=2), size_B[:, None], 0).max(axis=1).sum(axis=1)
    worse_NBCR = ~within_NBCR[1:] | (seconds_NBCR[:-1] <= seconds_NBCR[1:])
    is_dominated_N = np.append(False, worse_NBCR.all(axis=(1, 2, 3)))
    number_N = number_N[(held_N >= leaf.num_layers) & ~is_dominated_N]
    bound_N = np.zeros(len(number_N))
    if number_N.any():
        least_NRB = np.moveaxis(seconds_NBCR[number_N].min(axis=2), 1, 2)
        rows = group.rows(np.zeros(len(number_N), dtype=np.int64))
        bound_N = rank_bounds(rows, cut_off, PRECISION, least_NRB)
    in_order = zip(bound_N.tolist(), number_N.tolist(), strict=True)
    return [(bound, replace(leaf, full_count=count)) for bound, count in sorted(in_order) if bound < cut_off]


def good_of_numbers(leaf: Leaf, cut_off: float) -> tuple[tuple[Placement, float] | None, float]:
    """Find a good placement, with its step seconds, among the most promising numbers of fully recomputed
    blocks. Also return a lower bound of the step over all numbers. The placement is None if none fits. The
    bound is at most `cut_off`, and at most the step of the placement."""
    best: tuple[Placement, float] | None = None
    if leaf.uses_full_counts and math.isinf(cut_off) and (first := least_number(leaf)) is not None:
        best = good_placement(replace(leaf, full_count=first))
    threshold = cut_off if best is None else best[1]
    numbers = leaves_by_full_count(leaf, threshold)
    for bound, numbered_leaf in numbers[:MOST_TRIED]:
        placement = good_placement(numbered_leaf) if best is None or bound < best[1] else None
        if placement and (best is None or placement[1] < best[1]):
            best = placement
    return best, numbers[0][0] if numbers else threshold


def least_number(leaf: Leaf) -> int | None:
    """Smallest number of fully recomputed blocks per stage with which stages of equal size fit in memory;
    None if no number does."""
    smallest, largest = leaf.num_layers // leaf.pp, -(-leaf.num_layers // leaf.pp)
    fits_NBR = np.isfinite(_seconds(leaf, np.arange(largest + 1), np.array([smallest]))).any(axis=2)
    fits_N = fits_NBR.reshape(largest + 1, -1).all(axis=1)
    return int(fits_N.argmax()) if fits_N.any() else None


def _seconds(leaf: Leaf, number_N: Ints, size_B: Ints) -> Array:
    """Seconds of one microbatch by number of fully recomputed blocks, block count, start position and rank,
    (N, B, C, R); infinite where the blocks do not fit."""
    return np.moveaxis(priced_mixes(leaf, size_B, np.arange(leaf.kinds.classes), number_N)[0], 2, 0)


def place_by_ilp(task: Task, solver: SolverName | None = None) -> Solution:
    """Find the best placement of a plain layout (one stage per rank) by the integer program. The result has
    the form of `place_by_labels`."""
    cut_off, choices = task.cut_off, choices_of(task.leaf, task.cut_off)
    if choices is None:
        return Solution(final_status(math.inf, cut_off), None, math.inf, bound=cut_off, rounds=0)
    target = min(cut_off, choices.slowest_step) * (1 + TOLERANCE)
    result = minimum([(task, stage_columns(choices))], target, solver)
    if result.status == "stopped":
        return result
    status, bound = final_status(result.objective, cut_off), min(result.objective, cut_off)
    return replace(result, status=status, bound=bound)


def best_placement(task: Task) -> Solution:
    """Find the best placement of a plain layout (one stage per rank) with proof, by label setting or, with
    too many labels, by an integer program. If all stages share a number of fully recomputed blocks, every
    number is tried.

    The solution is `stopped` after most rounds of label setting or at the deadline.
    """
    best, seconds = task.incumbent or (None, math.inf)
    rounds, paths, stopped = 0, list[CriticalPath](), list[float]()
    for bound, leaf in leaves_by_full_count(task.leaf, min(seconds, task.cut_off)):
        cut_off = min(seconds, task.cut_off)
        if bound >= cut_off:
            break
        part = replace(task, leaf=leaf, incumbent=None, cut_off=cut_off)
        solution = place_by_labels(part) or place_by_ilp(part)
        rounds += solution.rounds
        paths += solution.paths
        if solution.status == "stopped":
            stopped.append(max(bound, solution.bound))
        if solution.placement is not None and solution.objective < seconds:
            best, seconds = solution.placement, solution.objective
    status: Status = "stopped" if stopped else final_status(seconds, task.cut_off)
    return Solution(status, best, seconds, min([*stopped, seconds, task.cut_off]), rounds, tuple(paths))
