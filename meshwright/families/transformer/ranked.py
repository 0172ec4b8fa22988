"""The answer of `plan` over several clusters: the best plan of each on each number of GPUs, ranked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import trust_of
from cost_models.units import counted, format_bytes, format_count, format_days, format_seconds, grouped
from meshwright.families.transformer.planned import plan_facts
from meshwright.families.transformer.question import ClustersQuestion
from meshwright.families.transformer.training import TrainingRun, training_run
from meshwright.records import fields_of
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.goals import changes_sentence, value_text
from meshwright.render.tables import Table, table_of
from meshwright.render.words import (
    NOT_PROVED,
    Fact,
    change,
    facts_text,
    money,
    percent,
    sentence_list,
    wrapped,
)
from meshwright.terminal.answers import Requested
from meshwright.verbs.contract import PlanAnswer
from planner.answers.optimum import PROVEN, OfferAnswer, Ranking
from planner.objectives import DAY
from planner.plan import Plan, make_plan
from planner.space.obstacles import notes_of

if TYPE_CHECKING:
    from meshwright.plots.drawing import Drawing

_POINTS = 2
"""Points of the frontier of cost and time that are named."""
_LIMIT = 6
"""Clusters and numbers of GPUs without an answer that are all named."""


def offers_header(ranking: Ranking) -> str:
    """Sentences on the question, and on each cluster's price and how far its figures may be believed."""
    question = ranking.best.optimum.question
    training = question.training
    names = sentence_list([offer.name for offer in ranking.offers])
    step = f"{format_count(training.tokens_per_step)} tokens/step ({training.in_words}, {training.precision})"
    lines = [wrapped(f"{question.model.name} on {names}, {step}"), changes_sentence(question)]
    for offer in ranking.offers:
        price = f", {money(offer.price)} a GPU-hour" if offer.price is not None else ""
        stack, trust = offer.question.stack.name, trust_of(offer.question)
        lines.append(wrapped(f"{offer.name}{price}: stack {stack}; hardware profile {trust}"))
    return "\n".join(filter(None, lines))


def answer_columns(ranking: Ranking, max_rows: int) -> dict[str, list[str]]:
    """Columns of the table of answers, best first; days and cost where they are known, MFU where nothing has a gap."""
    answers = ranking.answers[:max_rows]
    proved = all(answer.optimum.gap <= PROVEN for answer in ranking.answers)
    name, bests = ranking.objective.name, [answer.optimum.result.best for answer in answers]
    places = [ranking.places(answer) for answer in answers]
    columns: dict[str, list[str]] = {
        "#": [str(first) if first == last else f"{first}-{last}" for first, last in places],
        "cluster": [answer.offer.name for answer in answers],
        "GPUs": [grouped(answer.optimum.question.cluster.num_gpus) for answer in answers],
        "layout": [_degrees(answer) for answer in answers],
        "step": [format_seconds(best.step_seconds) for best in bests],
    }
    if name == "memory":
        columns["peak mem"] = [format_bytes(best.peak_bytes) for best in bests]
    elif proved:
        columns["MFU"] = [percent(best.mfu) for best in bests]
    if name == "gpu-hours":
        columns["GPU-hours"] = [value_text(answer.optimum.value, "GPU-hours") for answer in answers]
    if any(answer.days is not None for answer in answers):
        columns["days"] = ["" if answer.days is None else f"{answer.days:,.1f}" for answer in answers]
    if name != "gpu-hours" and any(answer.cost is not None for answer in answers):
        columns["cost"] = ["" if answer.cost is None else money(answer.cost) for answer in answers]
    if not proved:
        gaps = [answer.optimum.gap for answer in answers]
        columns["gap"] = [percent(gap) if gap > PROVEN else "none" for gap in gaps]
    return columns


def _degrees(answer: OfferAnswer) -> str:
    """Layout, without placement of blocks and recompute, which a plan file has."""
    words = str(answer.optimum.result.best.layout).split()
    return " ".join(word for word in words if not word.startswith(("layers=", "recompute=")))


