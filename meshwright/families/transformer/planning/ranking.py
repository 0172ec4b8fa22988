"""The ranking of several clusters in words: what was asked, the best with its runner-up, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cost_models.expected import expected_step
from cost_models.pipeline.pricing import trust_of
from cost_models.units import counted, format_bytes, format_count, format_days, format_seconds, grouped
from meshwright.families.transformer.planning.facts import plan_facts
from meshwright.families.transformer.planning.training import TrainingRun, training_run
from meshwright.render.goals import changes_sentence, value_text
from meshwright.render.tables import Table, table
from meshwright.render.words import Fact, change, money, percent, sentence_list, wrapped
from planner.answers.optimum import PROVEN, OfferAnswer, Ranking
from planner.objectives import DAY

_POINTS = 2
"""Points of the frontier of cost and time that are named."""
_FEW = 6
"""Clusters and numbers of GPUs without an answer that are all named."""


def offers_header(ranking: Ranking) -> str:
    """What was asked, and for each cluster its price and how far its figures may be believed."""
    question = ranking.best.optimum.question
    training = question.training
    names = sentence_list([offer.name for offer in ranking.offers])
    lines = [
        wrapped(
            f"{question.model.name} on {names}, {format_count(training.tokens_per_step)} tokens/step"
            f" ({training.in_words}, {training.precision})"
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
    """Headers and cells of that table, as text; days and cost where they are known, MFU where nothing has a gap."""
    shown = ranking.answers[:most]
    proved = all(one.optimum.gap <= PROVEN for one in ranking.answers)
    name = ranking.objective.name
    columns: dict[str, list[str]] = {
        "#": [_span(ranking.places(one)) for one in shown],
        "cluster": [one.offer.name for one in shown],
        "GPUs": [grouped(one.optimum.question.cluster.num_gpus) for one in shown],
        "layout": [_degrees(one) for one in shown],
        "step": [format_seconds(one.optimum.result.best.step_seconds) for one in shown],
    }
    if name == "memory":
        columns["peak mem"] = [format_bytes(one.optimum.result.best.peak_bytes) for one in shown]
    elif proved:
        columns["MFU"] = [percent(one.optimum.result.best.mfu) for one in shown]
    if name == "gpu-hours":
        columns["GPU-hours"] = [value_text(one.optimum.value, "GPU-hours") for one in shown]
    if any(one.days is not None for one in shown):
        columns["days"] = ["" if one.days is None else f"{one.days:,.1f}" for one in shown]
    if name != "gpu-hours" and any(one.cost is not None for one in shown):
        columns["cost"] = ["" if one.cost is None else money(one.cost) for one in shown]
    if not proved:
        columns["gap"] = [_gap(one) for one in shown]
    return tuple(columns), list(zip(*columns.values(), strict=True))


def _span(places: tuple[int, int]) -> str:
    """ "2", or the first and the last place that an answer may have: "1-3"."""
    first, last = places
    return str(first) if first == last else f"{first}-{last}"


def _gap(answer: OfferAnswer) -> str:
    """ "12.3 %", "none" where nothing better is possible."""
    return percent(answer.optimum.gap) if answer.optimum.gap > PROVEN else "none"


def _degrees(answer: OfferAnswer) -> str:
    """The layout without how its blocks are placed and recomputed, which a plan file has."""
    words = str(answer.optimum.result.best.layout).split()
    return " ".join(word for word in words if not word.startswith(("layers=", "recompute=")))


def ranking_facts(ranking: Ranking) -> Iterator[Fact]:
    """Where and with what to train, the runner-up, and what less time would cost."""
    best, *others = ranking.answers
    proof = _proof_words(ranking)
    yield from plan_facts(best.optimum, cluster=best.offer.name, proof=proof)
    if others:
        yield Fact(name="runner-up", value=_runner_up(ranking, others[0]))
    if frontier := frontier_words(ranking):
        yield Fact(name="trade-off", value=frontier)


def _runner_up(ranking: Ranking, other: OfferAnswer) -> str:
    """ "512 GPUs of b, tp8 pp4 …: cost $1.4 M (+8.1 %), 10.4 days on paper; expected 10.9 days and $1.5 M"."""
    measure, own = ranking.objective.measure, ranking.best.optimum.value
    value = other.optimum.value
    open_ = "" if ranking.places(ranking.best)[1] == 1 else " so far, not separated"
    words = (
        f"{counted(other.optimum.question.cluster.num_gpus, 'GPU')} of {other.offer.name},"
        f" {_degrees(other)}: {measure.label} {value_text(value, measure.unit)} ({change(own, value)}{open_})"
    )
    training = training_of(other)
    return words if training is None else f"{words}, {_days(other)}{training.expected_words}"


def _days(answer: OfferAnswer) -> str:
    assert answer.days is not None
    return format_days(answer.days * DAY)


def training_of(answer: OfferAnswer) -> TrainingRun | None:
    """The training run of the best plan of one cluster, at its price; None where nobody says on how many tokens."""
    optimum, best = answer.optimum, answer.optimum.result.best
    priced = replace(optimum.objective, price=answer.offer.price)
    return training_run(optimum.question, priced, best, expected_step(optimum.question, best))


def frontier_words(ranking: Ranking) -> str:
    """What the other ends cost that nothing cheaper beats, the cheapest first; nothing where there is no choice."""
    points = [point for point in ranking.frontier[::-1] if point is not ranking.best]
    if not points:
        return ""
    words = [
        f"{money(one.cost or 0.0)} in {_days(one)} on {counted(one.optimum.question.cluster.num_gpus, 'GPU')} of"
        f" {one.offer.name}"
        for one in points[:_POINTS]
    ]
    left = len(points) - _POINTS
    more = f"; {left} more {'ends' if left == 1 else 'end'} sooner" if left > 0 else ""
    return f"on paper {'; '.join(words)}{more}"


def _proof_words(ranking: Ranking) -> str:
    """How far the first is proven: each cluster on each number of GPUs by a search of its own."""
    best, measure = ranking.best, ranking.objective.measure
    layouts = sum(one.optimum.result.certificate.layouts for one in ranking.answers)
    done = f"{counted(len(ranking.answers), 'search')}, {counted(layouts, 'layout')}"
    value = f"{measure.label} {value_text(best.optimum.value, measure.unit)}"
    took = format_seconds(ranking.seconds)
    if ranking.gap <= PROVEN:
        least = "highest" if measure.highest else "lowest"
        return f"{value} is proved the {least}, in {took}: {done}"
    gaps = sorted(one.optimum.gap for one in ranking.answers)
    proved = f"proved within {percent(ranking.gap)} of the optimum"
    if gaps[0] >= 1:
        proved = "with nothing proved"
    elif ranking.gap >= 1:
        least = "" if gaps[0] == gaps[-1] else f"{percent(gaps[0])} to "
        proved = f"each answer within {least}{percent(gaps[-1])} of its own optimum"
    open_ = f"; {counted(ranking.unanswered, 'search')} without an answer" * (ranking.unanswered > 0)
    places = [ranking.places(one) for one in ranking.answers]
    if close := sum(first != last for first, last in places):
        open_ += f"; {close} of {len(places)} answers are not separated: their gaps overlap"
    return f"stopped at {value}, {proved}, after {took}: {done}{open_}"


def left_out_of_ranking(ranking: Ranking) -> list[str]:
    """ "note: no answer on 64 GPUs of dgx-h100: at least 61.2 days": a line for each of a few, a count of more."""
    left = ranking.left_out
    if len(left) > _FEW:
        return [
            f"note: no answer on {len(left)} of {len(left) + len(ranking.answers)} clusters and numbers of GPUs"
        ]
    return [f"note: no answer on {counted(gpus, 'GPU')} of {cluster}: {why}" for cluster, gpus, why in left]
