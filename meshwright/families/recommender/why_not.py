"""The answer of `explain --why-not`: what tables held otherwise would cost, what binds then, or what refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cost_models.errors import InfeasibleError, RunError
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.units import format_bytes
from meshwright.families.recommender.records import estimate_record, question_record
from meshwright.families.recommender.text import precise
from meshwright.render.tables import Table
from meshwright.render.words import change, percent, sentence_list, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.recommender.advice import Alternative, alternative
from planner.recommender.plan import RecommenderPlan
from planner.recommender.restrictions import covered_options
from planner.recommender.search import ShardingAnswer, plan_sharding

SECONDS = 10.0
"""Time limit of the search that places all other tables anew."""
_SEEN = 5e-4
"""Of the step: stages that differ by less are not told."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardingNotChosen(AnswerBase):
    """Why tables are not held otherwise."""

    plan: RecommenderPlan
    asked: str
    """As the user wrote it."""
    answer: Alternative
    today: RecommenderEstimate
    otherwise: RecommenderEstimate | None
    """All other tables where they are; None where a rule refuses it."""
    replanned: ShardingAnswer | None
    """All other tables placed anew; None where that was not searched, or found nothing."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each stage, or one with the rule."""
        if self.otherwise is None:
            return [{"stage": "", "refused": self.answer.refused}]
        then = self.otherwise.stages
        return [
            {
                "stage": name,
                "seconds": seconds,
                "otherwise_seconds": then[name],
                "gpu": self.otherwise.busiest[at],
            }
            for at, (name, seconds) in enumerate(self.today.stages.items())
        ]

    def document(self) -> dict[str, Any]:
        found = self.replanned
        return {
            "question": question_record(self.plan.question),
            "asked": self.asked,
            "refused": self.answer.refused or None,
            "excluded": self.answer.forbidden or None,
            "plan": estimate_record(self.today),
            "layout": None if self.answer.sharding is None else str(self.answer.sharding),
            "estimate": None if self.otherwise is None else estimate_record(self.otherwise),
            "placed_anew": None
            if found is None
            else {
                "layout": str(found.sharding),
                "step_seconds": found.certificate.value,
                "gap": found.certificate.gap,
            },
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        return tuple(wrapped(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        names, tables = self.plan.model.table_names, self.answer.tables
        if self.otherwise is None or self.answer.sharding is None:
            yield f"`{self.asked}` cannot be: {self.answer.refused}"
            return
        if all(self.answer.sharding.tables[table] == self.plan.sharding.tables[table] for table in tables):
            yield f"`{self.asked}` is what the plan does"
            return
        shown = [names[table] for table in tables[:3]] + (["others"] if len(tables) > 3 else [])
        options = sorted({str(self.plan.sharding.tables[table].option) for table in tables})
        verb = "is" if len(tables) == 1 else "are"
        yield f"{sentence_list(shown)} {verb} held as {sentence_list([f'`{one}`' for one in options])} in the plan"
        step, then = self.today.step_seconds, self.otherwise.step_seconds
        yield f"With this change alone: step {precise(then)}, {_beside(step, then)}{self._stages()}"
        yield self._memory()
        if self.answer.forbidden:
            yield f"It is left out: {self.answer.forbidden}"
        if self.replanned is not None:
            anew, gap = self.replanned.certificate.value, self.replanned.certificate.gap
            proof = "which is proved" if gap <= 0 else f"proved within {percent(gap)}"
            if self.otherwise.fits and anew > then:
                yield f"With the other tables re-planned: nothing faster found in {SECONDS:.0f} s"
                return
            yield f"With the other tables re-planned: step {precise(anew)}, {_beside(step, anew)} ({proof})"

    def _stages(self) -> str:
        """What the change saves and pays, stage by stage, and the GPU that ends the stage that pays most."""
        assert self.otherwise is not None
        then, step = self.otherwise.stages, self.today.step_seconds
        apart = {name: then[name] - seconds for name, seconds in self.today.stages.items()}
        saves = [f"{precise(-value)} of {name}" for name, value in apart.items() if value < -_SEEN * step]
        pays = [f"{precise(value)} of {name}" for name, value in apart.items() if value > _SEEN * step]
        said = [f"saves {sentence_list(saves)}"] * bool(saves) + [f"pays {sentence_list(pays)}"] * bool(pays)
        if not said:
            return ""
        end = ""
        if pays:
            worst = max(apart, key=lambda name: apart[name])
            gpu = self.otherwise.busiest[list(apart).index(worst)]
            end = f". Bottleneck then: GPU {gpu}, which ends the {worst}"
        return f": {', '.join(said)}{end}"

    def _memory(self) -> str:
        assert self.otherwise is not None
        priced = self.otherwise
        full, limit = float(priced.device_bytes.max()), priced.device_memory
        said = f"{format_bytes(full)} of {format_bytes(limit)} on GPU {priced.fullest}"
        if priced.host_bytes.max() > 0:
            said += f", {format_bytes(float(priced.host_bytes.max()))} of {format_bytes(priced.host_memory)} of a host"
        if priced.fits:
            return f"It fits: {said}"
        return f"It does not fit: {said}; the plan has {format_bytes(float(self.today.device_bytes.max()))}"


def _beside(step: float, then: float) -> str:
    return "the same" if change(step, then) == "same" else change(step, then)


def why_not(plan: RecommenderPlan, asked: str) -> ShardingNotChosen:
    """Why tables are not held as these words say.

    Raises:
        InputError: words that are none, or places that are not there.
    """
    question, limits = plan.question, plan.restrictions.read(plan.model)
    found = alternative(question, plan.sharding, asked, limits)
    today = estimate(question, plan.sharding)
    if found.sharding is None:
        return ShardingNotChosen(
            plan=plan, asked=asked, answer=found, today=today, otherwise=None, replanned=None
        )
    otherwise, anew = estimate(question, found.sharding), None
    if plan.searched and not found.forbidden:
        own = set(found.tables)
        kept = [one for one in limits.fixed if not own & set(range(one.first, one.last + 1))]
        asked_limits = replace(limits, fixed=(*kept, *found.words))
        try:
            priced = covered_options(question, asked_limits)
            anew = plan_sharding(priced, restrictions=asked_limits, seconds=SECONDS)
        except (InfeasibleError, RunError):
            anew = None
    return ShardingNotChosen(
        plan=plan, asked=asked, answer=found, today=today, otherwise=otherwise, replanned=anew
    )
