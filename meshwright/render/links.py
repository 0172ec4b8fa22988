"""Text and data frame on the levels of a cluster's network (such as node and rack), and a plan's traffic on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.communication.topology import used_levels
from cost_models.pipeline.pricing import Crossing, LinkUse
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import format_bandwidth, format_seconds, grouped
from meshwright.records import fields_of, frame_of
from meshwright.render.tables import table_of
from meshwright.render.words import percent, sentence_list, wrapped

if TYPE_CHECKING:
    import pandas as pd


def links_finding(cluster: ClusterSpec, use: Sequence[LinkUse] | None = None) -> str:
    """Sentence on the network level with the busiest links; if `use` is None, on the bandwidth per GPU of each
    level."""
    levels = used_levels(cluster)
    if use is None:
        rates = [f"{format_bandwidth(level.bandwidth)} in its {level.name}" for level in levels]
        return f"A GPU has {sentence_list(rates)}"
    busy = {level.name: sum(user.share for user in use if user.level.name == level.name) for level in levels}
    fullest = max(busy, key=lambda name: busy[name])
    if not busy[fullest]:
        return "No link is used"
    top = max((user for user in use if user.level.name == fullest), key=lambda user: user.share)
    part = top.share / busy[fullest]
    only = "all" if part == 1 else "most" if part > 0.5 else "the largest part"
    full = share_text(busy[fullest])
    by = f"{only} of it by {top.axis}"
    return f"The fullest links are those of the {fullest}: busy {full} of the step, {by}"


def crossing_sentence(crossing: Crossing | None) -> str:
    """Sentence on axes that cross the slowest level: "Between buildings (25 Gb/s per GPU): pp (busy 1.2 % of the
    step); tp and dp stay inside"; empty for None."""
    if crossing is None:
        return ""
    axes = [f"{one.axis} (busy {share_text(one.share)} of the step)" for one in crossing.uses]
    subject = f"Between {crossing.inside}s ({format_bandwidth(crossing.level.bandwidth)} per GPU)"
    if not axes:
        return wrapped(f"{subject}: no traffic")
    stay = f"; {sentence_list(list(crossing.stay))} {'stays' if len(crossing.stay) == 1 else 'stay'} inside"
    return wrapped(f"{subject}: {sentence_list(axes)}{stay if crossing.stay else ''}")


def links_table(cluster: ClusterSpec, use: Sequence[LinkUse] | None = None) -> str:
    """Table as text with a row for each network level, innermost first: bandwidth, latency, GPUs, and how busy each
    axis keeps it."""
    levels = used_levels(cluster)
    columns: dict[str, list[str]] = {
        "level": [level.name for level in levels],
        "links": [level.kind for level in levels],
        "a GPU": [format_bandwidth(level.bandwidth) for level in levels],
        "latency": [format_seconds(level.latency) for level in levels],
        "GPUs": [grouped(min(level.gpus or cluster.num_gpus, cluster.num_gpus)) for level in levels],
    }
    if use is not None:
        shares = [(one.level.name, f"{one.axis} {share_text(one.share)}") for one in use]
        busy = [[text for name, text in shares if name == level.name] for level in levels]
        columns["busy"] = [", ".join(texts) or "idle" for texts in busy]
    return str(table_of(columns, names=("level", "links"), words=("busy",)))


def share_text(share: float) -> str:
    """Share of a step as percent text; below 0.1 % "< 0.1 %"."""
    return percent(share) if share >= 0.001 else "< 0.1 %"


def links_frame(cluster: ClusterSpec, use: Sequence[LinkUse] | None = None) -> pd.DataFrame:
    """Frame with a row per network level, innermost first, and with traffic a row per level and parallel axis.
    Columns: `level`, `kind`, `gpus` of one domain, `domains`, `bandwidth` of one GPU (bytes/s), `latency` (s); with
    traffic also `axis`, `gpu_bytes` of a step, and `share` of the link's capacity."""
    rows = []
    for level in used_levels(cluster):
        gpus = min(level.gpus or cluster.num_gpus, cluster.num_gpus)
        row = {"level": level.name, "kind": level.kind, "gpus": gpus, "domains": -(-cluster.num_gpus // gpus)}
        row |= fields_of(level, "bandwidth", "latency")
        uses = [fields_of(one, *_USE) for one in use or () if one.level.name == level.name]
        idle = [] if use is None else [dict(zip(_USE, ("", 0.0, 0.0), strict=True))]
        rows += [row | one for one in uses or idle or [{}]]
    return frame_of(rows)


_USE = ("axis", "gpu_bytes", "share")
"""Columns of one axis's traffic over a network level."""
