"""The largest sizes of a family as text: what was asked, a row for each thing that host memory may hold, the proofs."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.estimating import trust_of
from cost_models.question import Question
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.plans.ranked import question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import sentence_list, wrapped
from planner.answers.largest import LargestSize
from planner.space.families import Family

HEADERS = ("offloads", "size", "shape", "step", "tok/s", "peak mem", "host mem", "layout")
_NOTHING = "-"


def largest_header(family: Family, question: Question, sizes: Sequence[LargestSize]) -> str:
    """Two sentences: what was asked, and how far the prices may be believed."""
    known = [one.result.best.memory_limit for one in sizes if one.result is not None]
    limit = max(known, default=question.cluster.gpu.memory)
    host = question.cluster.host_memory
    subject = f"sizes of {family.name} by {family.by}"
    trust = trust_of(max(question.by_pool, key=lambda pool: pool.hardware.median_error or 1.0))
    header = question_header(question, trust, limit, subject=subject)
    if host is None:
        return header
    usable = format_bytes(usable_host_memory(question.cluster))
    return f"{header}\n{format_bytes(host)} of memory on each host, of which blocks may fill {usable}"


def largest_table(family: Family, sizes: Sequence[LargestSize]) -> Table:
    """A row for each thing that host memory may hold; tokens/s of all GPUs together."""
    return table(HEADERS, [_cells(family, one) for one in sizes], words=("layout",), names=("offloads",))


def _cells(family: Family, one: LargestSize) -> tuple[str, ...]:
    offloads = _words(one)
    if not one.size:
        return (offloads, *[_NOTHING] * 6, "nothing fits")
    size = format_count(float(family.parameters(one.size)))
    if one.result is None:
        return (offloads, size, shape_of(family, one.size), *[_NOTHING] * 4, "not searched in time")
    best = one.result.best
    return (
        offloads,
        size,
        shape_of(family, one.size),
        format_seconds(best.step_seconds),
        grouped(round(best.tokens_per_second)),
        format_bytes(best.peak_bytes),
        format_bytes(best.host_bytes) if any(best.layout.offload) else _NOTHING,
        best.layout.brief,
    )


def _words(one: LargestSize) -> str:
    return "nothing" if not one.offloads else one.offloads[0] if len(one.offloads) == 1 else "any"


def shape_of(family: Family, size: int) -> str:
    """ "39x4096": blocks by width."""
    model = family.model(size)
    return f"{model.num_layers}x{model.hidden_size}"


def proofs_sentence(family: Family, sizes: Sequence[LargestSize], searches: int, seconds: float) -> str:
    """Which next sizes are proved not to fit; "proved" is said of these only."""
    failing = sorted({one.size + 1 for one in sizes if one.next_fails})
    work = f"{counted(searches, 'search')}, {format_seconds(seconds)}"
    if not failing:
        return wrapped(f"Nothing proved: time ran out ({work})")
    shapes = sentence_list([shape_of(family, size) for size in failing])
    each = "each is the largest" if all(one.next_fails for one in sizes) else "those below are the largest"
    sizes_fit = f"next size ({shapes}) fits" if len(failing) == 1 else f"next sizes ({shapes}) fit"
    return wrapped(f"Proved: the {sizes_fit} in no layout, so {each}; {work}")
