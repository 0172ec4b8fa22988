"""What the verbs find of recommenders: shardings with their prices, as text, rows, JSON and plan files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.recommender.estimating import RecommenderEstimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from cost_models.units import format_bytes, format_count
from meshwright.families.recommender.records import estimate_record, question_record, table_rows
from meshwright.families.recommender.text import (
    binding_table,
    gpus_table,
    memory_text,
    precise,
    proof_text,
    question_text,
    sharding_facts,
    stages_table,
    step_text,
    where_table,
)
from meshwright.records import JSON_SCHEMA
from meshwright.render.facts import facts_text
from meshwright.render.tables import Table, table
from meshwright.render.words import change, change_words, percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.plan_files import save_plan
from planner.recommender.alternatives import BindingStage
from planner.recommender.answer import ShardingCertificate
from planner.recommender.plan import RecommenderPlan, ShardingLimits, make_recommender_plan
from planner.recommender.search.proving import ENOUGH

if TYPE_CHECKING:
    from meshwright.plots.drawn import Drawing


@dataclass(frozen=True, kw_only=True, repr=False)
class _Priced(AnswerBase):
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

    def record(self) -> dict[str, Any]:
        return {
            "schema": JSON_SCHEMA,
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

    def save(self, path: str | Path) -> None:
        """Write it as a plan."""
        save_plan(self.plan, Path(path))

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

    def record(self) -> dict[str, Any]:
        certificate = self.certificate.model_dump(mode="json") | {"seconds": self.certificate.seconds}
        return super().record() | {"certificate": certificate}

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
class ShardingExplained(AnswerBase):
    """What binds a sharding."""

    plan: RecommenderPlan
    estimate: RecommenderEstimate
    stages: Sequence[BindingStage]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each table of a GPU that ends a stage."""
        names = self.plan.model.table_names
        return [
            {
                "stage": stage.stage,
                "gpu": stage.gpu,
                "stage_seconds": stage.seconds,
                "mean_seconds": stage.mean_seconds,
                "table": names[one.table],
                "held_as": str(one.held.option),
                "seconds": one.seconds,
                "step_without_seconds": one.without_seconds,
                "otherwise": None if one.otherwise is None else str(one.otherwise.option),
                "step_otherwise_seconds": one.otherwise_seconds,
            }
            for stage in self.stages
            for one in stage.tables
        ]

    def record(self) -> dict[str, Any]:
        told = self.plan.certificate
        return {
            "schema": JSON_SCHEMA,
            "question": question_record(self.plan.question),
            "layout": self.plan.layout,
            "estimate": estimate_record(self.estimate),
            "certificate": None if told is None else told.model_dump(mode="json"),
            "bottleneck": self.rows,
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        question, told = self.plan.question, self.plan.certificate
        return (
            question_text(question, self.estimate),
            "",
            step_text(question, self.estimate),
            memory_text(self.estimate),
            "",
            stages_table(self.estimate),
            "",
            gpus_table(self.estimate),
            "",
            wrapped(self._longest),
            "",
            binding_table(question, self.stages),
            *(() if told is None else ("", proof_text(told, seconds=False))),
        )

    @property
    def _longest(self) -> str:
        """The stage that takes most, and the table that makes it do so."""
        bound = [stage for stage in self.stages if stage.tables]
        if not bound:
            return "Bottleneck: the dense network; no table ends a stage."
        worst = max(bound, key=lambda stage: stage.seconds)
        first, names = worst.tables[0], self.plan.model.table_names
        step = self.estimate.step_seconds
        return (
            f"Bottleneck: {names[first.table]} (`{first.held.option}`) with {precise(first.seconds)} of"
            f" {worst.stage} on GPU {worst.gpu}; without it the step would take"
            f" {precise(first.without_seconds)} ({change(step, first.without_seconds)})."
        )


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

    def record(self) -> dict[str, Any]:
        plans = [
            {
                "question": question_record(question),
                "layout": str(sharding),
                "estimate": estimate_record(priced),
            }
            for question, priced, sharding in self.priced
        ]
        return {"schema": JSON_SCHEMA, "plans": plans}

    @property
    def text(self) -> tuple[str | Table, ...]:
        write = {
            "seconds": precise,
            "bytes": format_bytes,
            "share": percent,
            "samples/s": format_count,
        }
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
        lines += [
            (f"  {name}", [one.stages[name] for one in found], "seconds") for name, _ in found[0].stages
        ]
        lines += [
            ("most of one GPU", [one.busiest_sum_seconds for one in found], "seconds"),
            ("samples/s", [one.samples_per_second for one in found], "samples/s"),
            ("dense MFU", [one.mfu for one in found], "share"),
            ("peak memory", [float(one.device_bytes.max()) for one in found], "bytes"),
            ("host memory", [float(one.host_bytes.max()) for one in found], "bytes"),
        ]
        return lines
