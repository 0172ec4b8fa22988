"""Advice as text: what is run, a table of the changes with what each brings alone and together, and the proof."""

from __future__ import annotations

from cost_models.estimate import Estimate
from cost_models.units import format_bytes, format_seconds
from meshwright.render.plans.explanation import unplaced
from meshwright.render.plans.ranked import certificate_sentence
from meshwright.render.tables import Table, table
from meshwright.render.words import change, percent, wrapped
from planner.explaining.advice import Advice
from planner.explaining.whatif import NEXT_TO_NOTHING

HEADERS = ("change", "trouble", "alone", "gain", "together", "in all", "peak mem")


def today_sentence(advice: Advice) -> str:
    """What is run: its layout, its step, and whether it fits."""
    today = advice.today
    fits = "" if today.fits else ", which does not fit"
    size, limit = format_bytes(today.peak_bytes), format_bytes(today.memory_limit)
    return wrapped(
        f"today {unplaced(today.layout)}: {format_seconds(today.step_seconds)} a step, MFU {percent(today.mfu)},"
        f" {size} of {limit}{fits}"
    )


def advice_table(advice: Advice) -> Table:
    """The path: today, each change on top of those before it, and the best plan."""
    return table(HEADERS, advice_cells(advice), words=("change", "trouble"))


def advice_cells(advice: Advice) -> list[tuple[str, ...]]:
    """The cells of that table, as text; `alone` is today with that change only."""
    today = advice.today
    rows: list[tuple[str, ...]] = [
        ("today", "", "", "", format_seconds(today.step_seconds), "", format_bytes(today.peak_bytes))
    ]
    for one in advice.changes:
        alone = (format_seconds(one.by_itself.step_seconds), _gain(today, one.by_itself))
        rows.append((f"+ {one.words}", one.trouble, *alone, *_in_all(today, one.with_earlier)))
    if not is_reached(advice):
        words = f"+ the rest: {advice.rest}" if advice.rest else "+ its blocks placed as planned"
        rows.append((words, advice.rest_trouble, "", "", *_in_all(today, advice.best)))
    return rows


def _in_all(today: Estimate, reached: Estimate) -> tuple[str, str, str]:
    gain = _gain(today, reached)
    return format_seconds(reached.step_seconds), gain, format_bytes(reached.peak_bytes)


def _gain(today: Estimate, other: Estimate) -> str:
    """Of step time; a step that does not fit is nothing to gain on."""
    return change(today.step_seconds, other.step_seconds) if today.fits else "fits"


def is_reached(advice: Advice) -> bool:
    """Whether the changes lead to the best plan, or next to it."""
    reached = advice.reached
    return reached.fits and reached.step_seconds <= advice.best.step_seconds * (1 + NEXT_TO_NOTHING)


def conclusion(advice: Advice) -> str:
    """That all of it can run, where it ends with the proof, and what lies beyond."""
    certificate, best = advice.result.certificate, advice.best
    lines = []
    if advice.changes:
        lines.append(wrapped("Each change breaks no rule and fits, alone and with those before it."))
    elif is_reached(advice):
        lines.append(wrapped("Nothing to change: no plan is faster."))
    lines.append(wrapped(f"Best: {best.layout.brief}"))
    lines.append(certificate_sentence(certificate, best.step_seconds))
    for one in advice.other_questions:
        gain = _gain(advice.today, one.estimate)
        proven = "" if one.proven else ", not proved"
        lines.append(
            wrapped(
                f"Beyond the layout, {one.words} ({one.trouble}): {format_seconds(one.estimate.step_seconds)}"
                f" ({gain}{proven}), {unplaced(one.estimate.layout)}"
            )
        )
    return "\n".join(lines)
