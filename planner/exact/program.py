"""An integer program that chooses a layout and places its blocks, over the known critical paths.

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
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pulp

from cost_models.arrays import Array, Bools, Ints
from cost_models.errors import RunError
from cost_models.schedules.timeline import CriticalPath
from planner.exact.counts import best_of_numbers, leaves_by_full_count
from planner.exact.labels import Choices, choices_in_time, choices_of, place_by_labels
from planner.exact.solvers import Interrupt, Solved, SolverName, available_solver, solve
from planner.objectives import ClosingProgram
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, Task, proven
from planner.placement.patterns import chunk_patterns

OVERLOOKED = 1e-5
"""Relative violation of a limit that a solver may overlook; patterns that exceed memory by less are left out."""


class Columns(NamedTuple):
    """Columns of one layout in the integer program. Each is a block count of one stage, or a pattern of all
    stages."""

    blocks: Ints
    """Blocks that each column places, (J, S, P)."""
    stage: Ints
    """Stage of each column, (J,); −1 for a pattern of all stages."""
    start: Ints
    """Class of positions where each column's stage begins, (J,)."""
    number: Ints
    """Number of first blocks recomputed in full, (J,); 0 if stages do not share a number."""

    @classmethod
    def of_stages(
        cls, leaf: Leaf, stage_J: Ints, blocks_JP: Ints, start_J: Ints, number: Ints | int
    ) -> Columns:
        """Columns of an integer program that each place blocks, (J, P), on a single stage."""
        blocks = np.zeros((len(stage_J), *leaf.no_blocks.shape), dtype=np.int64)
        blocks[np.arange(len(stage_J)), stage_J] = blocks_JP
        return cls(blocks, stage_J, start_J, np.broadcast_to(number, stage_J.shape))

    @classmethod
    def of_patterns(cls, patterns: Ints) -> Columns:
        """Columns of an integer program from patterns, placements on all stages, (J, S, P)."""
        none = np.zeros(len(patterns), dtype=np.int64)
        return cls(patterns, none - 1, none, none)

    def only(self, mask: Bools) -> Columns:
        """Subset of the columns for which a mask is true."""
        return Columns(*(column[mask] for column in self))

    @classmethod
    def joined(cls, tables: Sequence[Columns]) -> Columns:
        """Concatenation of several `Columns`."""
        return cls(*map(np.concatenate, zip(*tables, strict=True)))

    @property
    def num_blocks(self) -> Ints:
        """Number of blocks that each column places, (J,)."""
        total: Ints = self.blocks.sum(axis=(1, 2))
        return total


@dataclass(eq=False)
class Choice:
    """One layout in the integer program, with its solver variables."""

    leaf: Leaf
    columns: Columns
    y: pulp.LpVariable
    x: list[pulp.LpVariable]
    M: pulp.LpVariable
    U: pulp.LpVariable
    paths: list[CriticalPath] = field(default_factory=list)
    """Critical paths that are rows of the program."""

    def sum(self, coefficients: Array) -> pulp.LpAffineExpression:
        """Linear expression Σ coefficient · x over the columns of the layout."""
        terms = zip(self.x, coefficients.tolist(), strict=True)
        return pulp.LpAffineExpression({x: value for x, value in terms if value})

    def placement(self) -> Placement:
        """Placement of the layout that the solver's solution contains, if the solution chooses the layout."""
        picked = np.array([(x.value() or 0.0) > 0.5 for x in self.x])
        return Placement.of(self.columns.blocks[picked].sum(axis=0))


