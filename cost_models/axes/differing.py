"""On how many axes two layouts differ: what the error of the ratio of their predicted times grows with."""

from __future__ import annotations

from cost_models.axes.layout import AXES, Layout

COMPARED = tuple(name for name in AXES if name not in ("dp", "layers", "pools", "replicas"))
"""Axes that are chosen; the others follow: what is left of the GPUs, and where the blocks go."""
USUAL = "usual"
"""The value, in words, of an axis that a layout does not name."""


def axes_that_differ(one: Layout, other: Layout) -> tuple[str, ...]:
    """Names of the axes on which two layouts differ, in the order of the notation."""
    return tuple(name for name in COMPARED if axis_value(name, one) != axis_value(name, other))


def axis_value(name: str, layout: Layout) -> str:
    """The value of an axis as one word: "8", "interleaved", "True"; of recompute the policies that
    stages use, not for how many of their blocks."""
    if name == "recompute":
        used = {mix.partition(":")[0] for mix in layout.stage_recompute} - {"none"}
        return "+".join(sorted(used)) or "none"
    if name == "schedule" and layout.schedule == ("interleaved" if layout.vpp > 1 else "1f1b"):
        return USUAL  # what follows from vpp is no other axis
    value = getattr(layout, name)
    if (compared := AXES[name].compared) is not None:
        return compared(value)
    return USUAL if value is None else str(value)
