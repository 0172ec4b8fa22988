"""`plan` for transformers: read the question on one cluster or on several, and search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.risk import FITTING, RISKS
from cost_models.specs.cluster import ClusterSpec, MixedCluster, Precision
from meshwright.inputs.goals import (
    PICKS,
    Pick,
    choice_of,
    confident,
    objective_of,
    proof_of,
    read_prices,
    restrictions_of,
    trained_on,
)
from meshwright.inputs.measured import with_measured
from meshwright.inputs.options import Goal, Request
from meshwright.inputs.problems import Problems, read_flag
from meshwright.inputs.questions import cluster_of, in_words, questions_of, single_count
from meshwright.render.words import sentence_list, wrapped
from meshwright.verbs.plan import PlanOptions
from planner.objectives import Effort, Objective
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions
from planner.space.sizes import SYNTAX, parse_sizes

if TYPE_CHECKING:
    from meshwright.families.transformer.plan import Planned, Ranked
    from planner.answers.optimum import Offer
    from planner.search.search import Budget

TOP = 5
"""Default number of ranked plans."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Objective and restrictions of a search for the best plan."""

    objective: Objective
    """Objective; on several clusters its price is in each cluster's offer."""
    precisions: tuple[Precision, ...] = ()
    """Precisions of matrix products to choose from; empty: only the question's."""
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    pick: Pick = "recommended"
    """Choice of the layouts among which the plan, or each cluster's best, is chosen."""
    proof: Effort = "search"
    """Solver that proves the answer."""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion(_Search):
    """Question of `plan` on one cluster, completely read: only the search is left."""

    question: Question
    sizes: tuple[int, ...] = ()
    """Numbers of GPUs to choose from; empty: only the question's number."""
    whole_nodes: ClusterSpec | MixedCluster | None = None
    """Cluster of whole nodes, as the question's cluster may be part of a node."""
    top: int = TOP

    @property
    def plain(self) -> bool:
        """Whether the objective is the step time, on the question's own GPUs and in its own precision."""
        return self.objective == Objective() and not self.sizes and not self.precisions

    @property
    def compares(self) -> bool:
        """Whether the answer also recommends a layout, by comparing simpler layouts with the fastest."""
        own_job = not self.sizes and not self.precisions
        return self.pick == "recommended" and self.objective.ranks_by_step and own_job

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question, self.restrictions)

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Planned:
        """Search within the time limit of `budget` and rank `top` layouts.

        Raises:
            InfeasibleError: nothing fits, or nothing meets the deadline.
        """
        # what is wrong with a question is said before any of the search is imported
        from meshwright.families.transformer.plan import Planned
        from planner.answers.feasibility import with_remedies
        from planner.answers.optimum import optimise
        from planner.answers.recommend import recommend
        from planner.search.search import Budget

        budget, advice = budget or Budget(), None
        budget.proof = self.proof
        question, user = self.question, self.restrictions
        search = partial(
            optimise,
            question,
            self.objective,
            sizes=self.sizes,
            precisions=self.precisions,
            top=top or self.top,
            budget=budget,
        )
        narrows = self.pick == "recommended" and not self.compares and not question.has_pools
        with with_remedies(question, user, sizes=self.sizes, whole_nodes=self.whole_nodes):
            limits, optimum, note = _strictest_answer(question, user, search, narrows)
        if self.compares:
            advice = recommend(question, optimum.result, limits, budget)
        optimum = replace(optimum, result=replace(optimum.result, searches=()))
        request = replace(self, restrictions=limits)
        answer = Planned(request=request, optimum=optimum, recommendation=advice, note=note)
        return answer if top is None else replace(answer, ranks=True)


@dataclass(frozen=True, kw_only=True)
class ClustersQuestion(_Search):
    """Question of `plan` on several clusters, completely read: only the search is left."""

    offers: tuple[Offer, ...]

    @property
    def question(self) -> Question:
        """Question on the first cluster."""
        return self.offers[0].question

    @property
    def notes(self) -> tuple[str, ...]:
        """Always empty: `Ranked.notes` holds the notes on every cluster."""
        return ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Ranked:
        """Search each cluster on each number of GPUs, within the time limit of `budget`, and rank the answers, of
        which `top` are printed.

        Raises:
            InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        """
        from meshwright.families.transformer.plan import Ranked
        from planner.answers.optimum import rank_offers
        from planner.search.search import Budget

        budget = budget or Budget()
        budget.proof = self.proof
        search = partial(rank_offers, self.offers, self.objective, precisions=self.precisions, budget=budget)
        user, narrows = self.restrictions, self.pick == "recommended"
        limits, ranking, note = _strictest_answer(self.question, user, search, narrows)
        return Ranked(request=replace(self, restrictions=limits), ranking=ranking, top=top, note=note)


