"""Plans over several clusters, each with its GPUs and its price: reads the question, and ranks the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from cost_models.errors import InputError, Problem
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, Precision
from meshwright.families.transformer.planning.ranked import Ranked
from meshwright.inputs.goals import objective_of, read_prices, tokens_of
from meshwright.inputs.options import Goal
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import cluster_of, in_words, questions_of
from meshwright.render.words import sentence_list
from meshwright.verbs.plan import PlanOptions
from planner.answers.optimum import Offer, offers_of, rank_offers
from planner.objectives import Objective, Proof
from planner.plan import Plan
from planner.search.search import Budget
from planner.space.restrictions import Restrictions
from planner.space.sizes import SYNTAX, parse_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersQuestion:
    """A question on several clusters that was read whole: what is left is to search."""

    offers: tuple[Offer, ...]
    objective: Objective
    """Without a price: each offer has its own."""
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
        """Nothing: what holds of any of the clusters is said of their ranking."""
        return ()

    def answer(self, top: int | None, budget: Budget) -> Ranked:
        """Search every cluster on every number of GPUs and rank the answers; `top` are shown.

        Raises:
            InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        """
        budget.proof = self.proof
        ranking = rank_offers(
            self.offers,
            self.objective,
            precisions=self.precisions,
            restrictions=self.restrictions,
            budget=budget,
        )
        return Ranked(ranking=ranking, restrictions=self.restrictions, assumptions=self.assumptions, top=top)


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
    known = [problems.read(partial(cluster_of, cluster)) for cluster in clusters]
    problems.read(partial(_require_distinct, clusters))
    prices = problems.read(lambda: prices_of(options, len(clusters)))
    aim = problems.read(lambda: aim_of(options))
    first = next((name for name, cluster in zip(clusters, known, strict=True) if cluster is not None), None)
    if first is not None:  # what is wrong with the rest of the question is told once
        problems.read(lambda: questions_of(replace(options, gpus=None, cluster=first)))
    problems.require()
    assert aim is not None
    assert prices is not None
    found = [questions_of(replace(options, gpus=None, cluster=cluster)) for cluster in clusters]
    questions, assumptions = found[0]
    tokens, counted = tokens_of(options, aim[1], questions[0])
    aim = aim[0], tokens
    return ClustersQuestion(
        offers=make_offers([each[0] for each, _ in found], clusters, in_words(options.gpus), aim, prices),
        objective=aim[0],
        precisions=tuple(one.training.precision for one in questions) if len(questions) > 1 else (),
        restrictions=Restrictions(),
        assumptions=(*assumptions, *counted),
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
        asked = replace(question, training=training)
        sizes = problems.read(partial(_sizes, cluster, gpus, asked, objective))
        offers.append(Offer(question=asked, sizes=sizes or (), price=price))
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
    """Read a price for each cluster, or none for any."""
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
    """Read the numbers of GPUs, and keep those that this cluster can have."""
    per_node = question.cluster.gpus_per_node
    if gpus is None:
        return (question.cluster.num_gpus,)
    single = gpus.strip().isdecimal()
    text = f"{min(per_node, int(gpus))}..{gpus}" if single and objective.name == "gpus" else gpus
    sizes = [size for size in parse_sizes(text, question, skip_impossible=True) if _has(cluster, size)]
    if not sizes:
        raise InputError(
            f"`{question.cluster.name}` has none of the numbers of GPUs asked for; a node has {per_node}",
            hint=SYNTAX,
        )
    return tuple(sizes)


def _has(cluster: str | ClusterSpec, gpus: int) -> bool:
    """Whether the cluster has so many GPUs; one from a file has the nodes that it states."""
    try:
        return isinstance(cluster, ClusterSpec) or bool(resolve_cluster(cluster, gpus))
    except InputError:
        return False


def _require_complete(objective: Objective, offers: Sequence[Offer]) -> None:
    """Raises InputError where a cluster lacks what the objective needs."""
    if objective.name == "cost" and offers[0].price is None:
        raise InputError(
            "`--objective cost` cannot be answered",
            problems=[Problem("--price", "missing: what a GPU of each cluster costs an hour")],
            hint="one for each, in the order of the clusters, like --price 2.5,3.5",
        )
    price = offers[0].price if objective.name == "cost" else None
    replace(objective, price=price).require_complete(offers[0].question)
