"""`plan` over several clusters: the question on each, and their best plans ranked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError, Problem
from cost_models.expected import expected_step
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import trust_of
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.units import counted, format_bytes, format_count, format_days, format_seconds, grouped
from meshwright.families.transformer.planned import plan_facts
from meshwright.families.transformer.training import TrainingRun, training_run
from meshwright.inputs.goals import objective_of, read_prices, tokens_of
from meshwright.inputs.options import Goal
from meshwright.inputs.problems import Problems, read_flag
from meshwright.inputs.questions import cluster_of, in_words, questions_of
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
from meshwright.terminal.answers import PlanAnswer
from meshwright.verbs.plan import PlanOptions
from planner.answers.optimum import PROVEN, Offer, OfferAnswer, Ranking, offers_of, rank_offers
from planner.objectives import DAY, Objective, Proof
from planner.plan import Plan, make_plan
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions
from planner.space.sizes import SYNTAX, parse_sizes

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


def ranking_table(ranking: Ranking, max_rows: int) -> Table:
    """The best plans of each cluster on each number of GPUs, best first."""
    return table_of(answer_columns(ranking, max_rows), words=("layout",), names=("cluster",))


def answer_columns(ranking: Ranking, max_rows: int) -> dict[str, list[str]]:
    """Columns of that table; days and cost where they are known, MFU where nothing has a gap."""
    answers = ranking.answers[:max_rows]
    proved = all(answer.optimum.gap <= PROVEN for answer in ranking.answers)
    name = ranking.objective.name
    columns: dict[str, list[str]] = {
        "#": [_span(ranking.places(answer)) for answer in answers],
        "cluster": [answer.offer.name for answer in answers],
        "GPUs": [grouped(answer.optimum.question.cluster.num_gpus) for answer in answers],
        "layout": [_degrees(answer) for answer in answers],
        "step": [format_seconds(answer.optimum.result.best.step_seconds) for answer in answers],
    }
    if name == "memory":
        columns["peak mem"] = [format_bytes(answer.optimum.result.best.peak_bytes) for answer in answers]
    elif proved:
        columns["MFU"] = [percent(answer.optimum.result.best.mfu) for answer in answers]
    if name == "gpu-hours":
        columns["GPU-hours"] = [value_text(answer.optimum.value, "GPU-hours") for answer in answers]
    if any(answer.days is not None for answer in answers):
        columns["days"] = ["" if answer.days is None else f"{answer.days:,.1f}" for answer in answers]
    if name != "gpu-hours" and any(answer.cost is not None for answer in answers):
        columns["cost"] = ["" if answer.cost is None else money(answer.cost) for answer in answers]
    if not proved:
        columns["gap"] = [_gap(answer) for answer in answers]
    return columns


def _span(places: tuple[int, int]) -> str:
    """ "2", or the first and the last place that an answer may have: "1-3"."""
    first, last = places
    return str(first) if first == last else f"{first}-{last}"


def _gap(answer: OfferAnswer) -> str:
    """ "12.3 %", "none" where nothing better is possible."""
    return percent(answer.optimum.gap) if answer.optimum.gap > PROVEN else "none"


def _degrees(answer: OfferAnswer) -> str:
    """Layout, without placement of blocks and recompute, which a plan file has."""
    words = str(answer.optimum.result.best.layout).split()
    return " ".join(word for word in words if not word.startswith(("layers=", "recompute=")))


def ranking_facts(ranking: Ranking) -> Iterator[Fact]:
    """Facts on the cluster and layout to train with, the runner-up, and the cost of less time."""
    best, *rivals = ranking.answers
    proof = _proof_words(ranking)
    yield from plan_facts(best.optimum, cluster=best.offer.name, proof=proof)
    if rivals:
        yield Fact(name="runner-up", value=_runner_up(ranking, rivals[0]))
    if frontier := frontier_words(ranking):
        yield Fact(name="trade-off", value=frontier)


def _runner_up(ranking: Ranking, rival: OfferAnswer) -> str:
    """ "512 GPUs of b, tp8 pp4 …: cost $1.4 M (+8.1 %), 10.4 days on paper; expected 10.9 days and $1.5 M"."""
    measure, best = ranking.objective.measure, ranking.best.optimum.value
    value = rival.optimum.value
    open_ = "" if ranking.places(ranking.best)[1] == 1 else " so far, not separated"
    gpus = counted(rival.optimum.question.cluster.num_gpus, "GPU")
    place = f"{gpus} of {rival.offer.name}, {_degrees(rival)}"
    words = f"{place}: {measure.label} {value_text(value, measure.unit)} ({change(best, value)}{open_})"
    training = training_of(rival)
    return words if training is None else f"{words}, {_days(rival)}{training.expected_words}"


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
    words = []
    for answer in points[:_POINTS]:
        gpus = counted(answer.optimum.question.cluster.num_gpus, "GPU")
        words.append(f"{money(answer.cost or 0.0)} in {_days(answer)} on {gpus} of {answer.offer.name}")
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


def left_out_of_ranking(ranking: Ranking) -> list[str]:
    """ "note: no answer on 64 GPUs of dgx-h100: at least 61.2 days": a line for each of a few, a count of more."""
    gaps = ranking.left_out
    if len(gaps) > _LIMIT:
        of = len(gaps) + len(ranking.answers)
        return [f"note: no answer on {len(gaps)} of {of} clusters and numbers of GPUs"]
    return [f"note: no answer on {counted(gpus, 'GPU')} of {cluster}: {why}" for cluster, gpus, why in gaps]


@dataclass(frozen=True, kw_only=True, repr=False)
class Ranked(PlanAnswer):
    """A question about several clusters, the best plan of each on each number of GPUs, and the proof."""

    ranking: Ranking
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    """Sentences on assumptions made to read the model."""
    top: int | None = None
    """Answers in the table that `meshwright plan` prints; None: no table."""

    @property
    def best(self) -> OfferAnswer:
        """The best of all answers."""
        return self.ranking.best

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out, on any of the clusters."""
        questions = [offer.question for offer in self.ranking.offers]
        return tuple(dict.fromkeys(note for one in questions for note in notes_of(one, self.restrictions)))

    @property
    def plan(self) -> Plan:
        """The best as a plan, which names the clusters it was chosen from."""
        optimum = self.best.optimum
        objective = optimum.for_file(self.best.offer.question.cluster.gpus_per_node)
        assert objective is not None  # there are sizes
        offers = {"offers": tuple(offer.for_file for offer in self.ranking.offers)}
        best, proof = optimum.result.best, optimum.result.certificate
        objective = objective.model_copy(update=offers)
        return make_plan(optimum.question, best, proof, self.restrictions, objective)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each cluster and number of GPUs, best first."""
        frontier = self.ranking.frontier
        return [
            {
                **_cluster_record(one),
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

    @property
    def text(self) -> tuple[str | Table, ...]:
        """Text that `meshwright plan` prints: cluster and layout to train with, the runner-up, and the ranking if asked
        for."""
        head = offers_header(self.ranking), "", facts_text(ranking_facts(self.ranking))
        return head if self.top is None else (*head, "", ranking_table(self.ranking, self.top))

    def remarks(self, *, interrupted: bool = False) -> list[str]:
        """Remarks below the answer: effects left out, rows not shown, clusters without an answer or not proved."""
        remarks = [f"note: {note}" for note in self.notes]
        remarks += left_out_of_ranking(self.ranking)
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
        ranking, frontier = self.ranking, self.ranking.frontier
        objective, left_out = ranking.objective, ("cluster", "gpus", "why")
        return {
            "clusters": [
                {**question_record(one.question), "gpus": list(one.sizes), "price": one.price}
                for one in ranking.offers
            ],
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "plans": [
                {
                    **_cluster_record(one),
                    "training": (training := training_of(one)) and training.record(),
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
                "tokens": self.best.optimum.question.training.tokens,
                "deadline_seconds": objective.deadline,
                "value": self.best.optimum.value,
                "unit": objective.measure.unit,
                **fields_of(ranking, "bound", "gap"),
                "left_out": [dict(zip(left_out, one, strict=True)) for one in ranking.left_out],
            },
        }


def _cluster_record(answer: OfferAnswer) -> dict[str, Any]:
    """Record of a cluster and number of GPUs, with days and cost of all training."""
    gpus = answer.optimum.question.cluster.num_gpus
    return {"cluster": answer.offer.name, "gpus": gpus, **fields_of(answer, "days", "cost")}


def _proof(ranking: Ranking, answer: OfferAnswer) -> dict[str, Any]:
    """Record of one answer's proof: its bound, its gap, and the places in the ranking that both allow."""
    first, last = ranking.places(answer)
    optimum = answer.optimum
    return {"bound": optimum.bound, "gap": optimum.gap, "first_place": first, "last_place": last}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersQuestion:
    """A question on several clusters that was read whole: what is left is to search."""

    offers: tuple[Offer, ...]
    objective: Objective
    """Objective, without a price, as each offer has a price."""
    precisions: tuple[Precision, ...] = ()
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    proof: Proof = "search"

    @property
    def question(self) -> Question:
        """The question on the first of the clusters."""
        return self.offers[0].question

    @property
    def notes(self) -> tuple[str, ...]:
        """Empty, as notes on any of the clusters are notes of their ranking."""
        return ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Ranked:
        """Search every cluster on every number of GPUs and rank the answers; `top` are shown.

        Raises:
            InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        """
        budget = budget or Budget()
        budget.proof = self.proof
        aim, types, limits = self.objective, self.precisions, self.restrictions
        ranking = rank_offers(self.offers, aim, precisions=types, restrictions=limits, budget=budget)
        return Ranked(ranking=ranking, restrictions=limits, assumptions=self.assumptions, top=top)


