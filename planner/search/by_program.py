"""Solving a question by one integer program: the second proof, which shares no step with branch and bound.

The program has a binary for every layout at its relaxed bound (`planner.exact.whole`). Where the solver chooses one
without placements, those with the least bounds get theirs as columns; where it chooses a placement, the timeline prices
it and its critical path is one row more (Benders 1962). Every optimum bounds all layouts, so a placement that takes no
longer is the best, with proof; the next best is found without that layout.
"""

from __future__ import annotations

import math
import time

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.errors import InputError
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.schedules.timeline import CriticalPath
from planner.certificate import Certificate, Effort
from planner.exact.ilp.program import Choice, Program
from planner.exact.ilp.solvers import SolverName, available_solver
from planner.exact.whole.columns import Timed, balanced, fitting_columns
from planner.exact.whole.relaxed import Relaxation, paths_through
from planner.placement.leaf import TOLERANCE, Leaf, Placement, gap_of
from planner.search.branching import Progress
from planner.search.candidates import Candidates

MOST_LAYOUTS = 20_000
"""Maximum number of layouts in one program."""
FIRST_SHARPENED, MOST_SHARPENED = 16, 256
"""Layouts that get columns in one round: few at first, doubling every time."""
PLACEMENT_BATCH = 4
"""Layouts that get placements in one round."""

Pipeline = tuple[str, int, int, int]
"""Schedule, pp, vpp and microbatches, which decide the paths."""


