"""Answers of `explain` and `advise` for recommenders: bottlenecks of a sharding, and changes that make it faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cost_models.recommender.prices import RecommenderEstimate
from cost_models.units import counted, format_bytes
from meshwright.families.advised import AnyAdvised
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
from meshwright.records import fields_of, further_records
from meshwright.render.tables import Table
from meshwright.render.words import change, percent, sentence_list, spaced, wrapped
from meshwright.terminal.answers import Answer
from planner.explain.advice import LEAST_GAIN
from planner.recommender.advice import Alternative, BindingStage, ShardingAdvice, ShardingChange
from planner.recommender.plan import RecommenderPlan, make_recommender_plan
from planner.recommender.restrictions import ShardingLimits
from planner.recommender.search import ShardingAnswer


class ShardingExplained(Answer):
    """Answer of `explain` for a recommender: the stages of a step, and the embedding tables that limit each stage."""

    plan: RecommenderPlan
    estimate: RecommenderEstimate
    stages: Sequence[BindingStage]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each embedding table on a GPU that a stage of the step waits for."""
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
        """JSON document: question, sharding, price, proof and bottlenecks."""
        proof = self.plan.certificate
        return {
            "question": question_record(self.plan.question),
            "layout": self.plan.layout,
            "estimate": estimate_record(self.estimate),
            "certificate": proof and proof.model_dump(mode="json"),
            "bottleneck": self.rows,
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: step and memory, tables of stages and GPUs, the costliest embedding table, bottlenecks and proof."""
        question, priced, proof = self.plan.question, self.estimate, self.plan.certificate
        bottleneck = "Bottleneck: the dense network; no table ends a stage."
        if bound := [stage for stage in self.stages if stage.tables]:
            worst = max(bound, key=lambda stage: stage.seconds)
            first = worst.tables[0]
            name, without = self.plan.model.table_names[first.table], first.without_seconds
            bottleneck = (
                f"Costliest table: {name} (`{first.placement.option}`) takes {precise(first.seconds)} of"
                f" {worst.stage} on GPU {worst.gpu}; without it the step would take"
                f" {precise(without)} ({change(priced.step_seconds, without)})."
            )
        head = question_text(question, priced), step_and_memory_text(priced)
        tables = stages_table(priced), gpus_table(priced), wrapped(bottleneck)
        end = [] if proof is None else [proof_text(proof, seconds=False)]
        return spaced(*head, *tables, binding_table(question, self.stages), *end)


SECONDS = 10.0
"""Time limit in seconds of the search that places all other tables anew."""
_VISIBLE_SHARE = 5e-4
"""Smallest difference of a stage that is printed, as a share of the step time."""


class ShardingNotChosen(Answer):
    """Answer of `explain --why-not` for a recommender: why some embedding tables are not sharded in another way."""

    plan: RecommenderPlan
    layout: str
    """Sharding of tables, as the user wrote it."""
    answer: Alternative
    today: RecommenderEstimate
    otherwise: RecommenderEstimate | None
    """Price with the other sharding of these tables alone; None if a rule refuses it."""
    replanned: ShardingAnswer | None = None
    """Result of a search that also places all other tables anew; None if not searched, or if nothing fits."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each stage of the step: its time in the plan and in the other sharding. If the other sharding
        breaks a rule, a single row with that rule."""
        if self.otherwise is None:
            return [{"stage": "", "refused": self.answer.refused}]
        then, gpus = self.otherwise.stages, self.otherwise.busiest
        return [
            {"stage": name, "seconds": seconds, "otherwise_seconds": then[name], "gpu": gpu}
            for (name, seconds), gpu in zip(self.today.stages.items(), gpus, strict=True)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: the other sharding, why it is refused or excluded, and prices of plan and other sharding."""
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

    def view(self) -> Iterator[str]:
        """Sentences on the other sharding: its step, its memory, and the step with all other tables placed anew."""
        names, tables, planned = self.plan.model.table_names, self.answer.tables, self.plan.sharding.tables
        if self.otherwise is None or self.answer.sharding is None:
            yield wrapped(f"`{self.layout}` cannot be: {self.answer.refused}")
            return
        if all(self.answer.sharding.tables[table] == planned[table] for table in tables):
            yield wrapped(f"`{self.layout}` is what the plan does")
            return
        labels = [names[table] for table in tables[:3]] + ["others"] * (len(tables) > 3)
        options = [f"`{one}`" for one in sorted({str(planned[table].option) for table in tables})]
        verb = "is" if len(tables) == 1 else "are"
        yield wrapped(f"{sentence_list(labels)} {verb} held as {sentence_list(options)} in the plan")
        step, then = self.today.step_seconds, self.otherwise.step_seconds
        stages = _stages_beside(self.today, self.otherwise)
        yield wrapped(f"With this change alone: step {precise(then)}, {_change(step, then)}{stages}")
        priced, fullest = self.otherwise, format_bytes(self.otherwise.peak_bytes)
        words = f"{fullest} of {format_bytes(priced.device_memory)} on GPU {priced.fullest}"
        if priced.host_bytes.max() > 0:
            words += f", {format_bytes(float(priced.host_bytes.max()))} of {format_bytes(priced.host_memory)} of a host"
        today = format_bytes(self.today.peak_bytes)
        verdict = f"It fits: {words}" if priced.fits else f"It does not fit: {words}; the plan has {today}"
        yield wrapped(verdict)
        if self.answer.forbidden:
            yield wrapped(f"It is left out: {self.answer.forbidden}")
        if self.replanned is not None:
            anew, gap = self.replanned.certificate.value, self.replanned.certificate.gap
            proof = "proved the best" if gap <= 0 else f"proved within {percent(gap)}"
            if self.otherwise.fits and anew > then:
                yield wrapped(f"With the other tables re-planned: nothing faster found in {SECONDS:.0f} s")
                return
            step_text = f"step {precise(anew)}, {_change(step, anew)} ({proof})"
            yield wrapped(f"With the other tables re-planned: {step_text}")


def _stages_beside(today: RecommenderEstimate, otherwise: RecommenderEstimate) -> str:
    """Words on the stages that become faster or slower by a change of sharding, and on the GPU that limits the most
    slowed stage."""
    visible = _VISIBLE_SHARE * today.step_seconds
    excess = {name: otherwise.stages[name] - seconds for name, seconds in today.stages.items()}
    saves = [f"{precise(-value)} of {name}" for name, value in excess.items() if value < -visible]
    pays = [f"{precise(value)} of {name}" for name, value in excess.items() if value > visible]
    words = [f"saves {sentence_list(saves)}"] * bool(saves) + [f"pays {sentence_list(pays)}"] * bool(pays)
    if not words:
        return ""
    worst = max(excess, key=lambda name: excess[name])
    gpu = otherwise.busiest[list(excess).index(worst)]
    end = f". Bottleneck then: GPU {gpu}, which ends the {worst}" * bool(pays)
    return f": {', '.join(words)}{end}"


def _change(step: float, then: float) -> str:
    """Words on the change from step time `step` to `then`: "-3.6 %" or "the same"."""
    return "the same" if change(step, then) == "same" else change(step, then)


_LIMIT = 3
"""Largest number of tables of a change that are named."""


class ShardingAdvised(AnyAdvised):
    """Answer of `advise` for a recommender: the sharding run today, the changes of tables that gain most, and the
    best sharding."""

    advice: ShardingAdvice
    limits: ShardingLimits

    @property
    def plan(self) -> RecommenderPlan:
        """Best sharding, as a plan."""
        advice, best = self.advice, self.advice.best_sharding
        proof = advice.answer.certificate if best is advice.answer.sharding else None
        return make_recommender_plan(advice.question, best, self.limits, proof)

    def path(self) -> Iterator[tuple[str, str, RecommenderEstimate | None, RecommenderEstimate]]:
        """Each change that leads to the best sharding: words, price of today's sharding with only this change (None for
        the last step to the best sharding), and price with this and all earlier changes; efforts are alike and left
        empty."""
        for one in self.advice.changes:
            yield self._words(one), "", one.by_itself, one.with_earlier
        if not self.advice.is_reached:
            yield "the rest", "", None, self.advice.best

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for today's sharding, each change, the best sharding, and each change beyond the sharding (such as
        precision): step time with this change alone, then the price with this and all earlier changes."""
        advice = self.advice
        path = [(words, "tables move", alone, priced) for words, _, alone, priced in self.path()]
        further = [(one.words, one.trouble, None, one.estimate) for one in advice.other_questions]
        return [
            {
                "change": words,
                "trouble": trouble,
                "alone_step_seconds": alone and alone.step_seconds,
                **fields_of(priced, "step_seconds", "samples_per_second", "peak_bytes", "fits"),
            }
            for words, trouble, alone, priced in (("today", "", None, advice.today), *path, *further)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: prices of today's sharding, each change and the best sharding, and the proof."""
        advice = self.advice
        changes = [
            {"change": self._words(one), "tables": list(one.tables)}
            | {"before": one.today, "after": one.proposed}
            | {"alone": estimate_record(one.by_itself), "together": estimate_record(one.with_earlier)}
            for one in advice.changes
        ]
        return {
            "question": question_record(advice.question),
            "layout": str(advice.sharding),
            "today": estimate_record(advice.today),
            "changes": changes,
            "best_layout": str(advice.best_sharding),
            "best": estimate_record(advice.best),
            "certificate": advice.certificate.model_dump(mode="json"),
            "further": further_records(advice.other_questions, estimate_record),
        }

    def view(self) -> Iterator[str | Table]:
        """Text that `meshwright advise` prints: today's sharding, the table of changes, and the proof."""
        advice, today = self.advice, self.advice.today
        yield question_text(advice.question, today)
        yield ""
        size = f"{format_bytes(today.peak_bytes)} of {format_bytes(today.device_memory)}"
        yield wrapped(
            f"today: step {precise(today.step_seconds)}, {size}{', which does not fit' * (not today.fits)}"
        )
        yield ""
        if advice.changes or not advice.is_reached:
            yield self.changes_table(precise, "+ the rest of the tables, as planned")
            yield ""
        if advice.changes:
            yield "Every change fits in memory and gains, alone and on top of those above it."
        elif advice.is_reached:
            yield "Nothing to change: no sharding is faster."
        yield proof_text(advice.certificate)
        yield from self._other_questions()

    def _other_questions(self) -> Iterator[str]:
        """Sentences on gains by changes beyond the sharding (such as precision), largest first."""
        best = self.advice.best.step_seconds
        cases = sorted(self.advice.other_questions, key=lambda case: case.estimate.step_seconds)
        for case in cases:
            then = case.estimate.step_seconds
            if then < best * (1 - LEAST_GAIN):
                gain = f"{change(best, then)} from the best" + ", not proved" * (not case.proven)
                yield wrapped(f"With {case.words} ({case.trouble}): {precise(then)} ({gain})")
        if idle := [case.words for case in cases if case.estimate.step_seconds >= best * (1 - LEAST_GAIN)]:
            yield wrapped(f"Less than {percent(LEAST_GAIN)} would come of {sentence_list(idle)}")

    def _words(self, move: ShardingChange) -> str:
        """Words on a change of sharding: "user and item: row, not whole". Tables that only change GPUs read "user:
        whole elsewhere"."""
        names, form = [self.advice.question.model.table_names[table] for table in move.tables], move.proposed
        tail = [counted(len(names) - _LIMIT, "table") + " more"] if len(names) > _LIMIT else []
        how = f"{form} elsewhere" if form == move.today else f"{form}, not {move.today}"
        return f"{sentence_list([*names[:_LIMIT], *tail])}: {how}"
