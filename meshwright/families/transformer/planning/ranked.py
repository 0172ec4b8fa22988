"""The answer of `plan` over several clusters: their best plans ranked, as text, frame, JSON, picture and plan file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.pipeline.estimating import trust_of
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.goals import changes_sentence, value_text
from meshwright.render.tables import Table, table
from meshwright.render.words import NOT_PROVED, as_html, money, percent, sentence_list, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.answers.offers import OfferAnswer, Ranking
from planner.answers.optimum import PROVEN
from planner.plan import Plan, make_plan
from planner.plan_files import save_plan
from planner.space.notes import notes_of
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.plots.drawn import Drawing

SHOWN = 12
"""Clusters and numbers of GPUs in the printed table unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Ranked(AnswerBase):
    """A question about several clusters, the best plan of each on each number of GPUs, and the proof."""

    ranking: Ranking
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    """What had to be assumed to read the model."""
    top: int | None = None
    """Answers in the table that `meshwright plan` prints; None: a dozen."""

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
        objective = optimum.written(self.best.offer.question.cluster.gpus_per_node)
        assert objective is not None  # there are sizes
        offers = tuple(offer.written for offer in self.ranking.offers)
        return make_plan(
            optimum.question,
            optimum.result.best,
            optimum.result.certificate,
            self.restrictions,
            objective.model_copy(update={"offers": offers}),
        )

    def save(self, path: str | Path) -> None:
        """Write the best plan."""
        save_plan(self.plan, Path(path))

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
                "gap": one.optimum.gap,
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
        table = ranking_table(self.ranking, self.top or SHOWN)
        return offers_header(self.ranking), "", table, "", proof_of_ranking(self.ranking)

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """What is said below the answer: what is passed over, not shown, without an answer or not proved."""
        shown = self.top or SHOWN
        more = len(self.ranking.answers) - shown
        remarks = [f"note: {note}" for note in self.notes]
        if more > 0:
            remarks.append(
                f"note: {counted(more, 'further answer')} not shown; --top {shown + more} shows all"
            )
        remarks += left_out_of_ranking(self.ranking)
        if self.ranking.gap > PROVEN and not interrupted:
            remarks.append(NOT_PROVED)
        return remarks

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        return f"meshwright explain {path}, meshwright plot frontier {path}"

    def record(self) -> dict[str, Any]:
        ranking, frontier = self.ranking, self.ranking.frontier
        objective = ranking.objective
        return {
            "schema": JSON_SCHEMA,
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
                    "frontier": one in frontier,
                    **estimate_record(one.optimum.result.best),
                    "value": one.optimum.value,
                    "gap": one.optimum.gap,
                    "certificate": one.optimum.result.certificate.model_dump(mode="json"),
                }
                for one in ranking.answers
            ],
            "objective": {
                "name": objective.name,
                "tokens": ranking.best.optimum.question.training.tokens,
                "deadline_seconds": objective.deadline,
                "value": ranking.best.optimum.value,
                "unit": ranking.measure.unit,
                "bound": ranking.bound,
                "gap": ranking.gap,
                "left_out": [
                    {"cluster": one.cluster, "gpus": one.gpus, "why": one.why} for one in ranking.left_out
                ],
            },
        }

    def __repr__(self) -> str:
        table = ranking_table(self.ranking, len(self.ranking.answers))
        return f"{offers_header(self.ranking)}\n\n{table}\n\n{proof_of_ranking(self.ranking)}"

    def _repr_html_(self) -> str:
        header, proof = as_html(offers_header(self.ranking)), as_html(proof_of_ranking(self.ranking))
        table = self._in_words().to_html(index=False, border=0)
        return f"<p>{header}</p>{table}<p>{proof}</p>"

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright plan`."""
        import pandas as pd

        headers, rows = answer_cells(self.ranking, len(self.ranking.answers))
        return pd.DataFrame(rows, columns=list(headers))


_FEW = 6
"""Clusters and numbers of GPUs without an answer that are all named."""


def offers_header(ranking: Ranking) -> str:
    """What was asked, and for each cluster its price and how far its figures may be believed."""
    question = ranking.best.optimum.question
    training = question.training
    names = sentence_list([offer.name for offer in ranking.offers])
    tokens = f" of {format_count(training.tokens)} tokens" if training.tokens else ""
    lines = [
        wrapped(
            f"{question.model.name} on {names}, {format_count(training.tokens_per_step)} tokens/step"
            f" ({grouped(training.global_batch)} x {grouped(training.sequence_length)}, {training.precision}){tokens}"
        ),
        *filter(None, [changes_sentence(question)]),
    ]
    for offer in ranking.offers:
        price = f", {money(offer.price)} a GPU-hour" if offer.price is not None else ""
        trust = trust_of(offer.question)
        lines.append(
            wrapped(f"{offer.name}{price}: stack {offer.question.stack.name}; hardware profile {trust}")
        )
    return "\n".join(lines)


def ranking_table(ranking: Ranking, most: int) -> Table:
    """The best plans of each cluster on each number of GPUs, best first."""
    headers, rows = answer_cells(ranking, most)
    return table(headers, rows, words=("layout",), names=("cluster",))


def answer_cells(ranking: Ranking, most: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and cells of that table, as text; days and cost where they are known."""
    shown = ranking.answers[:most]
    name = ranking.objective.name
    columns: dict[str, list[str]] = {
        "#": [str(place) for place in range(1, len(shown) + 1)],
        "cluster": [one.offer.name for one in shown],
        "GPUs": [grouped(one.optimum.question.cluster.num_gpus) for one in shown],
        "layout": [_degrees(one) for one in shown],
        "step": [format_seconds(one.optimum.result.best.step_seconds) for one in shown],
    }
    if name == "memory":
        columns["peak mem"] = [format_bytes(one.optimum.result.best.peak_bytes) for one in shown]
    else:
        columns["MFU"] = [percent(one.optimum.result.best.mfu) for one in shown]
    if name == "gpu-hours":
        columns["GPU-hours"] = [value_text(one.optimum.value, "GPU-hours") for one in shown]
    if any(one.days is not None for one in shown):
        columns["days"] = ["" if one.days is None else f"{one.days:,.1f}" for one in shown]
    if name != "gpu-hours" and any(one.cost is not None for one in shown):
        columns["cost"] = ["" if one.cost is None else money(one.cost) for one in shown]
    return tuple(columns), list(zip(*columns.values(), strict=True))


def _degrees(answer: OfferAnswer) -> str:
    """The layout without how its blocks are placed and recomputed, which a plan file has."""
    words = str(answer.optimum.result.best.layout).split()
    return " ".join(word for word in words if not word.startswith(("layers=", "recompute=")))


def frontier_sentence(ranking: Ranking) -> str:
    """ "Frontier of cost and days: $1.2 M in 20.7 on 512 GPUs of a; $1.4 M in 10.4 on 1,024 GPUs of b"; or nothing."""
    words = [
        f"{money(one.cost or 0.0)} in {one.days or 0.0:,.1f} on"
        f" {counted(one.optimum.question.cluster.num_gpus, 'GPU')} of {one.offer.name}"
        for one in reversed(ranking.frontier)
    ]
    return (
        wrapped(f"Frontier of cost and days: {'; '.join(words)}")
        if len(ranking.answers) > 1 and words
        else ""
    )


def proof_of_ranking(ranking: Ranking) -> str:
    """How far the first is proven: each cluster on each number of GPUs by a search of its own."""
    best, measure = ranking.best, ranking.measure
    layouts = sum(one.optimum.result.certificate.layouts for one in ranking.answers)
    done = f"{counted(layouts, 'layout')} of {counted(len(ranking.answers), 'question')}"
    done += f" in {format_seconds(ranking.seconds)}"
    where = f"on {counted(best.optimum.question.cluster.num_gpus, 'GPU')} of {best.offer.name}"
    value = f"{measure.label} {value_text(best.optimum.value, measure.unit)} {where}"
    sentence = frontier_sentence(ranking)
    if ranking.gap <= PROVEN:
        least = "most" if measure.highest else "least"
        own = all(one.optimum.gap <= PROVEN for one in ranking.answers)
        how = "each proved by itself" if own else "none of which can be better"
        proof = f"Proved {least}: {value}; {done}, {how}, gap 0 %"
    elif ranking.gap >= 1:
        proof = f"Stopped: {value}, nothing proven yet ({done})"
    else:
        proof = f"Stopped: {value}, proven within {percent(ranking.gap)} of optimal ({done})"
    return "\n".join(text for text in (sentence, wrapped(proof)) if text)


def left_out_of_ranking(ranking: Ranking) -> list[str]:
    """ "note: no answer on 64 GPUs of dgx-h100: at least 61.2 days": a line for each of a few, a count of more."""
    left = ranking.left_out
    if len(left) > _FEW:
        return [
            f"note: no answer on {len(left)} of {len(left) + len(ranking.answers)} clusters and numbers of GPUs"
        ]
    return [f"note: no answer on {counted(one.gpus, 'GPU')} of {one.cluster}: {one.why}" for one in left]
