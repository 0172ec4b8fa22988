"""Plans side by side: every part of the step and of the memory, and what one saves or pays against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cost_models.breakdown import Breakdown
from cost_models.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity of all compared estimates, in their order."""

    group: Literal["step", "time", "memory"]
    name: str
    unit: Literal["seconds", "bytes", "share", "tokens/s"]
    values: tuple[float, ...]


def compare(estimates: Sequence[Estimate]) -> tuple[Line, ...]:
    """Headline quantities, then the parts of the step, then the memory of each one's fullest rank.

    A part that is zero everywhere is left out; the others of a group still sum to its total.
    """
    lines = [
        Line(group="step", name="step", unit="seconds", values=tuple(e.step_seconds for e in estimates)),
        Line(group="step", name="MFU", unit="share", values=tuple(e.mfu for e in estimates)),
        Line(group="step", name="HFU", unit="share", values=tuple(e.hfu for e in estimates)),
        Line(
            group="step",
            name="throughput",
            unit="tokens/s",
            values=tuple(e.tokens_per_second for e in estimates),
        ),
    ]
    lines += [
        Line(group="time", name=part, unit="seconds", values=values)
        for part, values in _parts([e.time for e in estimates])
    ]
    lines.append(
        Line(group="memory", name="peak memory", unit="bytes", values=tuple(e.peak_bytes for e in estimates))
    )
    lines += [
        Line(group="memory", name=part, unit="bytes", values=values)
        for part, values in _parts([e.rank_memory[e.fullest_rank] for e in estimates])
    ]
    return tuple(lines)


def difference(before: Breakdown, after: Breakdown) -> Breakdown:
    """after − before by part, over the parts of either, largest change first; its total is the change of the totals."""
    mine, other = before.as_dict(), after.as_dict()
    changes = {part: other.get(part, 0.0) - mine.get(part, 0.0) for part in mine | other}
    return Breakdown(tuple(sorted(changes.items(), key=lambda change: -abs(change[1]))))


def _parts(breakdowns: Sequence[Breakdown]) -> list[tuple[str, tuple[float, ...]]]:
    dicts = [breakdown.as_dict() for breakdown in breakdowns]
    names = dict.fromkeys(name for parts in dicts for name in parts)
    rows = [(name, tuple(parts.get(name, 0.0) for parts in dicts)) for name in names]
    return [(name, values) for name, values in rows if any(values)]