def ranking_facts(ranking: Ranking) -> Iterator[Fact]:
    """Facts on the cluster and layout to train with, the runner-up, and the cost of less time."""
    best, *rivals = ranking.answers
    yield from plan_facts(best.optimum, cluster=best.offer.name, proof=_proof_words(ranking))
    if rivals:
        rival, measure = rivals[0], ranking.objective.measure
        open_ = "" if ranking.places(best)[1] == 1 else " so far, not separated"
        place = f"{_gpus(rival)}, {_degrees(rival)}"
        value = rival.optimum.value
        gain = change(best.optimum.value, value)
        words = f"{place}: {measure.label} {value_text(value, measure.unit)} ({gain}{open_})"
        if (training := training_of(rival)) is not None:
            words += f", {_days(rival)}{training.expected_words}"
        yield Fact(name="runner-up", value=words)
    if frontier := frontier_words(ranking):
        yield Fact(name="trade-off", value=frontier)


def _gpus(answer: OfferAnswer) -> str:
    """ "512 GPUs of dgx-h100"."""
    return f"{counted(answer.optimum.question.cluster.num_gpus, 'GPU')} of {answer.offer.name}"


def _days(answer: OfferAnswer) -> str:
    assert answer.days is not None
    return format_days(answer.days * DAY)


def training_of(answer: OfferAnswer) -> TrainingRun | None:
    """The training run of the best plan of one cluster, at its price; None where nobody says on how many tokens."""
    optimum, best = answer.optimum, answer.optimum.result.best
    priced = replace(optimum.objective, price=answer.offer.price)
    return training_run(optimum.question, priced, best, expected_step(optimum.question, best))


def frontier_words(ranking: Ranking) -> str:
    """Words on other answers that no cheaper one beats in time, the cheapest first; empty if there is no choice."""
    points = [point for point in ranking.frontier[::-1] if point is not ranking.best]
    if not points:
        return ""
    words = [f"{money(one.cost or 0.0)} in {_days(one)} on {_gpus(one)}" for one in points[:_POINTS]]
    number = len(points) - _POINTS
    remainder = f"; {number} more {'ends' if number == 1 else 'end'} sooner" if number > 0 else ""
    return f"on paper {'; '.join(words)}{remainder}"


def _proof_words(ranking: Ranking) -> str:
    """Words on how far the first answer is proved. Each cluster on each number of GPUs had a search."""
    best, measure = ranking.best, ranking.objective.measure
    layouts = sum(one.optimum.result.certificate.layouts for one in ranking.answers)
    work = f"{counted(len(ranking.answers), 'search')}, {counted(layouts, 'layout')}"
    value = f"{measure.label} {value_text(best.optimum.value, measure.unit)}"
    took = format_seconds(ranking.seconds)
    if ranking.gap <= PROVEN:
        extreme = "highest" if measure.highest else "lowest"
        return f"{value} is proved the {extreme}, in {took}: {work}"
    gaps = sorted(one.optimum.gap for one in ranking.answers)
    proved = f"proved within {percent(ranking.gap)} of the optimum"
    if gaps[0] >= 1:
        proved = "with nothing proved"
    elif ranking.gap >= 1:
        extreme = "" if gaps[0] == gaps[-1] else f"{percent(gaps[0])} to "
        proved = f"each answer within {extreme}{percent(gaps[-1])} of its own optimum"
    open_ = f"; {counted(ranking.unanswered, 'search')} without an answer" * (ranking.unanswered > 0)
    places = [ranking.places(one) for one in ranking.answers]
    if close := sum(first != last for first, last in places):
        open_ += f"; {close} of {len(places)} answers are not separated: their gaps overlap"
    return f"stopped at {value}, {proved}, after {took}: {work}{open_}"


