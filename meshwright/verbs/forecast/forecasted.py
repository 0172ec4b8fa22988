"""The answer of `forecast`: the day a job ends, where its time goes, how often to save, what would end it sooner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.estimate import Breakdown
from cost_models.expected import ExpectedStep
from cost_models.question import Question
from cost_models.reliability.forecast import Forecast, changes_of, draw_ends, draw_ends_of
from cost_models.reliability.segments import daly, first_order_ratio, young
from cost_models.units import format_count, format_days, format_seconds, grouped
from meshwright.render.expected import expected_record
from meshwright.render.goals import gpus_in_words
from meshwright.render.tables import Table, table
from meshwright.render.words import Fact, money, percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from meshwright.verbs.contract.any_run import PART_WORDS

if TYPE_CHECKING:
    from meshwright.plots.drawn import Drawing

_STEPS = 40
"""Steps that ends are drawn with."""
ENDS = ("p5", "expected", "p95")
"""Names of the ends of a job: the expected one between those that 5 and 95 % of the draws keep."""
_DAY = 86400.0
_UNITS = (("days", _DAY), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_WORTH = 2.0
"""A time is told in a unit of which it has so many."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Forecasted(AnswerBase):
    """A job and its forecast."""

    question: Question
    found: Forecast
    every: int | None = None
    """Steps between checkpoints that a person fixed; None: the best."""
    expected: ExpectedStep | None = None
    """What a step should take, with its interval; None: as long as it says."""
    price: float | None = None
    """Of a GPU-hour."""
    start: date | None = None
    assumptions: tuple[str, ...] = ()

    @cached_property
    def ends(self) -> tuple[float, float, float]:
        """Seconds until it ends, as `ENDS`: steps and failures are drawn for the outer ones."""
        if self.expected is None:
            drawn = draw_ends(self.found)
        else:
            shares = (np.arange(_STEPS) + 0.5) / _STEPS
            normal = np.array([NormalDist().inv_cdf(share) for share in shares])
            drawn = draw_ends_of(self.found, self.expected.sample_steps(normal))
        early, late = np.quantile(drawn, (0.05, 0.95)).tolist()
        return early, self.found.seconds, late

    @cached_property
    def changes(self) -> dict[str, Forecast]:
        """What would end the job sooner."""
        return changes_of(self.found, self.every)

    def plot(self) -> Drawing:
        """Draw the expected end against the interval between checkpoints, and against the GPUs."""
        from meshwright.plots.drawing import draw_forecast

        return draw_forecast(self.question, self.found)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each part of the time."""
        return [
            {"part": part, "seconds": seconds, "share": seconds / self.found.seconds}
            for part, seconds in self.found.parts.items()
        ]

    def document(self) -> dict[str, Any]:
        found, one, expected = self.found, self.found.segment, self.expected
        return {
            "assumptions": list(self.assumptions),
            "operations": found.operations.model_dump(mode="json", exclude_none=True),
            "job": {
                "model": self.question.model.name,
                "gpus": found.job.gpus,
                "steps": found.job.steps,
                "step_seconds": found.job.step_seconds,
                "step_seconds_on_paper": found.job.step_seconds if expected is None else expected.on_paper,
                "checkpoint_bytes": found.job.checkpoint_bytes,
            },
            "expected": expected_record(self.question, None, expected),
            "seconds": found.seconds,
            "deviation_seconds": found.deviation,
            "ends_seconds": dict(zip(ENDS, self.ends, strict=True)),
            "dates": None if self.start is None else dict(zip(ENDS, map(str, self._dates), strict=True)),
            "price": self.price,
            "costs": None if self.price is None else dict(zip(ENDS, self._costs, strict=True)),
            "goodput": found.goodput,
            "parts": dict(found.parts),
            "failures": found.failures,
            "seconds_between_failures": one.mtbf,
            "restart_seconds": one.restart,
            **({} if found.job.start is None else {"start": dict(found.job.start)}),
            **({} if found.resumes is None else {"resume": dict(found.resumes)}),
            "checkpoint": {
                "every_steps": found.interval,
                "work_seconds": one.work,
                "waits_seconds": one.saving,
                "flush_seconds": found.flush,
                "young_seconds": young(one.saving, one.mtbf),
                "daly_seconds": daly(one.saving, one.mtbf),
                "first_order_ratio": first_order_ratio(one),
            },
            "gpu_hours": found.gpu_hours,
            "kilowatt_hours": found.kilowatt_hours,
            "replaces_slow_hosts": found.evicts,
            "changes": [
                {"change": name, "seconds": after.seconds, "saved_seconds": found.seconds - after.seconds}
                for name, after in self.changes.items()
            ],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        found = self.found
        tokens = self.question.training.tokens
        assert tokens is not None
        header = (
            f"{self.question.model.name} on {gpus_in_words(self.question)}: {format_count(tokens)} tokens take"
            f" {grouped(found.job.steps)} steps of {format_seconds(found.job.step_seconds)}{self._on_paper};"
            f" operations {found.operations.name}"
        )
        lines: list[str | Table] = [wrapped(header), "", wrapped(self._end), "", self._parts]
        lines += ["", wrapped(self._interval), "", wrapped(self._failures)]
        if self.changes:
            lines += ["", "Would end it sooner:", self._sooner]
        return tuple(lines)

    @property
    def _on_paper(self) -> str:
        """ " (90 % interval 13.8 s to 16.1 s; 14.9 s on paper)"."""
        if self.expected is None:
            return ""
        low, high = map(format_seconds, self.expected.interval)
        return f" (90 % interval {low} to {high}; {format_seconds(self.expected.on_paper)} on paper)"

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """When training ends and, where a GPU-hour has a price, what it costs."""
        early, middle, late = map(_time, self.ends)
        ends = f"after {middle}{_within(early, late)}"
        if self.start is not None:
            first, day, last = self._dates
            ends = f"on {day}{_within(str(first), str(last))} ({middle} from {self.start})"
        if self.price is None:
            return (Fact(name="ends", value=ends),)
        low, cost, high = map(money, self._costs)
        costs = f"{cost}{_within(low, high)}, at {money(self.price)} a GPU-hour"
        return Fact(name="ends", value=ends), Fact(name="costs", value=costs)

    @property
    def _end(self) -> str:
        words = ". ".join(f"{fact.name.capitalize()} {fact.value}" for fact in self.facts)
        energy = self.found.kilowatt_hours
        words += f". Goodput {percent(self.found.goodput)}, {format_count(self.found.gpu_hours)} GPU-hours"
        return words if energy is None else f"{words}, {energy / 1e6:,.2f} GWh at the GPUs' power limit"

    @property
    def _dates(self) -> list[date]:
        """The days on which it ends: early, expected, late."""
        assert self.start is not None
        last = (date.max - self.start).days
        return [self.start + timedelta(days=min(last, int(end // _DAY))) for end in self.ends]

    @property
    def _costs(self) -> list[float]:
        """Dollars of all its GPU-hours: early, expected, late."""
        assert self.price is not None
        return [self.price * self.found.job.gpus * end / 3600 for end in self.ends]

    @property
    def _parts(self) -> Table:
        unit, length = next(
            (unit, length) for unit, length in _UNITS if self.found.seconds >= _WORTH * length or length == 1
        )
        rows = [
            (PART_WORDS[part], f"{seconds / length:,.2f}", percent(seconds / self.found.seconds))
            for part, seconds in self.found.parts.items()
            if seconds > 0
        ]
        rows.append(("expected", f"{self.found.seconds / length:,.2f}", percent(1.0)))
        return table(("where time goes", unit, "share"), rows, names=("where time goes",))

    @property
    def _interval(self) -> str:
        found, one = self.found, self.found.segment
        wait = f"GPUs wait {format_seconds(one.saving)}" if one.saving else "GPUs do not wait"
        readable = f", readable {format_seconds(one.lag)} later" if one.lag else ""
        words = f"Save every {grouped(found.interval)} steps ({_time(one.work)}): {wait}{readable}"
        longer = replace(found, interval=min(10 * found.interval, found.job.steps))
        if longer.interval > found.interval:
            words += f"; ten times as rarely ends it {_later(longer.seconds - found.seconds)}"
        return words

    @property
    def _failures(self) -> str:
        found, one = self.found, self.found.segment
        words = (
            f"{found.failures:,.0f} failures are expected, one every {_time(one.mtbf)}; each costs"
            f" {_time(one.restart)} to restart and {_time(one.lost * found.segments / max(found.failures, 1e-9))}"
            " of work done again"
        )
        if found.waiting.chance:
            words += f"; {percent(found.waiting.chance)} find no spare node and wait {_time(found.waiting.seconds)}"
        if found.resumes is not None:
            words += f"; of a restart the executor needs {start_words(found.resumes)}"
        if found.operations.slow_hosts:
            words += "; slow hosts are " + ("replaced as they are found" if found.evicts else "kept")
        return words

    @property
    def _sooner(self) -> Table:
        rows = [
            (name, _time(after.seconds), _time(self.found.seconds - after.seconds))
            for name, after in self.changes.items()
        ]
        return table(("change", "ends after", "sooner by"), rows, words=("change",))


def start_words(start: Breakdown) -> str:
    """ "5.21 s (processes 4.90 s, groups 310.0 ms)" """
    parts = ", ".join(
        f"{part.replace('_', ' ')} {format_seconds(seconds)}" for part, seconds in start.items() if seconds
    )
    return f"{_time(start.total)} ({parts})"


def _time(seconds: float) -> str:
    """ "12.3 s", "18.6 min", "3.1 h", "2 days"."""
    if seconds < 120:
        return format_seconds(seconds)
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * _DAY else format_days(seconds)


def _later(seconds: float) -> str:
    return f"{_time(seconds)} later" if seconds >= 1 else "no later"


def _within(low: str, high: str) -> str:
    """ ", 90 % interval 2027-06-07 to 2027-06-29"; empty where both ends read the same."""
    return "" if low == high else f", 90 % interval {low} to {high}"
