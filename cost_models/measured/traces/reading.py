"""Traces of some ranks of a job → seconds of a step by part on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cost_models.axes.layout import Layout
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.measured.logs.formats import search
from cost_models.measured.traces.events import Event, TraceFile
from cost_models.measured.traces.kernels import AXES, KERNELS, OTHER, UNNAMED, Parts, patterns
from cost_models.measured.traces.splitting import KINDS, Spans, split
from cost_models.units import counted, grouped

_CPU_STEP, _GPU_STEP = "user_annotation", "gpu_user_annotation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One rank's trace."""

    rank: int
    seconds: float
    """Of the step of median length."""
    parts: dict[str, float]
    """They add up to it."""
    steps: int
    unknown: dict[str, float] = field(default_factory=dict)
    """Names of kernels of part `other` → seconds in the whole trace."""
    covered: float = 1.0
    """Share of the time of kernels whose part is known."""


def read_traces(paths: Sequence[Path], layout: Layout) -> tuple[Traced, ...]:
    """Read traces, of one rank each, in the order of their ranks.

    Raises:
        InputError: a file cannot be read, is no trace of a GPU, or is of another job than the layout's.
    """
    found: dict[int, Traced] = {}
    for path in paths:
        one = _read(path, layout, otherwise=len(found))
        if one.rank in found:
            raise InputError(
                f"`{printable(str(path))}` is a second trace of rank {one.rank}",
                hint="give one for each rank; a name with `rank3` says whose it is",
            )
        found[one.rank] = one
    return tuple(found[rank] for rank in sorted(found))


def _read(path: Path, layout: Layout, *, otherwise: int) -> Traced:
    file, name = TraceFile(path), printable(str(path))
    rank = otherwise if file.rank is None else file.rank
    if file.world_size not in (None, layout.num_gpus) or rank >= layout.num_gpus:
        said = f"rank {grouped(rank)}" + (f" of {grouped(file.world_size)}" if file.world_size else "")
        raise InputError(
            "the trace is of another job than the plan",
            problems=[Problem(name, f"it is of {said}, the plan has {counted(layout.num_gpus, 'rank')}")],
        )
    spans, parts = Spans(), Parts(layout)
    seconds = dict.fromkeys(KINDS, 0.0)
    device = None
    for event in file.events():
        if event.category in KERNELS and event.device == (event.device if device is None else device):
            device = event.device
            part = parts.part_of(event)
            seconds[part] += event.seconds
            spans.add(event.start, event.seconds, part)
        elif event.category in (_CPU_STEP, _GPU_STEP):
            _annotate(spans, event)
    if not len(spans.start):
        raise InputError(
            f"`{name}` has no kernel of a GPU",
            hint="profile with ProfilerActivity.CUDA: a trace of the host alone tells nothing of the GPU",
        )
    if layout.num_gpus > 1 and not any(seconds[kind] for kind in (*AXES, UNNAMED)):
        raise InputError(
            f"`{name}` has no communication, and the plan is of {counted(layout.num_gpus, 'rank')} ({layout.brief})",
            hint="profile whole steps, with the collectives on their own streams",
        )
    whole, split_parts, steps = split(spans)
    everything = sum(seconds.values())
    return Traced(
        rank=rank,
        seconds=whole,
        parts=split_parts,
        steps=steps,
        unknown=dict(sorted(parts.unknown.items(), key=lambda one: -one[1])),
        covered=1 - (seconds[OTHER] + seconds[UNNAMED]) / everything if everything else 0.0,
    )


def _annotate(spans: Spans, event: Event) -> None:
    """Keep where steps begin, the GPU's own annotation before the host's, and where the GPU updates."""
    begin, end = event.start, event.start + event.seconds
    if found := search(patterns().step, event.name):
        if event.category == _GPU_STEP or int(found[1]) not in spans.steps:
            spans.steps[int(found[1])] = begin, end
    elif event.category == _GPU_STEP and any(word in event.name for word in patterns().update):
        spans.updates.append((begin, end))