class ProgramSearch:
    """State of one solve: bound, incumbent and proof of every layout; layouts with equal costs count as one."""

    def __init__(
        self,
        candidates: Candidates,
        top: int,
        start: float,
        time_limit: float | None,
        on_progress: Progress | None,
    ) -> None:
        _require_solvable(candidates)
        self.candidates, self.top, self._start = candidates, top, start
        self._time_limit, self._on_progress = time_limit, on_progress
        self.best: dict[int, tuple[Placement, float]] = {}
        """Layout → the best placement known and its step time."""
        self._leaves: list[Leaf] = []
        self._rows: list[list[int]] = []
        """Candidates that each layout represents: their costs are equal."""
        self._paths: dict[Pipeline, list[CriticalPath]] = {}
        self._bound: Array = np.empty(0)
        """Proven lower bound of each layout, seconds; infinite where none of its placements fits."""
        self._sharpened = np.empty(0, dtype=np.bool_)
        """Layouts whose bound takes their columns into account, (N,)."""
        self._columns: dict[int, Timed] = {}
        self._proofs: set[int] = set()
        """Layouts whose best placement is proven to be the next best of all."""
        self._lower_bound = 0.0
        """Lower bound in seconds on all layouts that are not proven yet."""
        self._batch = FIRST_SHARPENED
        self._ended = False

    abandoned = 0
    """Number of layouts left undecided with time to spare."""

    @property
    def kth_seconds(self) -> float:
        """Step seconds to beat: the k-th best known, infinite while fewer are known."""
        times = sorted(seconds for _, seconds in self.best.values())
        return times[self.top - 1] if len(times) >= self.top else math.inf

    @property
    def is_unfinished(self) -> bool:
        """Whether some layout may still be better than the k best."""
        return not self._ended

    def leaders(self) -> list[tuple[int, Placement]]:
        """Candidates and placements of the k best and of all that tie; equal layouts under their shortest name."""
        worst = self.kth_seconds * (1 + TOLERANCE)
        return [
            (self._shortest_name(number), placement)
            for number, (placement, seconds) in self.best.items()
            if seconds <= worst
        ]

    def _shortest_name(self, number: int) -> int:
        names = {row: str(self.candidates.layout(row)) for row in self._rows[number]}
        return min(names, key=lambda row: (len(names[row]), names[row]))

    def run(self, _: Effort = "ilp") -> None:
        """Relax all layouts, then let the solver choose until the k best are proven or time runs out."""
        self._gather()
        self._relax()
        if self._seconds_left() <= 0:
            return
        scale = float(np.min(self._bound, initial=math.inf))
        if math.isinf(scale):
            self._ended = True
            return
        program = Program(np.where(np.isinf(self._bound), scale, self._bound).tolist(), scale)
        self._sharpen(program)
        while self._seconds_left() > 0 and not self._ended:
            self._round(program, available_solver())
            self._report()

    def close_proof(self, solver: SolverName | None = None) -> None:
        """Do nothing: the program has decided already."""

    def _gather(self) -> None:
        """Price every layout; layouts with equal costs become one."""
        self.candidates.open_all()
        numbers: dict[bytes, int] = {}
        for row in range(len(self.candidates)):
            leaf = self.candidates.leaf(row)
            number = numbers.setdefault(leaf.key, len(self._leaves))
            if number == len(self._leaves):
                self._leaves.append(leaf)
                self._rows.append([])
            self._rows[number].append(row)

    def _relax(self) -> None:
        """Compute the relaxed bound of every layout, one pipeline at a time."""
        self._bound = np.zeros(len(self._leaves))
        self._sharpened = np.zeros(len(self._leaves), dtype=np.bool_)
        groups: dict[tuple[Pipeline, int, bytes], list[int]] = {}
        for number, leaf in enumerate(self._leaves):
            groups.setdefault((_pipeline(leaf), leaf.least_blocks, leaf.allowed.tobytes()), []).append(number)
        for (pipeline, _, _), numbers in groups.items():
            if self._seconds_left() <= 0:
                return
            leaves = [self._leaves[number] for number in numbers]
            if pipeline not in self._paths:
                self._paths[pipeline] = paths_through(leaves[0])
            self._bound[numbers] = Relaxation(leaves).seconds(self._paths[pipeline])

    def _round(self, program: Program, solver: SolverName) -> None:
        """Solve the program once, and add the columns, placements or paths that its solution lacks."""
        may = self._open_layouts()
        for number in np.flatnonzero(~may).tolist():
            program.leave_out(number)
        if len(self._proofs) >= self.top or not may.any():
            self._ended = True
            return
        solved = program.solve(solver, self._seconds_left())
        self._lower_bound = max(self._lower_bound, solved.bound)
        is_beaten = self._lower_bound >= self.kth_seconds * (1 - TOLERANCE)
        self._ended = is_beaten or solved.verdict == "infeasible"
        if solved.verdict == "stopped" or self._ended:
            return
        number = program.chosen_layout
        choice = program.choices.get(number)
        if choice is None:
            (self._place if self._sharpened[number] else self._sharpen)(program)
            return
        placement = choice.placement()
        self._record_placement(number, placement)
        self._lower_bound = max(self._lower_bound, program.modelled_seconds(choice, placement))
        if self.best[number][1] <= self._lower_bound * (1 + TOLERANCE):
            self._proofs.add(number)
        else:
            self._cut(program, choice, placement)

    def _open_layouts(self) -> Bools:
        """Layouts that are not proven and may be among the k best, (N,)."""
        may: Bools = self._bound < self.kth_seconds * (1 - TOLERANCE)
        may[list(self._proofs)] = False
        return may

    def _sharpen(self, program: Program) -> None:
        """Write the columns of the layouts with the least bounds that have none yet, and raise their bounds."""
        coarse = np.flatnonzero(self._open_layouts() & ~self._sharpened)
        for number in coarse[np.argsort(self._bound[coarse], kind="stable")][: self._batch].tolist():
            if self._seconds_left() <= 0:
                return
            leaf, target = self._leaves[number], self.kth_seconds
            paths = self._paths[_pipeline(leaf)]
            self._sharpened[number] = True
            timed = fitting_columns(leaf, paths, target)
            if timed is None:
                self._bound[number] = max(self._bound[number], target)
                continue
            self._columns[number] = timed
            if (first := balanced(leaf, timed.columns)) is None:
                continue
            self._record_placement(number, first)
            high = min(self.kth_seconds, self.best[number][1])
            self._bound[number] = timed.lower_bound(self._bound[number], high)
            program.bound(number, self._bound[number])
        self._batch = min(2 * self._batch, MOST_SHARPENED)

    def _place(self, program: Program) -> None:
        """Add the placements of the layouts with columns and the least bounds."""
        may = self._open_layouts()
        closed = [number for number in self._columns if may[number] and number not in program.choices]
        for number in sorted(closed, key=lambda layout: float(self._bound[layout]))[:PLACEMENT_BATCH]:
            leaf = self._leaves[number]
            paths = self._paths[_pipeline(leaf)]
            timed = self._columns[number].limited_to(self.kth_seconds)
            if timed is None:
                self._bound[number] = max(self._bound[number], self.kth_seconds)
                continue
            choice = program.place(number, leaf, timed.columns)
            for path in paths:
                program.step_is_no_shorter_than_path(choice, path)

    def _record_placement(self, number: int, placement: Placement) -> None:
        """Price a placement on the timeline; it becomes the incumbent if it is the layout's best."""
        seconds = self._leaves[number].price(placement)
        if number not in self.best or seconds < self.best[number][1]:
            self.best[number] = (placement, seconds)

    def _cut(self, program: Program, choice: Choice, placement: Placement) -> None:
        """Add the critical path of a placement to all layouts of its pipeline."""
        pipeline = _pipeline(choice.leaf)
        path = choice.leaf.critical_path(placement.table)
        self._paths[pipeline].append(path)
        for peer in program.choices.values():
            if _pipeline(peer.leaf) == pipeline:
                program.step_is_no_shorter_than_path(peer, path)

    def _seconds_left(self) -> float:
        return math.inf if self._time_limit is None else self._time_limit - (time.monotonic() - self._start)

    def _best_seconds(self) -> float:
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _proven_bound(self) -> float:
        """Lower bound in seconds on every layout."""
        if self._ended or self._proofs:
            return self._best_seconds()
        return min(max(self._lower_bound, float(self._bound.min(initial=math.inf))), self._best_seconds())

    def _count(self, layouts: Bools) -> int:
        return sum(len(self._rows[number]) for number in np.flatnonzero(layouts).tolist())

    def _report(self) -> None:
        if self._on_progress is not None:
            total, undecided = len(self.candidates), 0 if self._ended else self._count(self._open_layouts())
            self._on_progress(total - undecided, total, self._best_seconds(), self._proven_bound())

    def certificate(self) -> Certificate:
        """Certificate: numbers of layouts by decision, proven bound and gap."""
        infeasible = np.isinf(self._bound)
        solved = np.zeros(len(self._bound), dtype=np.bool_)
        solved[[*self._proofs, *(n for n, (_, own) in self.best.items() if own <= self.kth_seconds)]] = True
        solved &= self._ended
        undecided = self._open_layouts() & ~infeasible & (not self._ended)
        best, bound = self._best_seconds(), self._proven_bound()
        return Certificate(
            top=self.top,
            space=self.candidates.in_words(),
            layouts=len(self.candidates),
            infeasible=self._count(infeasible),
            pruned=self._count(~infeasible & ~solved & ~undecided),
            solved=self._count(solved),
            undecided=self._count(undecided),
            bound=bound,
            gap=gap_of(best, bound) if math.isfinite(best) else 1.0,
            proved_by="ilp",
            seconds=time.monotonic() - self._start,
        )


def _pipeline(leaf: Leaf) -> Pipeline:
    return leaf.schedule, leaf.pp, leaf.vpp, leaf.microbatches


def require_searched(proof: Effort) -> None:
    """Require that the search proves the answer of whole replicas in pools.

    Raises:
        InputError: the integer program should prove it.
    """
    if proof == "ilp":
        raise InputError(
            "--solver ilp knows no replicas in pools", hint="leave out --allow replicas or --solver"
        )


def _require_solvable(candidates: Candidates) -> None:
    """Require that the program takes the question. Raises InputError: too many layouts, or scenarios."""
    if (layouts := len(candidates)) > MOST_LAYOUTS:
        raise InputError(
            f"--solver ilp takes questions of up to {MOST_LAYOUTS:,} layouts; this one has {layouts:,}",
            hint="--fix an axis, such as --fix tp=8, or leave out --solver",
        )
    if scenarios_of(candidates.question):
        raise InputError(
            "--solver ilp minimises the step on paper, without scenarios",
            hint="--risk none, or leave out --solver",
        )
