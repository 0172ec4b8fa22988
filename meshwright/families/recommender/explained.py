"""`explain` of a recommender's plan: what binds it, why tables are not held otherwise; and the plan proved again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cost_models.errors import InfeasibleError
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.units import format_bytes
from meshwright.families.recommender.text import (
    binding_table,
    estimate_record,
    gpus_table,
    precise,
    proof_text,
    question_record,
    question_text,
    stages_table,
    step_and_memory_text,
)
from meshwright.pages.chapters import Chapter
from meshwright.plots.pictures import pictures_of
from meshwright.records import fields_of
from meshwright.render.tables import Table
from meshwright.render.words import change, drift_note, percent, sentence_list, spaced, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.report.writing import PageRequest, pictures
from planner.recommender.advice import Alternative, BindingStage, alternative, binding_stages
from planner.recommender.plan import RecommenderPlan, ShardingPrediction
from planner.recommender.problem import limited
from planner.recommender.restrictions import covered_options
from planner.recommender.search import ShardingAnswer, best_sharding
from planner.search.search import Budget
from planner.verify import Check, check_equal
from planner.verify.recommenders import verify_sharding


class ShardingExplained(Answer):
    """Answer to why a sharding is as fast as it is."""

    plan: RecommenderPlan
    estimate: RecommenderEstimate
    stages: Sequence[BindingStage]

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each table of a GPU that ends a stage."""
        names = self.plan.model.table_names
        return [
            {
                **fields_of(stage, "stage", "gpu"),
                "stage_seconds": stage.seconds,
                "mean_seconds": stage.mean_seconds,
                "table": names[one.table],
                "held_as": str(one.placement.option),
                "seconds": one.seconds,
                "step_without_seconds": one.without_seconds,
                "otherwise": one.otherwise and str(one.otherwise.option),
                "step_otherwise_seconds": one.otherwise_seconds,
            }
            for stage in self.stages
            for one in stage.tables
        ]

    def document(self) -> dict[str, Any]:
        proof = self.plan.certificate
        return {
            "question": question_record(self.plan.question),
            "layout": self.plan.layout,
            "estimate": estimate_record(self.estimate),
            "certificate": proof and proof.model_dump(mode="json"),
            "bottleneck": self.rows,
        }

    def view(self) -> tuple[str | Table, ...]:
        question, priced, proof = self.plan.question, self.estimate, self.plan.certificate
        bottleneck = "Bottleneck: the dense network; no table ends a stage."
        if bound := [stage for stage in self.stages if stage.tables]:
            worst = max(bound, key=lambda stage: stage.seconds)
            first = worst.tables[0]
            name, without = self.plan.model.table_names[first.table], first.without_seconds
            bottleneck = (
                f"Bottleneck: {name} (`{first.placement.option}`) with {precise(first.seconds)} of"
                f" {worst.stage} on GPU {worst.gpu}; without it the step would take"
                f" {precise(without)} ({change(priced.step_seconds, without)})."
            )
        head = question_text(question, priced), step_and_memory_text(priced)
        tables = stages_table(priced), gpus_table(priced), wrapped(bottleneck)
        end = [] if proof is None else [proof_text(proof, seconds=False)]
        return spaced(*head, *tables, binding_table(question, self.stages), *end)


def explain(plan: RecommenderPlan) -> ShardingExplained:
    """Explain which tables bind a plan, stage by stage."""
    limits = plan.restrictions.read(plan.model)
    prices = limited(covered_options(plan.question, limits, plan.sharding), limits)
    priced, stages = estimate(plan.question, plan.sharding), binding_stages(prices, plan.sharding)
    return ShardingExplained(plan=plan, estimate=priced, stages=stages)


_PICTURES = (("Stages of a step", "time"), ("Memory", "memory"), ("Where tables lie", "sharding"))