def _strictest_answer(
    question: Question, user: Restrictions, search: Callable[..., _Answer], narrows: bool
) -> tuple[Restrictions, _Answer, str]:
    """Search within the user's restrictions or, if `narrows`, within the strictest recommended restrictions that have
    an answer. Returns these restrictions, the answer, and a note on them."""
    from planner.answers.recommend import recommended_restrictions

    for limits in recommended_restrictions(question, user) if narrows else ():
        with suppress(InfeasibleError):
            return limits, search(restrictions=limits), _note_on(question, limits, user)
    return user, search(restrictions=user), _note_on(question, user, user) * narrows


def _note_on(question: Question, limits: Restrictions, user: Restrictions) -> str:
    """Note that the answer is the best within the restrictions `limits`, if these are narrower than the user's; else
    empty."""
    from planner.formats.trainers import trainer_named

    held, sure = list[str](), f"with {100 * FITTING:.0f} %"
    if limits.trainer and limits.trainer != user.trainer:
        held.append(f"that {trainer_named(limits.trainer).name} can run")
    if limits.confidence != user.confidence:
        held.append(f"that fit {sure}")
    elif question.confidence < FITTING:
        return f"note: no layout that fits {sure} meets the request"
    words = f"note: best of the layouts {' and '.join(held)}; --pick fastest takes the best of all"
    return wrapped(words) if held else ""


