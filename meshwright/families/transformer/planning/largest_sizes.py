"""The answer of `plan --largest` and `--longest`: the largest size, or the longest sequence, for each thing that host
memory may hold, and the proofs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import trust_of
from cost_models.question import Question
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.ranked import question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, sentence_list, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.answers.feasibility import LargestSize
from planner.answers.optimum import PROVEN
from planner.plan import Plan, make_plan, save_plan
from planner.space.restrictions import Restrictions
from planner.space.sizes import SEQUENCE_STEP, Family


@dataclass(frozen=True, kw_only=True, repr=False)
class Largest(AnswerBase):
    """A family on a cluster, and its largest sizes."""

    family: Family
    question: Question
    """With the family's base in place of a size."""
    sizes: tuple[LargestSize, ...]
    """One for nothing in host memory, one for each residency of the stack, and one for all of them."""
    restrictions: Restrictions
    searches: int
    seconds: float
    """Of all searches together."""
    assumptions: tuple[str, ...] = ()

    @property
    def largest(self) -> LargestSize:
        """The largest of all; of equals the fastest."""

        def key(one: LargestSize) -> tuple[int, float]:
            return one.size, -math.inf if one.result is None else -one.result.best.step_seconds

        return max(self.sizes, key=key)

    @property
    def plan(self) -> Plan | None:
        """The plan of the largest; None where nothing fits."""
        best = self.largest
        if best.question is None or best.result is None:
            return None
        return make_plan(best.question, best.result.best, None, self.restrictions)

    def save(self, path: str | Path) -> None:
        """Write that plan."""
        if (plan := self.plan) is not None:
            save_plan(plan, Path(path))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said below the answer."""
        told = []
        unproved = [one for one in self.sizes if not (one.next_fails or one.size == self.family.largest_size)]
        if any(one.comparable for one in unproved):
            told.append("warning: time ran out before every size was decided; allow more with --time-limit")
        elif unproved:
            told.append(
                "note: the largest found: of blocks of several kinds, or in chunks alone, larger may fit"
            )
        gaps = [one.result.certificate.gap for one in self.sizes if one.result is not None]
        if max(gaps, default=0.0) > PROVEN:
            within = (
                f"within {percent(max(gaps))} of the fastest" if max(gaps) < 1 else "none proved the fastest"
            )
            proved = "" if unproved else "sizes are proved, "
            told.append(f"note: {proved}layouts are the best found in a few seconds each, {within}")
        return tuple(told)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each, flat."""
        return [
            self._size(one) | ({} if one.result is None else estimate_row(one.result.best))
            for one in self.sizes
        ]

    def document(self) -> dict[str, Any]:
        return {
            "question": question_record(self.question)
            | {
                "model": None,
                "family": self.family.name,
                "by": self.family.by,
                "host_memory": self.question.cluster.host_memory,
            },
            "assumptions": list(self.assumptions),
            "sizes": [
                self._size(one)
                | {
                    "next": self._shape(one.size + 1) | {"fits": False if one.next_fails else None},
                    "plan": None if one.result is None else estimate_record(one.result.best),
                }
                for one in self.sizes
            ],
            "searches": self.searches,
        }

    def _size(self, one: LargestSize) -> dict[str, Any]:
        return {"offloads": "+".join(one.offloads), **self._shape(one.size), "next_fails": one.next_fails}

    def _shape(self, size: int) -> dict[str, Any]:
        if not 0 < size <= self.family.largest_size:
            return {"parameters": 0, "num_layers": 0, "hidden_size": 0}
        model = self.family.model(size)
        return {
            "parameters": self.family.parameters(size),
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
        } | ({} if (length := self.family.sequence(size)) is None else {"sequence_length": length})

    @property
    def text(self) -> tuple[str | Table, ...]:
        asked = self.largest.question if self.family.by == "sequence" else None
        header = largest_header(self.family, asked or self.question, self.sizes)
        table = largest_table(self.family, self.sizes)
        return header, "", table, "", proofs_sentence(self.family, self.sizes, self.searches, self.seconds)


HEADERS = ("offloads", "size", "shape", "step", "tok/s", "peak mem", "host mem", "layout")
_NOTHING = "-"


def largest_header(family: Family, question: Question, sizes: Sequence[LargestSize]) -> str:
    """Two sentences: what was asked, and how far the prices may be believed."""
    known = [one.result.best.memory_limit for one in sizes if one.result is not None]
    limit = max(known, default=question.cluster.gpu.memory)
    host = question.cluster.host_memory
    subject = f"sizes of {family.name} by {family.by}"
    if family.by == "sequence":
        subject = f"longest sequence of {family.name}"
    trust = trust_of(max(question.pools, key=lambda pool: pool.hardware.median_error or 1.0))
    memory = f"{format_bytes(limit)} of memory per GPU"
    if host is not None:
        usable = format_bytes(usable_host_memory(question.cluster))
        memory += f", and {usable} of the {format_bytes(host)} of each host"
    return f"{question_header(question, trust, subject=subject)}\n{wrapped(memory)}"


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
    """ "39x4096": blocks by width; or "12,288 tokens"."""
    if (length := family.sequence(size)) is not None:
        return f"{grouped(length)} tokens"
    model = family.model(size)
    return f"{model.num_layers}x{model.hidden_size}"


def proofs_sentence(family: Family, sizes: Sequence[LargestSize], searches: int, seconds: float) -> str:
    """From which sizes on none is proved to fit; "proved" is said of these only."""
    failing = sorted({one.size + 1 for one in sizes if one.next_fails})
    work = f"{counted(searches, 'search')} in {format_seconds(seconds)}"
    if all(one.size == family.largest_size for one in sizes):
        return wrapped(f"All fit: {shape_of(family, family.largest_size)} is the largest there is; {work}")
    if not failing:
        return wrapped(f"Nothing proved: each is the largest found; {work}")
    shapes = sentence_list([shape_of(family, size) for size in failing])
    each = "each is the largest" if all(one.next_fails for one in sizes) else "those below are the largest"
    what = f"multiple of {SEQUENCE_STEP} tokens" if family.by == "sequence" else "size"
    nearest = f"next ({shapes})" if len(failing) == 1 else f"next ones ({shapes})"
    return wrapped(f"Proved: no {what} from the {nearest} on fits in any layout, so {each}; {work}")