def chapters(plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
    """Chapters of a page on the plan, in their order."""
    yield Chapter(title="The answer, and what binds it", blocks=explain(plan).text)
    yield from pictures(plan, request, _PICTURES, pictures_of(RecommenderPlan))


def figures(plan: RecommenderPlan) -> dict[str, Any]:
    """The plan's price as JSON has it."""
    return {"estimate": estimate_record(estimate(plan.question, plan.sharding))}


def drift(plan: RecommenderPlan, name: object) -> str:
    """A note where the plan in a file is priced otherwise today; else nothing."""
    today = estimate(plan.question, plan.sharding).step_seconds
    return drift_note(name, plan.prediction.step_seconds, today, precise)


def verify(plan: RecommenderPlan, budget: Budget) -> Iterator[Check]:
    """Compute the plan's price and its proof again, and compare."""
    if problems := plan.problems():
        yield Check("layout", False, "; ".join(problem.what for problem in problems))
        return
    prediction = ShardingPrediction.of(estimate(plan.question, plan.sharding))
    yield check_equal("prediction", plan.prediction.model_dump(), prediction.model_dump())
    if plan.certificate is None:
        return
    limits = plan.restrictions.read(plan.model)
    yield from verify_sharding(
        covered_options(plan.question, limits, plan.sharding),
        plan.sharding,
        plan.certificate,
        restrictions=limits,
        time_limit=60.0 if budget.time_limit is None else budget.time_limit,
    )


SECONDS = 10.0
"""Time limit of the search that places all other tables anew."""
_VISIBLE_SHARE = 5e-4
"""Share of the step time from which the difference of a stage is printed."""


class ShardingNotChosen(Answer):
    """Why tables are not held otherwise."""

    plan: RecommenderPlan
    layout: str
    """Sharding of tables, as the user wrote it."""
    answer: Alternative
    today: RecommenderEstimate
    otherwise: RecommenderEstimate | None
    """Price with all other tables unmoved; None if a rule refuses it."""
    replanned: ShardingAnswer | None
    """All other tables placed anew; None where that was not searched, or found nothing."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each stage, or one with the rule."""
        if self.otherwise is None:
            return [{"stage": "", "refused": self.answer.refused}]
        then, gpus = self.otherwise.stages, self.otherwise.busiest
        return [
            {"stage": name, "seconds": seconds, "otherwise_seconds": then[name], "gpu": gpu}
            for (name, seconds), gpu in zip(self.today.stages.items(), gpus, strict=True)
        ]

    def document(self) -> dict[str, Any]:
        anew = None
        if (found := self.replanned) is not None:
            proof = found.certificate
            anew = {"layout": str(found.sharding), "step_seconds": proof.value, "gap": proof.gap}
        return {
            "question": question_record(self.plan.question),
            "asked": self.layout,
            "refused": self.answer.refused or None,
            "excluded": self.answer.forbidden or None,
            "plan": estimate_record(self.today),
            "layout": self.answer.sharding and str(self.answer.sharding),
            "estimate": self.otherwise and estimate_record(self.otherwise),
            "placed_anew": anew,
        }

    def view(self) -> Iterator[str | Table]:
        return map(wrapped, self._sentences())

    def _sentences(self) -> Iterator[str]:
        names, tables, planned = self.plan.model.table_names, self.answer.tables, self.plan.sharding.tables
        if self.otherwise is None or self.answer.sharding is None:
            yield f"`{self.layout}` cannot be: {self.answer.refused}"
            return
        if all(self.answer.sharding.tables[table] == planned[table] for table in tables):
            yield f"`{self.layout}` is what the plan does"
            return
        labels = [names[table] for table in tables[:3]] + ["others"] * (len(tables) > 3)
        options = [f"`{one}`" for one in sorted({str(planned[table].option) for table in tables})]
        verb = "is" if len(tables) == 1 else "are"
        yield f"{sentence_list(labels)} {verb} held as {sentence_list(options)} in the plan"
        step, then = self.today.step_seconds, self.otherwise.step_seconds
        stages = _stages_beside(self.today, self.otherwise)
        yield f"With this change alone: step {precise(then)}, {_change(step, then)}{stages}"
        priced, fullest = self.otherwise, format_bytes(float(self.otherwise.device_bytes.max()))
        words = f"{fullest} of {format_bytes(priced.device_memory)} on GPU {priced.fullest}"
        if priced.host_bytes.max() > 0:
            words += f", {format_bytes(float(priced.host_bytes.max()))} of {format_bytes(priced.host_memory)} of a host"
        today = format_bytes(float(self.today.device_bytes.max()))
        yield f"It fits: {words}" if priced.fits else f"It does not fit: {words}; the plan has {today}"
        if self.answer.forbidden:
            yield f"It is left out: {self.answer.forbidden}"
        if self.replanned is not None:
            anew, gap = self.replanned.certificate.value, self.replanned.certificate.gap
            proof = "which is proved" if gap <= 0 else f"proved within {percent(gap)}"
            if self.otherwise.fits and anew > then:
                yield f"With the other tables re-planned: nothing faster found in {SECONDS:.0f} s"
                return
            yield f"With the other tables re-planned: step {precise(anew)}, {_change(step, anew)} ({proof})"


def _stages_beside(today: RecommenderEstimate, otherwise: RecommenderEstimate) -> str:
    """Sentence on the time that a change saves and costs by stage, and the GPU that ends the costliest stage."""
    step = today.step_seconds
    excess = {name: otherwise.stages[name] - seconds for name, seconds in today.stages.items()}
    saves = [
        f"{precise(-value)} of {name}" for name, value in excess.items() if value < -_VISIBLE_SHARE * step
    ]
    pays = [f"{precise(value)} of {name}" for name, value in excess.items() if value > _VISIBLE_SHARE * step]
    words = [f"saves {sentence_list(saves)}"] * bool(saves) + [f"pays {sentence_list(pays)}"] * bool(pays)
    if not words:
        return ""
    worst = max(excess, key=lambda name: excess[name])
    gpu = otherwise.busiest[list(excess).index(worst)]
    end = f". Bottleneck then: GPU {gpu}, which ends the {worst}" * bool(pays)
    return f": {', '.join(words)}{end}"


def _change(step: float, then: float) -> str:
    return "the same" if change(step, then) == "same" else change(step, then)


def why_not(plan: RecommenderPlan, layout: str) -> ShardingNotChosen:
    """Why tables are not held as these words say.

    Raises:
        InputError: words that are none, or places that are not there.
    """
    question, limits = plan.question, plan.restrictions.read(plan.model)
    variant = alternative(question, plan.sharding, layout, limits)
    today, otherwise, anew = estimate(question, plan.sharding), None, None
    if variant.sharding is not None:
        otherwise = estimate(question, variant.sharding)
        if plan.searched and not variant.forbidden:
            tables = set(variant.tables)
            fixed = [one for one in limits.fixed if not tables & set(range(one.first, one.last + 1))]
            limits = replace(limits, fixed=(*fixed, *variant.words))
            with suppress(InfeasibleError):
                anew = best_sharding(question, Budget(), limits, SECONDS)
    return ShardingNotChosen(
        plan=plan, layout=layout, answer=variant, today=today, otherwise=otherwise, replanned=anew
    )
