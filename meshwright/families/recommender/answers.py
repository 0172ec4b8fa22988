"""What the verbs find of recommenders: shardings with their prices, as text, rows, JSON and plan files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from cost_models.units import format_bytes, format_count
from meshwright.families.recommender.records import estimate_record, question_record, table_rows
from meshwright.families.recommender.text import (
    gpus_table,
    memory_text,
    precise,
    question_text,
    sharding_facts,
    stages_table,
    step_text,
    where_table,
)
from meshwright.inputs.plans import any_plan_of, is_plan
from meshwright.render.tables import Table, table
from meshwright.render.words import change_words, facts_text, percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase, WithPlan
from planner.plan import AnyPlan
from planner.recommender.plan import RecommenderPlan, make_recommender_plan
from planner.recommender.restrictions import ShardingLimits
from planner.recommender.search import ENOUGH, ShardingCertificate

if TYPE_CHECKING:
    from meshwright.plots.drawn import Drawing


@dataclass(frozen=True, kw_only=True, repr=False)
class _Priced(WithPlan):
    """A question and the price of one sharding."""

    question: RecommenderQuestion
    estimate: RecommenderEstimate
    sharding: Sharding
    assumptions: tuple[str, ...] = ()

    @property
    def plan(self) -> RecommenderPlan:
        """The sharding as a plan that was given, not searched for."""
        return make_recommender_plan(self.question, self.sharding)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each table."""
        return table_rows(self.question, self.sharding)

    def document(self) -> dict[str, Any]:
        return {
            "question": question_record(self.question),
            "assumptions": list(self.assumptions),
            "layout": str(self.sharding),
            "tables": self.rows,
            "estimate": estimate_record(self.estimate),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        return (
            question_text(self.question, self.estimate),
            "",
            where_table(self.question, self.sharding),
            "",
            stages_table(self.estimate),
            "",
            gpus_table(self.estimate),
            "",
            step_text(self.question, self.estimate),
            memory_text(self.estimate),
        )

    def plot(self, kind: str = "sharding") -> Drawing:
        """A picture with its data: `time`, `memory` or `sharding`. Raises UnknownNameError for another kind."""
        from meshwright.families.recommender.pictures import draw

        return draw(kind, self.question, self.sharding)

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        return f"meshwright explain {path}"


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardingEstimated(_Priced):
    """The price of a sharding that was given."""

    @property
    def fits(self) -> bool:
        """Whether GPUs and hosts hold it."""
        return self.estimate.fits


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardingPlanned(_Priced):
    """The best sharding and its proof."""

    limits: ShardingLimits
    certificate: ShardingCertificate

    @property
    def plan(self) -> RecommenderPlan:
        """The sharding as a plan."""
        return make_recommender_plan(self.question, self.sharding, self.limits, self.certificate)

    def document(self) -> dict[str, Any]:
        certificate = self.certificate.model_dump(mode="json") | {"seconds": self.certificate.seconds}
        return super().document() | {"certificate": certificate}

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright plan` prints: how to shard, its step and memory, the proof, and what lies where."""
        facts = sharding_facts(self.question, self.estimate, self.sharding, self.certificate)
        return (
            question_text(self.question, self.estimate),
            "",
            facts_text(facts),
            "",
            where_table(self.question, self.sharding),
        )

    @property
    def more(self) -> str:
        """Nothing beside what `explain` says."""
        return ""

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """What is said below the answer."""
        if self.certificate.gap <= 0 or interrupted:
            return []
        within = f"within {100 * self.certificate.gap:.2g} % of the optimum"
        if self.certificate.gap <= ENOUGH:
            return [f"note: {within}, closer than prices of tables are known; a longer --time-limit goes on"]
        return [f"warning: proved {within}; more time may close the gap"]


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardingsCompared(AnswerBase):
    """Shardings side by side, measured against the first."""

    priced: Sequence[tuple[RecommenderQuestion, RecommenderEstimate, Sharding]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity."""
        return [
            {"quantity": name, **{str(nth): value for nth, value in enumerate(values, 1)}, "unit": unit}
            for name, values, unit in self._lines
        ]

    def document(self) -> dict[str, Any]:
        plans = [
            {
                "question": question_record(question),
                "layout": str(sharding),
                "estimate": estimate_record(priced),
            }
            for question, priced, sharding in self.priced
        ]
        return {"plans": plans}

    @property
    def text(self) -> tuple[str | Table, ...]:
        write = {"seconds": precise, "bytes": format_bytes, "share": percent, "samples/s": format_count}
        cells = [
            (
                name,
                *(write[unit](value) for value in values),
                change_words(write[unit], unit, values[0], values[-1]),
            )
            for name, values, unit in self._lines
            if any(values)
        ]
        headers = ("", *map(str, range(1, len(self.priced) + 1)), "change")
        kept = [
            wrapped(
                f"{nth}: {question.model.name} on {question.cluster.num_gpus} x {question.cluster.gpu.name}"
            )
            for nth, (question, _, _) in enumerate(self.priced, 1)
        ]
        return *kept, "", table(headers, cells, words=("",))

    @property
    def _lines(self) -> list[tuple[str, list[float], str]]:
        """Quantity, its value for each sharding, and its unit."""
        found = [priced for _, priced, _ in self.priced]
        lines = [("step", [one.step_seconds for one in found], "seconds")]
        lines += [(f"  {name}", [one.stages[name] for one in found], "seconds") for name in found[0].stages]
        lines += [
            ("most of one GPU", [one.busiest_sum_seconds for one in found], "seconds"),
            ("samples/s", [one.samples_per_second for one in found], "samples/s"),
            ("dense MFU", [one.mfu for one in found], "share"),
            ("peak memory", [float(one.device_bytes.max()) for one in found], "bytes"),
            ("host memory", [float(one.host_bytes.max()) for one in found], "bytes"),
        ]
        return lines


def compare(
    first: RecommenderPlan, others: Sequence[str | Path | AnyPlan], trainer: str | None
) -> ShardingsCompared:
    """Plans and shardings side by side, measured against the first; no trainer has rules for them."""
    from meshwright.families.recommender.asking import sharding_of

    chosen = [(first.question, first.sharding)]
    for other in others:
        if not is_plan(other):
            chosen.append((first.question, sharding_of(first.question, str(other))))
            continue
        plan = any_plan_of(other)
        if not isinstance(plan, RecommenderPlan):
            raise InputError(f"plans of two kinds cannot be compared: {plan.model_name} is no recommender")
        chosen.append((plan.question, plan.sharding))
    return ShardingsCompared(
        priced=[(question, estimate(question, sharding), sharding) for question, sharding in chosen]
    )


def reshard(first: RecommenderPlan, second: str | Path | AnyPlan, *, states: bool) -> ShardingsCompared:
    """Raises InputError: nobody has priced it."""
    raise InputError("what moves between two shardings of tables is not priced")
