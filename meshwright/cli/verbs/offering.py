"""`plan` over several clusters: from flags to offers, each with its GPUs and its price, and to their ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.files.loading import resolve_cluster
from cost_models.files.reading import is_file
from cost_models.question import MixedQuestion, Question
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.units import counted
from meshwright.answers.ranked import Ranked
from meshwright.api.goals import Goal, objective_of, read_prices
from meshwright.api.problems import Together
from meshwright.api.questions import Asked, questions_of
from meshwright.cli.output import Output
from meshwright.cli.progress import progress
from meshwright.render.plans.offers import left_out_of_ranking, offers_header, proof_of_ranking, ranking_table
from meshwright.render.words import sentence_list
from planner.answers.offers import Offer, rank_offers
from planner.answers.optimum import PROVEN
from planner.objectives import Objective
from planner.search.budget import Budget
from planner.space.gpu_counts import SIZES_HINT, parse_sizes
from planner.space.restrictions import Restrictions

SHOWN = 12
"""Clusters and numbers of GPUs in the table unless the user says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Several clusters, and what the answer should be best at."""

    offers: tuple[Offer, ...]
    objective: Objective
    """Without a price: each offer has its own."""
    precisions: tuple[Precision, ...] = ()
    assumptions: tuple[str, ...] = ()


def clusters_in(text: str) -> tuple[str, ...]:
    """The names between commas; the name of a file may have commas of its own."""
    return (text,) if is_file(text) else tuple(name.strip() for name in text.split(","))


def offered(asked: Asked, gpus: str | None, goal: Goal) -> Offered:
    """The question on each cluster that `asked` names between commas, prices in the same order.

    Raises:
        InputError: a name, a price or a number of GPUs that is wrong; everything that is, at once.
    """
    names = clusters_in(asked.cluster)
    together = Together()
    clusters = [together.read(partial(resolve_cluster, name)) for name in names]
    together.read(partial(_require_distinct, names))
    prices = together.read(lambda: prices_of(goal, len(names)))
    aim = together.read(lambda: aim_of(goal))
    known = next((name for name, cluster in zip(names, clusters, strict=True) if cluster is not None), None)
    if known is not None:  # what is wrong with the rest of the question is told once
        together.read(lambda: questions_of(replace(asked, cluster=known)))
    together.require()
    assert aim is not None
    assert prices is not None
    found = [questions_of(replace(asked, cluster=name)) for name in names]
    first, assumptions = found[0]
    return Offered(
        offers=make_offers([questions[0] for questions, _ in found], names, gpus, aim, prices),
        objective=aim[0],
        precisions=tuple(one.training.precision for one in first) if len(first) > 1 else (),
        assumptions=assumptions,
    )


def make_offers(
    questions: Sequence[Question],
    clusters: Sequence[str | ClusterSpec],
    gpus: str | None,
    aim: tuple[Objective, float | None],
    prices: Sequence[float | None],
) -> tuple[Offer, ...]:
    """One question for each cluster, as it was named, with what the best is best at and the tokens to train on.

    Raises:
        InputError: different software stacks, a number of GPUs that cannot be, or something that is missing.
    """
    _require_alike(questions)
    objective, tokens = aim
    together = Together()
    offers = []
    for question, cluster, price in zip(questions, clusters, prices, strict=True):
        training = question.training.model_copy(update={"tokens": tokens or question.training.tokens})
        asked = replace(question, training=training)
        sizes = together.read(partial(_sizes, cluster, gpus, asked, objective))
        offers.append(Offer(question=asked, sizes=sizes or (), price=price))
    together.require()
    _require_complete(objective, offers)
    return tuple(offers)


def aim_of(goal: Goal) -> tuple[Objective, float | None]:
    """The objective, each offer having its own price, and the tokens to train on. Raises InputError."""
    name = goal.objective or ("cost" if goal.price is not None else "time")
    return objective_of(replace(goal, objective=name, price=None))


def _require_distinct(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"`{twice[0]}` is named twice", hint="each cluster has one price")


def _require_alike(questions: Sequence[Question]) -> None:
    for question in questions:
        if isinstance(question, MixedQuestion):
            raise InputError(
                f"`{question.cluster.name}` has several pools, and its number of GPUs is no choice",
                hint="plan for it alone",
            )
    names = sorted({question.stack.name for question in questions})
    if len(names) > 1:
        raise InputError(
            f"the clusters would run different software stacks: {sentence_list(names)}",
            hint="name one with --stack",
        )


def prices_of(goal: Goal, clusters: int) -> tuple[float | None, ...]:
    """One for each cluster, or none for any."""
    try:
        prices = read_prices(goal.price)
    except ValueError as error:
        raise InputError("the objective cannot be read", problems=[Problem("--price", str(error))]) from None
    if prices and len(prices) != clusters:
        raise InputError(
            f"--price names {len(prices)} for {clusters} clusters",
            hint="write one for each, in their order, like --price 2.5,3.5",
        )
    return prices or (None,) * clusters


def _sizes(
    cluster: str | ClusterSpec, gpus: str | None, question: Question, objective: Objective
) -> tuple[int, ...]:
    """The numbers of GPUs that this cluster can have; others may have others."""
    per_node = question.cluster.gpus_per_node
    if gpus is None:
        return (question.cluster.num_gpus,)
    single = gpus.strip().isdecimal()
    text = f"{min(per_node, int(gpus))}..{gpus}" if single and objective.name == "gpus" else gpus
    sizes = [size for size in parse_sizes(text, question, some=True) if _has(cluster, size)]
    if not sizes:
        raise InputError(
            f"`{question.cluster.name}` has none of the numbers of GPUs asked for; a node has {per_node}",
            hint=SIZES_HINT,
        )
    return tuple(sizes)


def _has(cluster: str | ClusterSpec, gpus: int) -> bool:
    """Whether the cluster goes so far: a file has the nodes that it states."""
    try:
        return isinstance(cluster, ClusterSpec) or bool(resolve_cluster(cluster, gpus))
    except InputError:
        return False


def _require_complete(objective: Objective, offers: Sequence[Offer]) -> None:
    """Nothing where every cluster has what the objective needs. Raises InputError."""
    if objective.name == "cost" and offers[0].price is None:
        raise InputError(
            "`--objective cost` cannot be answered",
            problems=[Problem("--price", "missing: what a GPU of each cluster costs an hour")],
            hint="one for each, in the order of the clusters, like --price 2.5,3.5",
        )
    price = offers[0].price if objective.name == "cost" else None
    replace(objective, price=price).require_complete(offers[0].question)


def answer_offers(
    what: Offered,
    restrictions: Restrictions,
    *,
    top: int | None,
    time_limit: float,
    out: Path | None,
    output: Output,
) -> None:
    """Search, rank, print, write.

    Raises:
        InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
    """
    with progress(output) as reporter:
        budget = Budget(
            time_limit=time_limit,
            on_progress=reporter.searching,
            on_status=reporter.doing,
            keep_on_interrupt=True,
        )
        ranking = rank_offers(
            what.offers,
            what.objective,
            precisions=what.precisions,
            restrictions=restrictions,
            budget=budget,
        )
    ranked = Ranked(ranking=ranking, restrictions=restrictions, assumptions=what.assumptions)
    shown = top or SHOWN
    output.answer(
        ranked.record(),
        ranked.rows,
        offers_header(ranking),
        "",
        ranking_table(ranking, shown),
        "",
        proof_of_ranking(ranking),
        files=[] if out is None else [lambda: ranked.save(out)],
    )
    more = len(ranking.answers) - shown
    notes = [f"note: {note}" for note in ranked.notes]
    notes += [f"note: {counted(more, 'further answer')} not shown; --top {shown + more} shows all"] * (
        more > 0
    )
    notes += left_out_of_ranking(ranking)
    if ranking.gap > PROVEN and not budget.interrupted:
        notes.append("warning: optimality is not proved; allow more time to close the gap")
    for note in notes:
        output.note(note)
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}, meshwright plot frontier {out}")
    if budget.interrupted:
        output.end_interrupted("this is the best so far, and not proved")