class Ranked(Requested, PlanAnswer):
    """A question about several clusters, the best plan of each on each number of GPUs, and the proof."""

    request: ClustersQuestion
    ranking: Ranking
    top: int | None = None
    """Answers in the table that `meshwright plan` prints; None: no table."""

    @property
    def best(self) -> OfferAnswer:
        """The best of all answers."""
        return self.ranking.best

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out, on any of the clusters."""
        limits = self.request.restrictions
        notes = [note for offer in self.ranking.offers for note in notes_of(offer.question, limits)]
        return tuple(dict.fromkeys(notes))

    @property
    def plan(self) -> Plan:
        """The best as a plan, which names the clusters it was chosen from."""
        optimum = self.best.optimum
        objective = optimum.for_file(self.best.offer.question.cluster.gpus_per_node)
        assert objective is not None  # there are sizes
        offers = {"offers": tuple(offer.for_file for offer in self.ranking.offers)}
        best, proof = optimum.result.best, optimum.result.certificate
        objective = objective.model_copy(update=offers)
        return make_plan(optimum.question, best, proof, self.request.restrictions, objective)

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each cluster and number of GPUs, best first."""
        ranking = self.ranking
        return [
            _cluster_record(one)
            | {"frontier": one in ranking.frontier, "objective": one.optimum.value}
            | _proof(ranking, one)
            | estimate_row(one.optimum.result.best)
            for one in ranking.answers
        ]

    def plot(self, kind: str = "frontier", *, gpus: Sequence[int] | None = None) -> Drawing:
        """Days and cost of every answer, with the frontier of both.

        Raises:
            InputError: there are no prices, or no tokens.
        """
        from meshwright.plots.drawing import Drawing
        from meshwright.plots.frontiers import cost_and_days

        frame = self.to_frame()
        if not frame["frontier"].any():
            raise InputError("nothing to draw: no cost is known", hint="--tokens and --price say what it is")
        question = self.best.optimum.question
        total, step = question.training.tokens or 0, question.training.tokens_per_step
        tokens = f"{format_count(total)} tokens, {format_count(step)} a step"
        series = "the best plan on each number of GPUs, which stands beside it"
        subject = f"{question.model.name}, {tokens}; {series}"
        return Drawing(frame=frame, figure=cost_and_days(frame, subject))

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright plan` prints: cluster and layout to train with, the runner-up, and the ranking if asked
        for."""
        head = offers_header(self.ranking), "", facts_text(ranking_facts(self.ranking))
        if self.top is None:
            return head
        columns = answer_columns(self.ranking, self.top)
        return *head, "", table_of(columns, words=("layout",), names=("cluster",))

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """Remarks below the answer: effects left out, rows not shown, clusters without an answer or not proved."""
        remarks, left_out = [f"note: {note}" for note in self.notes], self.ranking.left_out
        if len(left_out) > _LIMIT:
            of = len(left_out) + len(self.ranking.answers)
            remarks.append(f"note: no answer on {len(left_out)} of {of} clusters and numbers of GPUs")
        else:
            places = [(f"{counted(gpus, 'GPU')} of {cluster}", why) for cluster, gpus, why in left_out]
            remarks += [f"note: no answer on {place}: {why}" for place, why in places]
        if self.ranking.gap > PROVEN and not interrupted:
            remarks.append(NOT_PROVED)
        return remarks

    @property
    def more(self) -> str:
        """Hint at further questions to ask."""
        answers = len(self.ranking.answers)
        return f"--top {answers} prints all {counted(answers, 'answer')}" if (self.top or 1) < answers else ""

    def next_commands(self, path: Path) -> str:
        """Commands to use on the plan in this file."""
        return f"meshwright explain {path}, meshwright plot frontier {path}"

    def document(self) -> dict[str, Any]:
        ranking, best, names = self.ranking, self.best.optimum, ("cluster", "gpus", "why")
        return {
            "clusters": [
                {**question_record(one.question), "gpus": list(one.sizes), "price": one.price}
                for one in ranking.offers
            ],
            "assumptions": list(self.request.assumptions),
            "notes": list(self.notes),
            "plans": [
                {
                    **_cluster_record(one),
                    "training": (training := training_of(one)) and training.record(),
                    "frontier": one in ranking.frontier,
                    **estimate_record(one.optimum.result.best),
                    "value": one.optimum.value,
                    **_proof(ranking, one),
                    "certificate": one.optimum.result.certificate.model_dump(mode="json"),
                }
                for one in ranking.answers
            ],
            "objective": {
                "name": ranking.objective.name,
                "tokens": best.question.training.tokens,
                "deadline_seconds": ranking.objective.deadline,
                "value": best.value,
                "unit": ranking.objective.measure.unit,
                **fields_of(ranking, "bound", "gap"),
                "left_out": [dict(zip(names, one, strict=True)) for one in ranking.left_out],
            },
        }


def _cluster_record(answer: OfferAnswer) -> dict[str, Any]:
    """Record of a cluster and number of GPUs, with days and cost of all training."""
    gpus = answer.optimum.question.cluster.num_gpus
    return {"cluster": answer.offer.name, "gpus": gpus, **fields_of(answer, "days", "cost")}


def _proof(ranking: Ranking, answer: OfferAnswer) -> dict[str, Any]:
    """Record of one answer's proof: its bound, its gap, and the places in the ranking that both allow."""
    places = dict(zip(("first_place", "last_place"), ranking.places(answer), strict=True))
    return fields_of(answer.optimum, "bound", "gap") | places
