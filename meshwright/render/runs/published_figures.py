"""Published ablations, MFU and days beside their predictions, as sections of the accuracy page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from cost_models.measured.validation.figures import Figures

_UNITS = {"mfu": "points of MFU", "days": "%"}
_SHOWN = {"mfu": "{:.1f} %", "days": "{:.2f} days"}
_OFF = {"mfu": "{:+.1f} points", "days": "{:+.1f} %"}


def figures_section(groups: Sequence[Figures]) -> Iterator[str]:
    """A table for each group, with what each rung of a ladder adds."""
    if not groups:
        return
    yield from ("", "## Figures of papers", "")
    yield "Ablations, MFU and days that papers state beside their tables, by profiles that have seen rows of the tables"
    yield "and none of the ablations or of the model of 530B. What is missed stands here with its residual."
    for group in groups:
        yield from ("", f"### {group.title}", "", f"{group.source}.", "")
        headers = ["", "published", "predicted", "off"]
        if group.ladder:
            headers += ["adds, published", "adds, predicted"]
        yield "| " + " | ".join(headers) + " |"
        yield "| " + " | ".join("---" for _ in headers) + " |"
        for cells in _cells(group):
            yield "| " + " | ".join(cells) + " |"
        profiles = sorted({point.profile for point in group.points})
        near = f"{group.within:g} {_UNITS[group.quantity]}"
        yield ""
        yield f"Within {near}: {group.met} of {len(group.points)}; profiles: {', '.join(profiles)}."
        if group.ladder:
            adds = [abs(found - known) <= group.within for known, found in _adds(group)]
            yield f"What a rung adds, by itself: {sum(adds)} of {len(adds)} within {near}."


def _cells(group: Figures) -> Iterator[list[str]]:
    shown, off = _SHOWN[group.quantity], _OFF[group.quantity]
    adds = [("", ""), *((f"{known:+.1f}", f"{found:+.1f}") for known, found in _adds(group))]
    for point, added in zip(group.points, adds, strict=True):
        cells = [
            point.name,
            shown.format(point.published),
            shown.format(point.predicted),
            off.format(point.off),
        ]
        yield [*cells, *added] if group.ladder else cells


def _adds(group: Figures) -> list[tuple[float, float]]:
    """What each rung but the first adds: as published, as predicted."""
    return [
        (two.published - one.published, two.predicted - one.predicted) for one, two in pairwise(group.points)
    ]