def clusters_of_plan(plan: Plan) -> ClustersQuestion | None:
    """The question that a plan chosen from several clusters answers; None where it had no choice."""
    offers, objective = offers_of(plan), plan.objective
    if not offers or objective is None:
        return None
    return ClustersQuestion(
        offers=offers,
        objective=replace(objective.terms, price=None),
        precisions=objective.precisions,
        restrictions=plan.restrictions.read,
    )


def ask_clusters(options: PlanOptions) -> ClustersQuestion:
    """Read the question on each cluster, prices in the same order.

    Raises:
        InputError: a name, a price or a number of GPUs that is wrong; everything that is, at once.
    """
    clusters = options.clusters
    problems = Problems()
    loaded = [problems.read(partial(cluster_of, cluster)) for cluster in clusters]
    problems.read(partial(_require_distinct, clusters))
    prices = problems.read(lambda: prices_of(options, len(clusters)))
    aim = problems.read(lambda: aim_of(options))
    first = next((name for name, cluster in zip(clusters, loaded, strict=True) if cluster is not None), None)
    if first is not None:  # what is wrong with the rest of the question is told once
        problems.read(lambda: questions_of(replace(options, gpus=None, cluster=first)))
    problems.require()
    assert aim is not None
    assert prices is not None
    answers = [questions_of(replace(options, gpus=None, cluster=cluster)) for cluster in clusters]
    questions, assumptions = answers[0]
    tokens, counted_words = tokens_of(options, aim[1], questions[0])
    aim = aim[0], tokens
    return ClustersQuestion(
        offers=make_offers([each[0] for each, _ in answers], clusters, in_words(options.gpus), aim, prices),
        objective=aim[0],
        precisions=tuple(one.training.precision for one in questions) if len(questions) > 1 else (),
        restrictions=Restrictions(),
        assumptions=(*assumptions, *counted_words),
    )


