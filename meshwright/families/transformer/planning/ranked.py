"""The answer of `plan` over several clusters: their best plans ranked, as text, frame, JSON, picture and plan file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.units import counted, format_count
from meshwright.families.transformer.planning.ranking import (
    left_out_of_ranking,
    offers_header,
    ranking_facts,
    ranking_table,
    training_of,
)
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.tables import Table
from meshwright.render.words import NOT_PROVED, facts_text
from meshwright.verbs.contract.answer import WithPlan
from planner.answers.optimum import PROVEN, OfferAnswer, Ranking
from planner.plan import Plan, make_plan
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    from meshwright.plots.drawn import Drawing


@dataclass(frozen=True, kw_only=True, repr=False)
class Ranked(WithPlan):
    """A question about several clusters, the best plan of each on each number of GPUs, and the proof."""

    ranking: Ranking
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    """What had to be assumed to read the model."""
    top: int | None = None
    """Answers in the table that `meshwright plan` prints; None: no table."""

    @property
    def best(self) -> OfferAnswer:
        """The best of all answers."""
        return self.ranking.best

    @property
    def notes(self) -> tuple[str, ...]:
        """What the answer passes over of the question, on any of the clusters."""
        asked = [offer.question for offer in self.ranking.offers]
        return tuple(dict.fromkeys(note for one in asked for note in notes_of(one, self.restrictions)))

    @property
    def plan(self) -> Plan:
        """The best as a plan, which names the clusters it was chosen from."""
        optimum = self.best.optimum
        objective = optimum.for_file(self.best.offer.question.cluster.gpus_per_node)
        assert objective is not None  # there are sizes
        offers = tuple(offer.for_file for offer in self.ranking.offers)
        return make_plan(
            optimum.question,
            optimum.result.best,
            optimum.result.certificate,
            self.restrictions,
            objective.model_copy(update={"offers": offers}),
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each cluster and number of GPUs, best first."""
        frontier = self.ranking.frontier
        return [
            {
                "cluster": one.offer.name,
                "gpus": one.optimum.question.cluster.num_gpus,
                "days": one.days,
                "cost": one.cost,
                "frontier": one in frontier,
                "objective": one.optimum.value,
                **_proof(self.ranking, one),
                **estimate_row(one.optimum.result.best),
            }
            for one in self.ranking.answers
        ]

    def plot(self) -> Drawing:
        """Days and cost of every answer, with the frontier of both.

        Raises:
            InputError: there are no prices, or no tokens.
        """
        from meshwright.plots.clusters import cost_and_days
        from meshwright.plots.drawn import Drawing

        frame = self.to_frame()
        if not frame["frontier"].any():
            raise InputError("nothing to draw: no cost is known", hint="--tokens and --price say what it is")
        question = self.best.optimum.question
        training = question.training
        subject = (
            f"{question.model.name}, {format_count(training.tokens or 0)} tokens,"
            f" {format_count(training.tokens_per_step)} a step; the best plan on each"
            " number of GPUs, which stands beside it"
        )
        return Drawing(frame=frame, figure=cost_and_days(frame, subject))

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright plan` prints: where and with what to train, the runner-up, and the ranking if asked for."""
        head = offers_header(self.ranking), "", facts_text(ranking_facts(self.ranking))
        return head if self.top is None else (*head, "", ranking_table(self.ranking, self.top))

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """What is said below the answer: what is passed over, not shown, without an answer or not proved."""
        remarks = [f"note: {note}" for note in self.notes]
        remarks += left_out_of_ranking(self.ranking)
        if self.ranking.gap > PROVEN and not interrupted:
            remarks.append(NOT_PROVED)
        return remarks

    @property
    def more(self) -> str:
        """What else there is to ask for."""
        answers = len(self.ranking.answers)
        return f"--top {answers} prints all {counted(answers, 'answer')}" if (self.top or 1) < answers else ""

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        return f"meshwright explain {path}, meshwright plot frontier {path}"

    def document(self) -> dict[str, Any]:
        ranking, frontier = self.ranking, self.ranking.frontier
        objective = ranking.objective
        return {
            "clusters": [
                {**question_record(one.question), "gpus": list(one.sizes), "price": one.price}
                for one in ranking.offers
            ],
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "plans": [
                {
                    "cluster": one.offer.name,
                    "gpus": one.optimum.question.cluster.num_gpus,
                    "days": one.days,
                    "cost": one.cost,
                    "training": None if (training := training_of(one)) is None else training.record(),
                    "frontier": one in frontier,
                    **estimate_record(one.optimum.result.best),
                    "value": one.optimum.value,
                    **_proof(ranking, one),
                    "certificate": one.optimum.result.certificate.model_dump(mode="json"),
                }
                for one in ranking.answers
            ],
            "objective": {
                "name": objective.name,
                "tokens": ranking.best.optimum.question.training.tokens,
                "deadline_seconds": objective.deadline,
                "value": ranking.best.optimum.value,
                "unit": ranking.objective.measure.unit,
                "bound": ranking.bound,
                "gap": ranking.gap,
                "left_out": [
                    {"cluster": cluster, "gpus": gpus, "why": why} for cluster, gpus, why in ranking.left_out
                ],
            },
        }


def _proof(ranking: Ranking, answer: OfferAnswer) -> dict[str, Any]:
    """How far one answer is proved: its bound, its gap, and the places it may have for both."""
    first, last = ranking.places(answer)
    optimum = answer.optimum
    return {"bound": optimum.bound, "gap": optimum.gap, "first_place": first, "last_place": last}
