"""An integer program that chooses a layout and places its blocks, over the critical paths it knows.

    y[l]      1 if layout l is the one
    x[l, j]   1 if layout l has its column j: for plain pipelines so many blocks on one stage, under the fastest mix of
              recompute policies that fits there; else a pattern of blocks and policies for all stages
    M         end of the last action plus synchronisation, over all ranks           (in units of the time to beat)
    O         longest optimizer step of any rank                                    (in units of the time to beat)

    minimise M + O + Σ overhead[l] y[l]
    subject to   one layout, each of its stages one size, all its layers placed (or one pattern),
                 every rank of a pattern within its memory,
                 the step no shorter than each known path of the layout, the optimizer step no shorter than any rank's

The step time of a placement is the longest path through its timeline. The program knows some paths, so its optimum is a
lower bound; `planner.exact.ilp.cutting` adds those it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pulp

from cost_models.axes.columns import Ints
from cost_models.schedules import CriticalPath
from planner.exact.labels.choices import Choices
from planner.exact.labels.critical_paths import longest_windows
from planner.placement.chunks import chunk_patterns
from planner.placement.leaf import TOLERANCE, Floats, Leaf, Placement

CUTS_PER_ROUND = 64
"""Most paths written down and added as rows in one round: enough to save rounds, few enough to stay small."""
OVERLOOKED = 1e-5
"""Relative violation of a limit that a solver may overlook; patterns that exceed memory by less are left out."""


class Columns(NamedTuple):
    """The columns of one layout: block counts of its stages, or patterns of all stages."""

    blocks: Ints
    """(J, S, P): the blocks that each column places."""
    stage: Ints
    """(J,): the stage of each column; −1 for a pattern of all stages."""


@dataclass(eq=False)
class Choice:
    """One layout in the program, with its variables."""

    leaf: Leaf
    columns: Columns
    y: pulp.LpVariable
    x: list[pulp.LpVariable]
    paths: list[CriticalPath] = field(default_factory=list)
    """Critical paths that are rows of the program."""

    def sum(self, coefficients: Floats) -> pulp.LpAffineExpression:
        """Σ coefficient · x over the columns."""
        terms = zip(self.x, coefficients.tolist(), strict=True)
        return pulp.LpAffineExpression({x: value for x, value in terms if value})

    def violated_paths(self, placement: Placement) -> list[CriticalPath]:
        """Paths that can be written down without a timeline and that the placement violates, the longest first."""
        windows = longest_windows(self.leaf, placement.table, CUTS_PER_ROUND) if self.leaf.is_plain else []
        known = _lengths(self.leaf, self.paths, placement.table).max(initial=0.0)
        length = _lengths(self.leaf, windows, placement.table)
        return [path for path, own in zip(windows, length, strict=True) if own > known * (1 + TOLERANCE)]

    def chosen(self) -> Placement:
        """The placement in the solver's solution, where this layout is the one chosen."""
        picked = np.array([(x.value() or 0.0) > 0.5 for x in self.x])
        return Placement.of(self.columns.blocks[picked].sum(axis=0))