def make_offers(
    questions: Sequence[Question],
    clusters: Sequence[str | ClusterSpec],
    gpus: str | None,
    aim: tuple[Objective, float | None],
    prices: Sequence[float | None],
) -> tuple[Offer, ...]:
    """Make an offer of each cluster: its question with the tokens to train on, its numbers of GPUs and its price.

    Raises:
        InputError: different software stacks, a number of GPUs that cannot be, or something that is missing.
    """
    _require_alike(questions)
    objective, tokens = aim
    problems = Problems()
    offers = []
    for question, cluster, price in zip(questions, clusters, prices, strict=True):
        training = question.training.model_copy(update={"tokens": tokens or question.training.tokens})
        trained = replace(question, training=training)
        sizes = problems.read(partial(_sizes, cluster, gpus, trained, objective))
        offers.append(Offer(question=trained, sizes=sizes or (), price=price))
    problems.require()
    _require_complete(objective, offers)
    return tuple(offers)


def aim_of(goal: Goal) -> tuple[Objective, float | None]:
    """Read the objective, without a price as each offer has its own, and the tokens to train on. Raises InputError."""
    name = goal.objective or ("cost" if goal.price is not None else "time")
    return objective_of(replace(goal, objective=name, price=None))


def _require_distinct(clusters: Sequence[str | ClusterSpec]) -> None:
    names = [cluster for cluster in clusters if isinstance(cluster, str)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"`{twice[0]}` is named twice", hint="each cluster has one price")