class Program:
    """Integer program that chooses a layout and places its blocks. Placed layouts have columns, the others a
    lower bound."""

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
        """Replace the lower bound of a layout by columns for its placements, with known critical paths as rows."""
        y = self.y[number]
        names = (f"x_{number}_{j}" for j in range(len(columns.blocks)))
        x = [self.problem.add_variable(name, cat=pulp.LpBinary) for name in names]
        M, U = (self.problem.add_variable(f"{name}_{number}", lowBound=0) for name in "MU")
        self._cost |= {y: leaf.overhead / self.scale, M: 1.0, U: 1.0}
        choice = self.choices[number] = Choice(leaf, columns, y, x, M, U)
        self.one_size_a_stage_and_all_layers(choice)
        self.every_rank_within_its_memory(choice)
        self.optimizer_step_is_no_shorter_than_any(choice)
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
        stop = Interrupt()
        self.problem.setObjective(self.step)
        solved = solve(self.problem, solver, seconds=seconds, interrupt=stop)
        if stop.pressed:
            raise KeyboardInterrupt
        return replace(solved, bound=solved.bound * self.scale)

    def one_size_a_stage_and_all_layers(self, choice: Choice) -> None:
        """Add rows that give each stage one block count and place all blocks of a layout. Σ_j x[l, j] = y[l]
        for each stage of layout l, and Σ blocks · x = L y[l]; a pattern is all stages at once."""
        name = choice.y.name
        self.stages_begin_where_others_end(choice)
        self.stages_recompute_as_many(choice)
        for stage in np.unique(choice.columns.stage).tolist():
            sizes = choice.sum((choice.columns.stage == stage).astype(np.float64))
            self.problem += sizes - choice.y == 0, f"one_size_{name}_{stage}"
        layers = choice.sum(choice.columns.num_blocks.astype(np.float64))
        self.problem += layers - choice.leaf.num_layers * choice.y == 0, f"all_layers_{name}"

    def stages_begin_where_others_end(self, choice: Choice) -> None:
        """Add rows by which each stage begins at a position where the stage before ends. For each class of
        positions but the first: Σ_j x[l, j] over a stage's columns that begin in the class = Σ over the columns
        of the stage before that end in it. The columns of the first stage all begin with the model. What is
        left of a stage's one size is the first class."""
        stage_J, kinds = choice.columns.stage, choice.leaf.kinds
        end_J = kinds.class_after(choice.columns.start, choice.columns.num_blocks)
        for stage in range(1, choice.leaf.num_stages if choice.leaf.is_plain else 1):
            for start in range(1, kinds.classes):
                begins = (stage_J == stage) & (choice.columns.start == start)
                ends = (stage_J == stage - 1) & (end_J == start)
                flow = choice.sum(begins.astype(np.float64) - ends)
                self.problem += flow == 0, f"joined_{choice.y.name}_{stage}_{start}"

    def stages_recompute_as_many(self, choice: Choice) -> None:
        """Add rows by which all stages recompute the same number of blocks in full. For each number but the
        first: Σ_j x[l, j] over a stage's columns with the number = Σ over those of the first stage."""
        stage_J, number_J = choice.columns.stage, choice.columns.number
        for number in np.unique(number_J)[1:].tolist():
            for stage in range(1, choice.leaf.num_stages):
                own_J = (number_J == number) * ((stage_J == stage).astype(np.float64) - (stage_J == 0))
                self.problem += choice.sum(own_J) == 0, f"as_many_{choice.y.name}_{stage}_{number}"

    def every_rank_within_its_memory(self, choice: Choice) -> None:
        """Add rows that keep every rank of a layout in patterns within its memory. Σ_j bytes[r, j] x[l, j] ≤
        limit[r] y[l]; columns of plain pipelines fit by construction."""
        if choice.leaf.is_plain:
            return
        full_JR = choice.leaf.rank_bytes(choice.columns.blocks) / choice.leaf.memory_limit.clip(min=1.0)
        for rank in range(choice.leaf.pp):
            self.problem += choice.sum(full_JR[:, rank]) - choice.y <= 0, f"memory_{choice.y.name}_{rank}"

    def optimizer_step_is_no_shorter_than_any(self, choice: Choice) -> None:
        """Add rows that bound the optimizer step of a layout by that of every rank. U ≥ the optimizer step of
        every rank of layout l, where y[l] = 1."""
        leaf = choice.leaf
        fixed_R = leaf.once_a_step("optimizer", leaf.no_blocks)
        own_JR = (leaf.once_a_step("optimizer", choice.columns.blocks) - fixed_R) / self.scale
        for rank in range(leaf.pp):
            longest = choice.sum(own_JR[:, rank]) + float(fixed_R[rank] / self.scale) * choice.y
            self.problem += choice.U - longest >= 0, f"optimizer_{choice.y.name}_{rank}"

    def step_is_no_shorter_than_path(self, choice: Choice, path: CriticalPath) -> None:
        """Add a row that bounds the step of a layout by one critical path. M ≥ length of the path of layout l
        plus the synchronisation of the rank it ends on, where y[l] = 1."""
        fixed = float(path_lengths(choice.leaf, [path], choice.leaf.no_blocks)[0])
        own_J = (path_lengths(choice.leaf, [path], choice.columns.blocks)[:, 0] - fixed) / self.scale
        length = choice.sum(own_J) + fixed / self.scale * choice.y
        self.problem += choice.M - length >= 0, f"path_{choice.y.name}_{len(choice.paths)}"
        choice.paths.append(path)

    def steps_are_no_shorter_than_path(self, leaf: Leaf, path: CriticalPath) -> None:
        """Add a row that bounds the step by one critical path of a layout, for every layout of the same pipeline."""
        for choice in self.choices.values():
            if pipeline_of(choice.leaf) == pipeline_of(leaf):
                self.step_is_no_shorter_than_path(choice, path)

    def modelled_seconds(self, choice: Choice, placement: Placement) -> float:
        """Step seconds of a placement from the critical paths in the program alone, in full precision."""
        leaf, blocks = choice.leaf, placement.table
        longest = float(path_lengths(leaf, choice.paths, blocks).max())
        return longest + float(leaf.once_a_step("optimizer", blocks).max()) + leaf.overhead