def ask(options: PlanOptions) -> PlanQuestion | ClustersQuestion:
    """Read the options of `plan` for a transformer, on one cluster or several.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    answer = problems.read(lambda: _ask_clusters(options) if options.clusters else _ask_one(options))
    restrictions = problems.read(restrictions_of, options, options.trainer)
    problems.read(_require_measured, options)
    pick, reason = options.pick or "recommended", "cannot tell which plan is wanted"
    picked = problems.read(choice_of, PICKS, pick, "--pick", reason)
    reason = "cannot tell what layouts are compared by"
    risk = problems.read(choice_of, RISKS, options.risk or "none", "--risk", reason)
    proof = problems.read(proof_of, options.solver)
    problems.require()
    limits = confident(restrictions, answer.question)
    if isinstance(answer, PlanQuestion) and (answer.plain or risk == "none"):
        question = replace(answer.question, risk=risk)
        return replace(answer, question=question, restrictions=limits, pick=picked, proof=proof)
    if risk != "none":
        reason = "`--risk` weighs the step time on one cluster's own GPUs, in one precision"
        hint = "leave out --risk, or --objective, several --gpus, precisions or clusters"
        raise InputError(reason, hint=hint)
    return replace(answer, restrictions=limits, pick=picked, proof=proof)


def _require_measured(options: PlanOptions) -> None:
    """Check the flags on the step that the user measured. Raises InputError if one lacks the other, or the plan chooses
    among jobs."""
    today, measured = options.today, options.measured
    if (today is None) != (measured is None):
        lacking = "--today" if today is None else "--measured"
        hint = "--today 'tp8 pp4 mbs1' --measured 21.4s"
        raise InputError(
            "the step that runs today cannot be read", problems=[Problem(lacking, "missing")], hint=hint
        )
    choices = options.clusters or "," in (in_words(options.precision) or "")
    if measured is not None and (
        choices or (options.gpus is not None and single_count(options.gpus) is None)
    ):
        reason = "is of one cluster, number of GPUs and precision, and the plan chooses among several"
        raise InputError("the measured step corrects nothing", problems=[Problem("--measured", reason)])


def _ask_one(options: PlanOptions) -> PlanQuestion:
    """Read the question on one cluster, its objective, and the numbers of GPUs to choose from."""
    problems, sizes = Problems(), tuple[int, ...]()
    aim = problems.read(objective_of, options)
    answer = problems.read(questions_of, replace(options, gpus=single_count(options.gpus)))
    if answer is not None:
        sizes = problems.read(_sizes_of, options, answer[0], "" if aim is None else aim[0].name)
    problems.require()
    (question, precisions, assumptions), (objective, amount) = answer, aim
    question, words = trained_on(options, amount, question)
    objective.require_complete(question)
    if options.measured is not None and options.today is not None and not sizes and not precisions:
        question = with_measured(question, options.today, options.measured)
    nodes = cluster_of(options.cluster, host_memory=options.host_memory)
    if sizes and isinstance(nodes, ClusterSpec):  # full nodes even where the chosen size uses part of one
        question = replace(question, cluster=nodes)
    return PlanQuestion(
        question=question,
        objective=objective,
        sizes=sizes,
        precisions=precisions,
        restrictions=Restrictions(),
        assumptions=(*assumptions, *words),
        whole_nodes=nodes,
    )


def _sizes_of(request: Request, question: Question, objective: str) -> tuple[int, ...]:
    """Numbers of GPUs to choose from: those of `--gpus` if it names several or a range, for the objective `gpus`
    doublings from one node up to a single number, else empty.

    Raises:
        InputError: they cannot be read, the cluster has fewer, or it has several GPU pools.
    """
    limit, gpus = single_count(request.gpus), in_words(request.gpus)
    is_single = gpus is None or limit is not None
    if is_single and objective != "gpus":
        return ()
    nodes = cluster_of(request.cluster, host_memory=request.host_memory)
    if isinstance(nodes, MixedCluster):
        reason = f"the number of GPUs of `{nodes.name}` is no choice: it has several pools"
        raise InputError(reason, hint="change the pools in its file")
    if gpus is None:
        missing = [Problem("--gpus", "missing: which numbers of GPUs there are to choose from")]
        raise InputError("`--objective gpus` cannot be answered", problems=missing, hint=SYNTAX)
    if limit is not None:
        gpus, question = f"{min(nodes.gpus_per_node, limit)}..{limit}", replace(question, cluster=nodes)
    sizes = parse_sizes(gpus, question)
    cluster_of(request.cluster, max(sizes))  # a cluster file limits them
    return sizes


def _ask_clusters(options: PlanOptions) -> ClustersQuestion:
    """Read the question on each of several clusters, with prices in the same order.

    Raises:
        InputError: a name, a price or a number of GPUs that is wrong, or different software stacks; everything that
            is, at once.
    """
    from planner.answers.optimum import Offer

    clusters, problems, gpus = options.clusters, Problems(), in_words(options.gpus)
    answers = [
        problems.read(questions_of, replace(options, gpus=None, cluster=cluster)) for cluster in clusters
    ]
    if twice := sorted({name for name in clusters if isinstance(name, str) and clusters.count(name) > 1}):
        problems.errors.append(InputError(f"`{twice[0]}` is named twice", hint="each cluster has one price"))
    prices = problems.read(_prices_of, options, len(clusters))
    name = options.objective or ("cost" if options.price is not None else "time")
    aim = problems.read(objective_of, replace(options, objective=name, price=None))  # offers have prices
    problems.require()
    (question, precisions, assumptions), (objective, amount) = answers[0], aim
    _, words = trained_on(options, amount, question)
    for question, *_ in answers:
        if question.has_pools:
            reason = f"`{question.cluster.name}` has several pools, and its number of GPUs is no choice"
            raise InputError(reason, hint="plan for it alone")
    stacks = sorted({question.stack.name for question, *_ in answers})
    if len(stacks) > 1:
        reason = f"the clusters would run different software stacks: {sentence_list(stacks)}"
        raise InputError(reason, hint="name one with --stack")
    offers = []
    for (question, *_), cluster, price in zip(answers, clusters, prices, strict=True):
        trained, _ = trained_on(options, amount, question)
        sizes = problems.read(_sizes_on, cluster, gpus, trained, objective)
        offers.append(Offer(question=trained, sizes=sizes, price=price))
    problems.require()
    if objective.name == "cost" and prices[0] is None:
        missing = [Problem("--price", "missing: what a GPU of each cluster costs an hour")]
        hint = "one for each, in the order of the clusters, like --price 2.5,3.5"
        raise InputError("`--objective cost` cannot be answered", problems=missing, hint=hint)
    price = prices[0] if objective.name == "cost" else None
    replace(objective, price=price).require_complete(offers[0].question)
    return ClustersQuestion(
        offers=tuple(offers),
        objective=objective,
        precisions=precisions,
        restrictions=Restrictions(),
        assumptions=(*assumptions, *words),
    )


def _prices_of(goal: Goal, clusters: int) -> tuple[float | None, ...]:
    """Price of a GPU-hour on each cluster; None for every cluster if no price is given."""
    prices = read_flag("--price", goal.price, read_prices, "the objective cannot be read") or ()
    if prices and len(prices) != clusters:
        hint = "write one for each, in their order, like --price 2.5,3.5"
        raise InputError(f"--price names {len(prices)} for {clusters} clusters", hint=hint)
    return prices or (None,) * clusters


def _sizes_on(
    cluster: str | ClusterSpec, gpus: str | None, question: Question, objective: Objective
) -> tuple[int, ...]:
    """Those of the requested numbers of GPUs that one of several clusters can have; without a request, the cluster's
    own number."""
    per_node = question.cluster.gpus_per_node
    if gpus is None:
        return (question.cluster.num_gpus,)
    sizes = []
    if gpus.strip().isdecimal() and objective.name == "gpus":
        gpus = f"{min(per_node, int(gpus))}..{gpus}"
    for size in parse_sizes(gpus, question, skip_impossible=True):
        with suppress(InputError):
            if isinstance(cluster, ClusterSpec) or resolve_cluster(cluster, size):
                sizes.append(size)
    if not sizes:
        reason = f"has none of the numbers of GPUs asked for; a node has {per_node}"
        raise InputError(f"`{question.cluster.name}` {reason}", hint=SYNTAX)
    return tuple(sizes)