def _require_alike(questions: Sequence[Question]) -> None:
    for question in questions:
        if question.has_pools:
            reason = f"`{question.cluster.name}` has several pools, and its number of GPUs is no choice"
            raise InputError(reason, hint="plan for it alone")
    names = sorted({question.stack.name for question in questions})
    if len(names) > 1:
        reason = f"the clusters would run different software stacks: {sentence_list(names)}"
        raise InputError(reason, hint="name one with --stack")


def prices_of(goal: Goal, clusters: int) -> tuple[float | None, ...]:
    """Read a price for each cluster, or none for any."""
    prices = read_flag("--price", goal.price, read_prices, "the objective cannot be read") or ()
    if prices and len(prices) != clusters:
        hint = "write one for each, in their order, like --price 2.5,3.5"
        raise InputError(f"--price names {len(prices)} for {clusters} clusters", hint=hint)
    return prices or (None,) * clusters


def _sizes(
    cluster: str | ClusterSpec, gpus: str | None, question: Question, objective: Objective
) -> tuple[int, ...]:
    """Read the numbers of GPUs, and keep those that this cluster can have."""
    per_node = question.cluster.gpus_per_node
    if gpus is None:
        return (question.cluster.num_gpus,)
    single = gpus.strip().isdecimal()
    text = f"{min(per_node, int(gpus))}..{gpus}" if single and objective.name == "gpus" else gpus
    sizes = [size for size in parse_sizes(text, question, skip_impossible=True) if _has(cluster, size)]
    if not sizes:
        reason = f"has none of the numbers of GPUs asked for; a node has {per_node}"
        raise InputError(f"`{question.cluster.name}` {reason}", hint=SYNTAX)
    return tuple(sizes)


def _has(cluster: str | ClusterSpec, gpus: int) -> bool:
    """Whether the cluster can have this number of GPUs. A cluster from a file has the nodes that it states."""
    try:
        return isinstance(cluster, ClusterSpec) or bool(resolve_cluster(cluster, gpus))
    except InputError:
        return False


def _require_complete(objective: Objective, offers: Sequence[Offer]) -> None:
    """Raises InputError where a cluster lacks what the objective needs."""
    if objective.name == "cost" and offers[0].price is None:
        missing = [Problem("--price", "missing: what a GPU of each cluster costs an hour")]
        hint = "one for each, in the order of the clusters, like --price 2.5,3.5"
        raise InputError("`--objective cost` cannot be answered", problems=missing, hint=hint)
    price = offers[0].price if objective.name == "cost" else None
    replace(objective, price=price).require_complete(offers[0].question)