SLOWED = 1.05
"""Factor by which one rank is slowed to find the path through it."""
HANDED_OVER = 1e-3
"""Delay between ranks while paths are sought, in forward passes."""


def paths_through(leaf: Leaf) -> list[CriticalPath]:
    """Critical paths of a pipeline with one rank slowed, for each slowed rank. Every rank in turn is slowed, or
    three where stages are nearly equal."""
    paths = []
    for rank in range(leaf.pp) if leaf.is_plain else sorted({0, leaf.pp // 2, leaf.pp - 1}):
        forward_S = np.where(leaf.rank_of_stage == rank, SLOWED, 1.0)
        halves = (forward_S, forward_S) if leaf.splits_backward else (2 * forward_S, 0 * forward_S)
        tail_R = HANDED_OVER * np.arange(leaf.pp)[::-1]
        paths.append(leaf.timeline.critical_path(forward_S, halves[0], HANDED_OVER, tail_R, halves[1]))
    return paths


def stage_columns(choices: Choices) -> Columns:
    """Columns of a plain pipeline in the integer program, one for each useful number of blocks on each stage.
    The first stage begins the model."""
    leaf = choices.leaf
    useful = choices.useful & ((np.arange(leaf.pp)[:, None] > 0) | (choices.classes == 0))
    stage_J, index_J = np.nonzero(useful)
    blocks_JP, start_J = choices.blocks[index_J, stage_J], choices.classes[index_J]
    return Columns.of_stages(leaf, stage_J, blocks_JP, start_J, leaf.full_count or 0)


def path_lengths(leaf: Leaf, paths: Sequence[CriticalPath], blocks: Ints) -> Array:
    """Seconds of each path plus the synchronisation of the rank it ends on, (..., paths), for blocks (..., S, P)."""
    first_S, second_S = leaf.halves(blocks)
    return (
        leaf.forward(blocks) @ np.stack([path.forward_counts for path in paths], axis=1)
        + first_S @ np.stack([path.backward_counts for path in paths], axis=1)
        + second_S @ np.stack([path.weight_counts for path in paths], axis=1)
        + np.array([path.p2p_count for path in paths]) * leaf.cost("p2p")
        + leaf.once_a_step("sync", blocks)[..., [path.rank for path in paths]]
    )


Pipeline = tuple[str, int, int, int]
"""Schedule, pp, vpp and microbatches, which decide the paths."""


def pipeline_of(leaf: Leaf) -> Pipeline:
    """Key of the pipeline of a layout, which shares critical paths with all layouts of the same key."""
    return leaf.schedule, leaf.pp, leaf.vpp, leaf.microbatches


def minimum(
    program: Program, solver: SolverName, *, known_seconds: float = math.inf, deadline: float = math.inf
) -> Solution:
    """Solve an integer program, adding critical paths as rows until timeline and program agree; return the best
    placement and the bound. `optimal` where nothing takes less than the bound, `infeasible` without solutions;
    stops early once nothing can beat `known_seconds`."""
    best, best_seconds, bound, rounds = None, math.inf, 0.0, 0
    critical: list[CriticalPath] = []
    status: Status = "stopped"
    while (seconds_left := deadline - time.monotonic()) > 0:
        solved = program.solve(solver, seconds=seconds_left)
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
        if min(best_seconds, known_seconds) <= bound * (1 + TOLERANCE):
            status = "optimal"
            break
        critical.append(choice.leaf.critical_path(placement.table))
        program.steps_are_no_shorter_than_path(choice.leaf, critical[-1])
    return Solution(status, best, best_seconds, bound, rounds, tuple(critical))


class Survivor(NamedTuple):
    """A layout that lower bounds did not exclude, with its best known placement and critical paths."""

    leaf: Leaf
    placement: Placement | None
    """Best placement known; None if none is."""
    met_paths: Sequence[CriticalPath]
    """Known critical paths of pipelines of this shape."""


def solve_record(
    survivors: Sequence[Survivor],
    best_seconds: float,
    *,
    deadline: float = math.inf,
    solver: SolverName | None = None,
) -> ClosingProgram | None:
    """Solve one integer program over the surviving layouts and check that its optimum equals the search's
    `best_seconds`; None if there is no time for it.

    Raises:
        RunError: they differ, so search and program cannot both be right.
    """
    name, target = solver or available_solver(), best_seconds * (1 + TOLERANCE)
    tables = [(one, columns_in_time(one.leaf, target, one.met_paths)) for one in survivors]
    fitting = [(survivor, table) for survivor, table in tables if table is not None]
    program = Program([0.0] * len(fitting), target)
    paths: dict[Pipeline, list[CriticalPath]] = {}
    for number, ((leaf, placement, met_paths), table) in enumerate(fitting):
        own_path = [leaf.critical_path(placement.table)] if placement else []
        if (pipeline := pipeline_of(leaf)) not in paths:
            paths[pipeline] = paths_through(leaf)
        program.place(number, leaf, table, [*paths[pipeline], *met_paths, *own_path])
    program.problem += (program.step <= 1.0), "no_worse_than_known"
    result = minimum(program, name, deadline=deadline)
    if result.status == "stopped":
        return None
    if result.status == "infeasible" or not math.isclose(result.bound, best_seconds, rel_tol=10 * TOLERANCE):
        claim = "nothing as good" if result.status == "infeasible" else f"{result.bound:.9g} s"
        message = f"the integer program finds {claim} where the search finds {best_seconds:.9g} s: one of them is wrong"
        raise RunError(message, hint="please report the question")
    columns = sum(len(choice.x) for choice in program.choices.values())
    return ClosingProgram(solver=name, layouts=len(survivors), columns=columns, objective=result.bound)


def columns_in_time(leaf: Leaf, target: float, met_paths: Sequence[CriticalPath]) -> Columns | None:
    """Columns of a layout whose placements may take at most `target` seconds; None where no step is so short. A
    plain pipeline has columns of its stages, one in chunks a column for each pattern."""
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


def best_placement(task: Task) -> Solution:
    """Best placement of a plain layout, proven by label setting, or by its integer program where labels are too
    many.

    The solution is `stopped` after most rounds of label setting or at the deadline.
    """
    if task.leaf.uses_full_counts and task.leaf.full_count is None:
        return best_of_numbers(task, best_placement)
    return place_by_labels(task) or place_by_ilp(task)


def place_by_ilp(task: Task, solver: SolverName | None = None) -> Solution:
    """Best placement of a plain layout by the integer program; the result is as that of `place_by_labels`."""
    leaf, cut_off = task.leaf, task.cut_off
    best, best_seconds = task.incumbent or (None, math.inf)
    to_beat = min(best_seconds, cut_off)
    choices = choices_of(leaf, to_beat)
    result = Solution("infeasible", None, math.inf, bound=to_beat, rounds=0)
    if choices is not None:
        program = Program([0.0], min(to_beat, choices.slowest_step) * (1 + TOLERANCE))
        program.place(0, leaf, stage_columns(choices), [*paths_through(leaf), *task.met_paths])
        program.problem += (program.step <= 1.0), "no_worse_than_known"
        solver = solver or available_solver()
        result = minimum(program, solver, known_seconds=to_beat, deadline=task.deadline)
    if result.objective < best_seconds:
        best, best_seconds = result.placement, result.objective
    result = replace(result, placement=best, objective=best_seconds)
    if result.status == "stopped":
        return result
    return replace(result, status=proven(best_seconds, cut_off), bound=min(best_seconds, cut_off))