class Program:
    """The integer program over some layouts, each with its columns."""

    def __init__(self, layouts: Sequence[tuple[Leaf, Columns]], target: float) -> None:
        self.scale = target
        self.problem = pulp.LpProblem("record", pulp.LpMinimize)
        self.M, self.O = (self.problem.add_variable(name, lowBound=0) for name in "MO")
        self.choices = [self._choice(number, *layout) for number, layout in enumerate(layouts)]
        overheads = {one.y: one.leaf.overhead / self.scale for one in self.choices}
        step = self.M + self.O + pulp.LpAffineExpression(overheads)
        self.problem += step, "step_seconds"
        self.problem += (step <= 1.0), "no_worse_than_known"
        self.one_layout()
        for choice in self.choices:
            self.one_size_a_stage_and_all_layers(choice)
            self.every_rank_within_its_memory(choice)
            self.optimizer_step_is_no_shorter_than_any(choice)

    def _choice(self, number: int, leaf: Leaf, columns: Columns) -> Choice:
        y = self.problem.add_variable(f"y_{number}", cat=pulp.LpBinary)
        names = (f"x_{number}_{j}" for j in range(len(columns.blocks)))
        x = [self.problem.add_variable(name, cat=pulp.LpBinary) for name in names]
        return Choice(leaf, columns, y, x)

    def one_layout(self) -> None:
        """Σ_l y[l] = 1."""
        self.problem += pulp.lpSum(one.y for one in self.choices) == 1, "one_layout"

    def one_size_a_stage_and_all_layers(self, choice: Choice) -> None:
        """Σ_j x[l, j] = y[l] for each stage of layout l, and Σ blocks · x = L y[l]; a pattern is all stages at once."""
        name = choice.y.name
        for stage in np.unique(choice.columns.stage).tolist():
            own = choice.sum((choice.columns.stage == stage).astype(np.float64))
            self.problem += own - choice.y == 0, f"one_size_{name}_{stage}"
        layers = choice.sum(choice.columns.blocks.sum(axis=(1, 2)).astype(np.float64))
        self.problem += layers - choice.leaf.num_layers * choice.y == 0, f"all_layers_{name}"

    def every_rank_within_its_memory(self, choice: Choice) -> None:
        """Σ_j bytes[r, j] x[l, j] ≤ limit[r] y[l]; columns of plain pipelines fit by construction."""
        if choice.leaf.is_plain:
            return
        full_JR = choice.leaf.rank_bytes(choice.columns.blocks) / choice.leaf.memory_limit
        for rank in range(choice.leaf.pp):
            self.problem += choice.sum(full_JR[:, rank]) - choice.y <= 0, f"memory_{choice.y.name}_{rank}"

    def optimizer_step_is_no_shorter_than_any(self, choice: Choice) -> None:
        """O ≥ the optimizer step of every rank of layout l, where y[l] = 1."""
        leaf = choice.leaf
        fixed_R = leaf.once_a_step("optimizer", leaf.no_blocks)
        own_JR = (leaf.once_a_step("optimizer", choice.columns.blocks) - fixed_R) / self.scale
        for rank in range(leaf.pp):
            least = choice.sum(own_JR[:, rank]) + float(fixed_R[rank] / self.scale) * choice.y
            self.problem += self.O - least >= 0, f"optimizer_{choice.y.name}_{rank}"

    def step_is_no_shorter_than_path(self, choice: Choice, path: CriticalPath) -> None:
        """M ≥ length of one path of layout l plus the synchronisation of the rank it ends on, where y[l] = 1."""
        fixed = float(_lengths(choice.leaf, [path], choice.leaf.no_blocks)[0])
        own_J = (_lengths(choice.leaf, [path], choice.columns.blocks)[:, 0] - fixed) / self.scale
        least = choice.sum(own_J) + fixed / self.scale * choice.y
        self.problem += self.M - least >= 0, f"path_{choice.y.name}_{len(choice.paths)}"
        choice.paths.append(path)

    def modelled_seconds(self, choice: Choice, placement: Placement) -> float:
        """Step seconds of a placement by the program's paths alone, in full precision."""
        leaf, blocks = choice.leaf, placement.table
        longest = float(_lengths(leaf, choice.paths, blocks).max())
        return longest + float(leaf.once_a_step("optimizer", blocks).max()) + leaf.overhead


def stage_columns(choices: Choices) -> Columns:
    """Columns of a plain pipeline: one for each useful number of blocks on each stage."""
    stage_J, index_J = np.nonzero(choices.useful)
    blocks = np.zeros((len(stage_J), *choices.leaf.no_blocks.shape), dtype=np.int64)
    blocks[np.arange(len(stage_J)), stage_J] = choices.blocks[index_J, stage_J]
    return Columns(blocks, stage_J)


def pattern_columns(leaf: Leaf, target: float) -> Columns | None:
    """Columns of a pipeline in chunks: one for each pattern that may meet `target` seconds; None where none may."""
    patterns = chunk_patterns(leaf)
    patterns = patterns[leaf.busy_seconds(patterns) <= target]
    fullest = (leaf.rank_bytes(patterns) / leaf.memory_limit).max(axis=-1, initial=0.0)
    patterns = patterns[leaf.fits(patterns) | (fullest > 1 + OVERLOOKED)]
    return Columns(patterns, np.full(len(patterns), -1)) if len(patterns) else None


def _lengths(leaf: Leaf, paths: Sequence[CriticalPath], blocks: Ints) -> Floats:
    """(..., paths) seconds of each path plus the synchronisation of the rank it ends on, for blocks (..., S, P)."""
    if not paths:
        return np.zeros((*blocks.shape[:-2], 0))
    first_S, second_S = leaf.halves(blocks)
    seconds: Floats = (
        leaf.forward(blocks) @ np.stack([path.forward_counts for path in paths], axis=1)
        + first_S @ np.stack([path.backward_counts for path in paths], axis=1)
        + second_S @ np.stack([path.weight_counts for path in paths], axis=1)
        + np.array([path.p2p_count for path in paths]) * leaf.cost("p2p")
        + leaf.once_a_step("sync", blocks)[..., [path.rank for path in paths]]
    )
    return seconds
