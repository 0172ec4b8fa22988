"""Search by one integer program over all layouts, a second proof that shares no step with branch and bound.

The program has a binary for every layout at its relaxed bound (`planner.exact.program`). If the solver
chooses a layout without placements, those with the least bounds get theirs as columns; if it chooses a
placement, the timeline prices it and its critical path becomes one row more (Benders 1962). Every optimum
bounds all layouts, so a placement that takes no longer is proved the best; the next best is found without
that layout.

Relaxed bounds: every path through the timeline bounds the step from below, and so does the mean of several
paths. The timeline itself finds them, with one rank slowed at a time, so no schedule needs a separate
formula. Blocks are placed fractionally where they add least to the path, under recompute policies for which
all ranks together have memory.

Columns of one layout are placements of its stages that fit within memory and a target time.

Shape legend: N layouts of one pipeline, J columns, K ways to split blocks among policies, Q paths, S virtual
stages, P recompute policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np

from cost_models.arrays import Array, Bools, least_allowed
from cost_models.axes.stages import first_in_full
from cost_models.errors import InputError, RunError
from cost_models.pipeline.pipeline import on_stages
from cost_models.pipeline.pricing import scenarios_of
from cost_models.schedules.timeline import CriticalPath
from planner.exact.program import (
    Columns,
    Pipeline,
    Program,
    good_of_numbers,
    path_lengths,
    paths_through,
    pipeline_of,
)
from planner.exact.solvers import SolverName, available_solver
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.mixes import every_mix
from planner.placement.patterns import chunk_patterns
from planner.search.branching import Candidates, Prover, SearchSettings
from planner.search.enumeration import enumerate_names
from planner.space.restrictions import Restrictions


def relaxed_seconds(leaves: Sequence[Leaf], paths: Sequence[CriticalPath]) -> Array:
    """Lower bound of the step of N layouts of one pipeline shape over all placements, even of fractions of
    blocks, seconds (N,). It is infinite where none fits.

    Every path, and the mean of all, bounds the step from below; of a split backward pass the path counts only what it
    has of both halves.
    """
    first, longest_N = leaves[0], np.zeros(len(leaves))
    pp, blocks, kinds = first.pp, first.num_layers, first.kinds

    @cache
    def column(name: str) -> Array:
        """Cost coefficient `name` on every stage of every layout, (N, S) or (N, S, P)."""
        return np.stack([leaf.by_stage(name) for leaf in leaves])

    nothing = np.broadcast_to(first.no_blocks, (len(leaves), *first.no_blocks.shape))
    fixed_NS = [on_stages(column, way, nothing) for way in ("forward", "backward")]
    forward_NSP = np.atleast_3d(column("layer_forward"))
    memory = _memory(leaves, column)
    for mean in (paths, *((path,) for path in paths)):
        forward_S = np.mean([path.forward_counts for path in mean], axis=0)
        backward_S = np.mean([np.minimum(path.backward_counts, path.weight_counts) for path in mean], axis=0)
        length_N = (forward_S * fixed_NS[0] + backward_S * fixed_NS[1]).sum(axis=1)
        length_N = length_N + np.mean([path.p2p_count for path in mean]) * column("p2p")[:, 0]
        block_NSP = forward_S[:, None] * forward_NSP + backward_S[:, None] * column("layer_backward")
        if kinds.number > 1:  # blocks of each kind lie where they add least, under the fastest policy
            block_NSKP = block_NSP.reshape(*block_NSP.shape[:2], kinds.number, -1)
            least_NK = least_allowed(block_NSKP, first.allowed).min(axis=1)
            length_N = length_N + least_NK @ np.array(kinds.counts)
        else:  # every stage has its fewest, the rest lie on the cheapest stage; recompute is where it adds least
            least_NS, low = least_allowed(block_NSP, first.allowed), first.sizes.start
            remainder = blocks - low * first.num_stages
            fastest_N = low * least_NS.sum(axis=1) + remainder * least_NS.min(axis=1)
            more_NP = (block_NSP - least_NS[..., None]).min(axis=1)
            length_N = length_N + _mixed_seconds(first, fastest_N[:, None] / blocks + more_NP, *memory)
        longest_N = np.maximum(longest_N, length_N)
    updated = np.atleast_3d(column("layer_optimizer")).min(axis=-1)  # the fullest rank's blocks, of any kind
    optimizer_N = (column("rank_optimizer") + -(-blocks // pp) * updated).min(axis=1)
    overhead_N = np.array([leaf.overhead for leaf in leaves])
    step_N: Array = longest_N + column("rank_sync").min(axis=1) + optimizer_N + overhead_N
    return step_N * (1 - TOLERANCE)


def _mixed_seconds(leaf: Leaf, price_NP: Array, kept_NP: Array, room_N: Array) -> Array:
    """Minimum seconds of one microbatch in all blocks of each layout if any fraction of the blocks may follow
    each recompute policy, (N,). All ranks together must have memory for the mix."""
    blocks, policies = leaf.num_layers, np.flatnonzero(leaf.allowed).tolist()
    best_N = np.full(len(room_N), np.inf)
    for policy in policies:
        fits_N = blocks * kept_NP[:, policy] <= room_N
        best_N = np.where(fits_N, np.minimum(best_N, blocks * price_NP[:, policy]), best_N)
    for little, much in permutations(policies, 2):
        with np.errstate(divide="ignore", invalid="ignore"):
            more_N = (room_N - blocks * kept_NP[:, little]) / (kept_NP[:, much] - kept_NP[:, little])
            mixed_N = blocks * price_NP[:, little] + more_N * (price_NP[:, much] - price_NP[:, little])
        useful_N = (kept_NP[:, much] > kept_NP[:, little]) & (more_N >= 0) & (more_N <= blocks)
        best_N = np.where(useful_N, np.minimum(best_N, mixed_N), best_N)
    return best_N


def _memory(leaves: Sequence[Leaf], column: Callable[[str], Array]) -> tuple[Array, Array]:
    """Minimum bytes of a block under each recompute policy, (N, P), and bytes that all ranks together have
    for blocks, (N,). Both are per live microbatch.

    Only where a rank has one chunk and all blocks are of one kind: else it depends on the chunk how many microbatches
    of a block are live, and on the kind which bytes it has.
    """
    first, number = leaves[0], len(leaves)
    if not first.is_plain or first.kinds.number > 1:
        return np.zeros((number, len(first.allowed))), np.zeros(number)
    live_R, none = first.memory.max_live, np.zeros(first.pp, dtype=np.int64)
    policies = np.flatnonzero(first.allowed).tolist()
    besides = [[leaf.memory.peaks_besides_blocks(none, [policy]) for policy in policies] for leaf in leaves]
    limit_NR = np.stack([leaf.memory_limit for leaf in leaves])
    kept_NRP = column("layer_activation") + (column("layer_static") / live_R)[..., None]
    room_NR = (limit_NR * (1 + TOLERANCE) - np.min(besides, axis=1)) / live_R
    return kept_NRP.min(axis=1), room_NR.sum(axis=1)


PRECISION = 1e-3
"""Relative precision of the bisection for the shortest step whose columns (placement variables) hold the
model."""


@dataclass(frozen=True, slots=True)
class TimedColumns:
    """Columns (placement variables) of one layout in the integer program, with the seconds that each adds to
    the critical paths of the pipeline."""

    leaf: Leaf
    columns: Columns
    fixed: Array
    """Seconds of each critical path without any blocks, (Q,)."""
    column_seconds: Array
    """Seconds that each column adds to each critical path, (J, Q)."""
    tail_seconds: Array
    """Minimum seconds between the end of the paths and the end of the step, with each column, (J,)."""

    @classmethod
    def of(cls, leaf: Leaf, columns: Columns, paths: Sequence[CriticalPath]) -> TimedColumns:
        """Compute the seconds that the columns of a layout add to the critical paths of its pipeline."""
        fixed_Q = path_lengths(leaf, paths, leaf.no_blocks)
        own_JQ = path_lengths(leaf, paths, columns.blocks) - fixed_Q
        optimizer_J: Array = leaf.once_a_step("optimizer", columns.blocks).max(axis=-1)
        return cls(leaf, columns, fixed_Q, own_JQ, optimizer_J + leaf.overhead)

    def limited_to(self, target: float) -> TimedColumns | None:
        """Select the columns that a step of `target` seconds may contain; None if no placement is so fast."""
        timed, mask = self, self._in_time(target)
        while mask.any() and not mask.all():
            timed = timed.only(mask)
            mask = timed._in_time(target)
        return timed if mask.any() and timed._hold_the_model() else None

    def only(self, mask: Bools) -> TimedColumns:
        """Select the columns for which a mask is true."""
        seconds_JQ, tail_J = self.column_seconds[mask], self.tail_seconds[mask]
        return TimedColumns(self.leaf, self.columns.only(mask), self.fixed, seconds_JQ, tail_J)

    def lower_bound(self, low: float, high: float) -> float:
        """Lower bound of the step in seconds, by bisection between `low` and `high`. In a shorter step the
        columns cannot place all blocks of the model."""
        if self.limited_to(high) is None:
            return high
        while high > low * (1 + PRECISION):
            middle = (low + high) / 2
            low, high = (low, middle) if self.limited_to(middle) else (middle, high)
        return low

    def _in_time(self, target: float) -> Bools:
        """Whether a step with each column can end within `target` seconds if all other stages are as fast as
        possible, (J,)."""
        leaf, own_JQ, stage_J = self.leaf, self.column_seconds, self.columns.stage
        others_JQ: Array = np.zeros_like(own_JQ)
        if leaf.is_plain:
            least_SQ = np.stack([own_JQ[stage_J == s].min(axis=0, initial=np.inf) for s in range(leaf.pp)])
            blocks_J1 = self.columns.num_blocks[:, None]
            rest_JQ = (leaf.num_layers - blocks_J1) * (own_JQ / blocks_J1).min(axis=0)
            others_JQ = np.maximum(least_SQ.sum(axis=0) - least_SQ[stage_J], rest_JQ)
        length_J = (self.fixed + own_JQ + others_JQ).max(axis=1) + self.tail_seconds
        in_time: Bools = length_J <= target * (1 + TOLERANCE)
        return in_time

    def _hold_the_model(self) -> bool:
        """Whether one column for each stage may together place exactly the model's number of blocks. The test
        is necessary, not sufficient: it compares only the sums of smallest and of largest columns."""
        if not self.leaf.is_plain:
            return True
        blocks_J, stage_J = self.columns.num_blocks, self.columns.stage
        sizes = [blocks_J[stage_J == stage].tolist() for stage in range(self.leaf.pp)]
        return all(sizes) and sum(map(min, sizes)) <= self.leaf.num_layers <= sum(map(max, sizes))


def fitting_columns(leaf: Leaf, paths: Sequence[CriticalPath], target: float) -> TimedColumns | None:
    """Columns (placement variables) of a layout that fit in memory and may be part of a step of `target`
    seconds; None if there are none."""
    columns = _stages(leaf, target) if leaf.is_plain else Columns.of_patterns(chunk_patterns(leaf))
    timed = TimedColumns.of(leaf, columns, paths).limited_to(target) if columns is not None else None
    if timed and not leaf.is_plain:  # stages fit as they are
        timed = timed.only(leaf.fits(timed.columns.blocks))
    return timed if timed and len(timed.columns.stage) else None


def first_placement(leaf: Leaf, columns: Columns) -> Placement | None:
    """Initial placement of a layout, good but not proven best; None if none is known. For patterns, that
    whose slowest stage is fastest."""
    if leaf.is_plain:
        placement, _ = good_of_numbers(leaf, math.inf)
        return placement[0] if placement else None
    seconds_J = (leaf.forward(columns.blocks) + leaf.backward(columns.blocks)).max(axis=-1)
    return Placement.of(columns.blocks[seconds_J.argmin()])


def _stages(leaf: Leaf, target: float) -> Columns | None:
    """Columns of the integer program for a layout of a plain schedule (1F1B, GPipe), which allows any number
    of blocks on a stage. There is one for each stage, block count and kind of first blocks, with the fastest
    recompute mix that fits. Where a trainer counts blocks recomputed in full, a column for every number of
    these."""
    fixed = (leaf.forward(leaf.no_blocks) + leaf.backward(leaf.no_blocks)).min()
    block = leaf.by_stage("layer_forward").min() + leaf.by_stage("layer_backward").min()
    tables, number_K = [], np.arange(leaf.sizes.stop)
    for size, start in product(leaf.sizes, range(leaf.kinds.classes)):
        if leaf.microbatches * (fixed + size * block) > target or start + size > leaf.num_layers:
            continue
        mixes = every_mix(size, leaf.allowed)
        if leaf.uses_full_counts:
            mixes = first_in_full(np.full(len(number_K), size), number_K)
        mixes_KP = leaf.kinds.in_sorts(mixes[:, None], np.array([start]))[:, 0]
        blocks_KSP = np.repeat(mixes_KP[:, None], leaf.pp, axis=1)
        useful_KS = leaf.rank_bytes(blocks_KSP) <= leaf.memory_limit
        if not leaf.uses_full_counts:
            fastest_S = np.where(useful_KS, leaf.backward(blocks_KSP), np.inf).argmin(axis=0)
            useful_KS = useful_KS & (np.arange(len(mixes))[:, None] == fastest_S)
        useful_KS[:, 0] &= start == 0  # the first stage begins the model
        stage_J, mix_J = np.nonzero(useful_KS.T)
        start_J, number_J = np.full(len(stage_J), start), mix_J * leaf.uses_full_counts
        tables.append(Columns.of_stages(leaf, stage_J, mixes_KP[mix_J], start_J, number_J))
    columns = Columns.joined(tables) if tables else None
    return columns if columns and len(columns.stage) else None


MOST_LAYOUTS = 20_000
"""Maximum number of layouts in one program."""
FIRST_SHARPENED, MOST_SHARPENED = 16, 256
"""Layouts that get columns in one round: few at first, doubling every time."""
PLACEMENT_BATCH = 4
"""Number of layouts that get placements in one round."""


class ProgramSearch(Prover):
    """Search by one integer program that chooses among all layouts and their placements. Layouts with equal
    costs count as one."""

    proved_by = "ilp"

    def __init__(self, candidates: Candidates, settings: SearchSettings, limits: Restrictions) -> None:
        """Price every layout that the independent enumerator finds, and merge layouts with equal costs.

        Raises:
            InputError: there are too many layouts, or scenarios, for a program.
            RunError: the enumerator finds a layout that the search's space lacks.
        """
        too_many = len(candidates) > MOST_LAYOUTS
        if too_many or scenarios_of(candidates.question):
            words, hint = "minimises the step on paper, without scenarios", "--risk none"
            if too_many:
                words = f"takes questions of up to {MOST_LAYOUTS:,} layouts; this one has {len(candidates):,}"
                hint = "--fix an axis, such as --fix tp=8"
            raise InputError(f"--solver ilp {words}", hint=f"{hint}, or leave out --solver")
        super().__init__(candidates, settings)
        candidates.open_all()
        names = [str(candidates.layout(row)) for row in range(len(candidates))]
        covered = enumerate_names(candidates.question, limits)
        if lacking := sorted((covered or set()).difference(names)):
            raise RunError(
                f"the search leaves out `{lacking[0]}`, which an enumerator of layouts covers: one of them is wrong",
                hint="please report the question",
            )
        layouts: dict[bytes, tuple[Leaf, list[int]]] = {}
        for row, name in enumerate(names):
            if covered is None or name in covered:
                leaf = candidates.leaf(row)
                layouts.setdefault(leaf.key, (leaf, []))[1].append(row)
        self._leaves = [leaf for leaf, _ in layouts.values()]
        order = [(len(name), name) for name in names]
        self._rows = [sorted(rows, key=order.__getitem__) for _, rows in layouts.values()]
        """Indices of the candidates that each layout represents, as their costs are equal, the shortest name
        first."""
        self._uncovered = len(names) - sum(map(len, self._rows))
        """Number of candidates that the enumerator leaves out, such as layouts whose offloaded data overflows
        hosts."""
        self._bound = np.zeros(len(self._leaves))
        """Proven lower bound of each layout, seconds; infinite where none of its placements fits."""
        self._columns: dict[int, TimedColumns | None] = {}
        """Columns (placement variables) of the layouts whose lower bound counts them; None for a layout
        without any."""
        self._proofs: set[int] = set()
        """Indices of the layouts whose best placement is proven to be the next best of all."""
        self._lower_bound = 0.0
        """Lower bound in seconds on all layouts that are not proven yet."""
        self._batch = FIRST_SHARPENED
        self.is_unfinished = True
        """Whether a layout that is not proven yet may be better than the k best."""

    def leaders(self) -> list[tuple[int, Placement]]:
        """Indices and placements of the k best candidates, and of others that are equally fast. Of layouts
        with equal costs only the layout with the shortest name is listed."""
        return [(self._rows[number][0], placement) for number, placement in super().leaders()]

    def run(self) -> None:
        """Run the search: compute relaxed bounds of all layouts, then solve and extend the program until the
        k best are proven or time runs out."""
        self._relax()
        if self._seconds_left() <= 0:
            return
        scale = float(np.min(self._bound, initial=math.inf))
        if math.isinf(scale):
            self.is_unfinished = False
            return
        program = Program(np.where(np.isinf(self._bound), scale, self._bound).tolist(), scale)
        self._sharpen(program)
        while self._seconds_left() > 0 and self.is_unfinished:
            self._round(program, available_solver())
            self._report(exactly=True)

    def _relax(self) -> None:
        """Set the lower bound of every layout to its relaxed bound (fractional placement), one pipeline shape
        at a time."""
        groups: dict[tuple[Pipeline, int, bytes], list[int]] = {}
        for number, leaf in enumerate(self._leaves):
            key = (pipeline_of(leaf), leaf.least_blocks, leaf.allowed.tobytes())
            groups.setdefault(key, []).append(number)
        for (pipeline, _, _), numbers in groups.items():
            if self._seconds_left() <= 0:
                return
            leaves = [self._leaves[number] for number in numbers]
            self._paths[pipeline] = self._paths[pipeline] or paths_through(leaves[0])
            self._bound[numbers] = relaxed_seconds(leaves, self._paths[pipeline])

    def _round(self, program: Program, solver: SolverName) -> None:
        """Solve the program once, then extend it by the columns, placements or critical path that the chosen
        layout lacks."""
        may = self._open_layouts()
        for number in np.flatnonzero(~may).tolist():
            program.y[number].upBound = 0
        if len(self._proofs) >= self.top or not may.any():
            self.is_unfinished = False
            return
        solved = program.solve(solver, self._seconds_left())
        self._lower_bound = max(self._lower_bound, solved.bound)
        is_beaten = self._lower_bound >= self._threshold()
        self.is_unfinished = not is_beaten and solved.verdict != "infeasible"
        if solved.verdict == "stopped" or not self.is_unfinished:
            return
        number = program.chosen_layout
        choice = program.choices.get(number)
        if choice is None:
            (self._place if number in self._columns else self._sharpen)(program)
            return
        placement = choice.placement()
        self._record_placement(number, placement)
        self._lower_bound = max(self._lower_bound, program.modelled_seconds(choice, placement))
        if self.best[number][1] <= self._lower_bound * (1 + TOLERANCE):
            self._proofs.add(number)
        else:  # the critical path is a row more for all layouts of the same pipeline
            path = choice.leaf.critical_path(placement.table)
            self._paths[pipeline_of(choice.leaf)].append(path)
            program.steps_are_no_shorter_than_path(choice.leaf, path)

    def _open_layouts(self, besides: Iterable[int] = ()) -> Bools:
        """Mask of the layouts outside `besides` that are unproven and may be among the k best, (N,)."""
        may: Bools = self._bound < self._threshold()
        may[[*self._proofs, *besides]] = False
        return may

    def _sharpen(self, program: Program) -> None:
        """Compute the columns of the layouts with the smallest lower bounds, and raise these bounds
        accordingly."""
        coarse = np.flatnonzero(self._open_layouts(self._columns))
        for number in coarse[np.argsort(self._bound[coarse], kind="stable")][: self._batch].tolist():
            if self._seconds_left() <= 0:
                return
            leaf, target = self._leaves[number], self.kth_seconds
            timed = self._columns[number] = fitting_columns(leaf, self._paths[pipeline_of(leaf)], target)
            if timed is None:
                self._bound[number] = max(self._bound[number], target)
            elif (first := first_placement(leaf, timed.columns)) is not None:
                self._record_placement(number, first)
                high = min(self.kth_seconds, self.best[number][1])
                self._bound[number] = timed.lower_bound(self._bound[number], high)
                program.bound(number, self._bound[number])
        self._batch = min(2 * self._batch, MOST_SHARPENED)

    def _place(self, program: Program) -> None:
        """Add placement columns to the program for the layouts with the smallest lower bounds."""
        may = self._open_layouts(program.choices)
        closed = [number for number in self._columns if may[number]]
        for number in sorted(closed, key=lambda number: self._bound[number])[:PLACEMENT_BATCH]:
            leaf, timed = self._leaves[number], self._columns[number]
            in_time = timed and timed.limited_to(self.kth_seconds)
            if in_time is None:
                self._bound[number] = max(self._bound[number], self.kth_seconds)
            else:
                program.place(number, leaf, in_time.columns, self._paths[pipeline_of(leaf)])

    def _record_placement(self, number: int, placement: Placement) -> None:
        """Price a placement on the timeline, and store it if it is the fastest of its layout so far."""
        seconds = self._leaves[number].price(placement)
        if number not in self.best or seconds < self.best[number][1]:
            self.best[number] = (placement, seconds)

    def _proven_bound(self) -> float:
        """Proven lower bound of the step over all layouts, seconds."""
        if self._proofs or not self.is_unfinished:
            return self._best_seconds()
        return min(max(self._lower_bound, float(self._bound.min(initial=math.inf))), self._best_seconds())

    def _count(self, layouts: Bools) -> int:
        """Count the layouts of a mask, with all layouts that were merged because their costs are equal."""
        return sum(len(self._rows[number]) for number in np.flatnonzero(layouts).tolist())

    def _counts(self) -> dict[str, int]:
        """Count layouts by outcome: infeasible, pruned, solved and undecided."""
        infeasible, solved = np.isinf(self._bound), np.zeros(len(self._bound), dtype=np.bool_)
        solved[[*self._proofs, *(n for n, (_, own) in self.best.items() if own <= self.kth_seconds)]] = True
        solved &= not self.is_unfinished
        undecided = self._open_layouts() & self.is_unfinished
        return {
            "infeasible": self._count(infeasible) + self._uncovered,
            "pruned": self._count(~infeasible & ~solved & ~undecided),
            "solved": self._count(solved),
            "undecided": self._count(undecided),
        }
