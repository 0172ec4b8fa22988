"""Steps of a job as its log tells them, and those of them that are usual: no warm-up, checkpoint or disturbance."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from cost_models.arrays import MAD_TO_DEVIATION

MOST_KEPT = 20_000
"""Lines of steps that are kept; of longer logs every second, fourth, eighth, of which the median is the same."""
_LATE = 8
"""Lines back to which another rank may tell of a step that was told before."""
_FAR = 5.0
"""Robust deviations from the median beyond which a step is none of the usual (3.5 for one look at normal data,
Iglewicz & Hoaglin 1993; here thousands are looked at)."""
_LEAST_WIDTH = 0.02
"""Share of the median within which every step is usual, however even the others are: clocks have few digits."""
WARM_UP, DISTURBED, SLOW, QUICK = "warm-up", "checkpoint or evaluation", "slow", "quick"
"""Why a line is left out."""


@dataclass(slots=True, kw_only=True)
class StepLine:
    """One line: a step, or the mean of the steps since the line before it."""

    step: int
    seconds: float
    loss: float = math.nan
    gradient_norm: float = math.nan
    attempt: int = 0
    """How often the job had started again before it."""
    disturbed: bool = False
    """Whether a checkpoint or an evaluation came since the line before."""


@dataclass(slots=True)
class Steps:
    """Lines so far, at most `MOST_KEPT` of them."""

    kept: list[StepLine] = field(default_factory=list)
    attempts: int = 0
    _every: int = 1
    told: int = 0
    """Lines that were taken."""
    _late: dict[int, StepLine] = field(default_factory=dict)

    def add(self, line: StepLine) -> None:
        """Take a line; where another rank tells of the same step again, the slower one counts."""
        if (known := self._late.get(line.step)) is not None:
            known.seconds = max(known.seconds, line.seconds)
            return
        if self._late and line.step < max(self._late):
            if line.step > min(self._late):  # a rank that lags
                return
            self.attempts += 1
            self._late.clear()
        line.attempt = self.attempts
        self._late[line.step] = line
        if len(self._late) > _LATE:
            del self._late[min(self._late)]
        if self.told % self._every == 0:
            self.kept.append(line)
        self.told += 1
        if len(self.kept) > MOST_KEPT:
            self.kept = self.kept[::2]
            self._every *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The usual steps of a log."""

    lines: Sequence[StepLine]
    left_out: Mapping[str, int]
    """Why → lines that were left out."""
    lost: float
    """Share of the time of all lines behind the warm-up that slow ones took beyond the median."""


def usual(lines: Sequence[StepLine]) -> Usual:
    """Leave out the first line of every start, and what is far from the median of the others.

    Slow lines that follow a start at once are its warm-up, too. A log of a single line is taken as it is.
    """
    starts = [list(run) for _, run in groupby(lines, key=lambda line: line.attempt)]
    settled = [line for run in starts for line in run[1:]] or list(lines)
    seconds = [line.seconds for line in settled]
    middle = statistics.median(seconds)
    spread = MAD_TO_DEVIATION * statistics.median(abs(one - middle) for one in seconds)
    width = max(_FAR * spread, _LEAST_WIDTH * middle)
    why: Counter[str] = Counter()
    kept: list[StepLine] = []
    beyond = 0.0
    for run in starts:
        warming = True
        for place, line in enumerate(run):
            slow, first = line.seconds > middle + width, place == 0 and len(lines) > len(starts)
            warming = first or (warming and slow)
            if warming and (first or place):
                why[WARM_UP] += 1
                continue
            if slow:
                why[DISTURBED if line.disturbed else SLOW] += 1
                beyond += line.seconds - middle
            elif line.seconds < middle - width:
                why[QUICK] += 1
            else:
                kept.append(line)
    whole = middle * (len(lines) - why[WARM_UP]) + beyond
    return Usual(lines=kept or settled, left_out=dict(why), lost=beyond / whole if whole > 0 else 0.0)
