"""Several clusters ranked, as text: what was asked, the table, the frontier, and the proof."""

from __future__ import annotations

from cost_models.pipeline.estimating import trust_of
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from meshwright.render.plans.goals import value_text
from meshwright.render.plans.mathematics import changes_sentence
from meshwright.render.tables import Table, table
from meshwright.render.words import money, percent, sentence_list, wrapped
from planner.answers.offers import OfferAnswer, Ranking
from planner.answers.optimum import PROVEN

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
