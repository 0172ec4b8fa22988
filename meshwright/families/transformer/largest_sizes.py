"""The answer of `plan --largest`: the largest size for each thing that host memory may hold, and the proofs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.question import Question
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.plans.largest import largest_header, largest_table, proofs_sentence
from meshwright.render.tables import Table
from meshwright.render.words import as_html, percent
from planner.answers.largest import LargestSize
from planner.answers.optimum import PROVEN
from planner.plan import Plan, make_plan
from planner.plan_files import save_plan
from planner.space.families import Family
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Largest:
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
        if not all(one.next_fails for one in self.sizes):
            told.append("warning: time ran out before every size was decided; allow more with --time-limit")
        gaps = [one.result.certificate.gap for one in self.sizes if one.result is not None]
        if max(gaps, default=0.0) > PROVEN:
            within = (
                f"within {percent(max(gaps))} of the fastest" if max(gaps) < 1 else "none proved the fastest"
            )
            told.append(f"note: sizes are proved, layouts are the best found in a few seconds each, {within}")
        return tuple(told)

    def to_frame(self) -> pd.DataFrame:
        """A row for each; seconds, bytes, shares."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each, flat."""
        return [
            self._size(one) | ({} if one.result is None else estimate_row(one.result.best))
            for one in self.sizes
        ]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
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
        if not 0 < size <= self.family.most:
            return {"parameters": 0, "num_layers": 0, "hidden_size": 0}
        model = self.family.model(size)
        return {
            "parameters": self.family.parameters(size),
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright plan --largest` prints."""
        header = largest_header(self.family, self.question, self.sizes)
        table = largest_table(self.family, self.sizes)
        return header, "", table, "", proofs_sentence(self.family, self.sizes, self.searches, self.seconds)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        return f"<pre>{as_html(repr(self))}</pre>"
