"""`plan` of a transformer: reads the question, its numbers of GPUs and its objective, and searches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, MixedCluster, Precision
from meshwright.inputs.goals import (
    Pick,
    confident,
    objective_of,
    pick_of,
    proof_of,
    restrictions_of,
    risk_of,
    tokens_of,
)
from meshwright.inputs.options import Request
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import cluster_of, in_words, questions_of, single_count, whole_cluster
from meshwright.verbs.plan import PlanOptions
from planner.objectives import Objective, Proof
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions
from planner.space.sizes import SYNTAX, parse_sizes

if TYPE_CHECKING:
    from meshwright.families.transformer.planned import Planned
    from meshwright.families.transformer.ranked import ClustersQuestion
    from planner.plan import Plan
    from planner.search.search import Budget

TOP = 5
"""Plans ranked unless the user says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A question on one cluster that was read whole: what is left is to search."""

    question: Question
    objective: Objective
    sizes: tuple[int, ...] = ()
    """Numbers of GPUs to choose from; empty: the question's own."""
    precisions: tuple[Precision, ...] = ()
    """Types of matrix products to choose from; empty: the question's own."""
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()
    whole_nodes: ClusterSpec | MixedCluster | None = None
    """The cluster where the question may have but part of a node."""
    top: int = TOP
    pick: Pick = "recommended"
    """Choice of the layout that the plan holds."""
    proof: Proof = "search"
    """Method that proves the answer."""

    @property
    def plain(self) -> bool:
        """Whether just the fastest step on the question's own GPUs is asked for."""
        return self.objective == Objective() and not self.sizes and not self.precisions

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question, self.restrictions)

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Planned:
        """Search within the budget and rank `top` layouts.

        Raises:
            InfeasibleError: nothing fits, or nothing meets the deadline.
        """
        # what is wrong with a question is said before any of the search is imported
        from meshwright.families.transformer.planned import Planned
        from planner.answers.feasibility import with_remedies
        from planner.answers.optimum import optimise
        from planner.answers.recommend import recommend
        from planner.search.search import Budget

        budget = budget or Budget()
        budget.proof = self.proof
        with with_remedies(self.question, self.restrictions, sizes=self.sizes, whole_nodes=self.whole_nodes):
            optimum = optimise(
                self.question,
                self.objective,
                sizes=self.sizes,
                precisions=self.precisions,
                top=top or self.top,
                restrictions=self.restrictions,
                budget=budget,
            )
        advice, compares = None, self.pick == "recommended" and self.plain
        if compares:
            advice = recommend(self.question, optimum.result, self.restrictions, budget)
        optimum = replace(optimum, result=replace(optimum.result, searches=()))
        return Planned(
            optimum=optimum,
            gpus_per_node=self.question.cluster.gpus_per_node,
            restrictions=self.restrictions,
            assumptions=self.assumptions,
            recommendation=advice,
            pick=self.pick,
            compares=compares,
            ranks=top is not None,
        )


def ask(options: PlanOptions) -> PlanQuestion | ClustersQuestion:
    """Read everything that `plan` is given, of one cluster or of a choice of several.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    answer = problems.read(lambda: _ask_on_clusters(options))
    restrictions = problems.read(lambda: restrictions_of(options, options.trainer))
    picked = problems.read(lambda: pick_of(options.pick))
    weighed = problems.read(lambda: risk_of(options.risk))
    proof = problems.read(lambda: proof_of(options.solver))
    problems.require()
    assert answer is not None
    assert restrictions is not None
    assert picked is not None
    assert weighed is not None
    assert proof is not None
    limits = confident(restrictions, answer.question)
    if isinstance(answer, PlanQuestion) and (answer.plain or weighed == "none"):
        question = replace(answer.question, risk=weighed)
        return replace(answer, question=question, restrictions=limits, pick=picked, proof=proof)
    if weighed != "none":
        reason = "`--risk` weighs the step time on one cluster's own GPUs, in one precision"
        hint = "leave out --risk, or --objective, several --gpus, precisions or clusters"
        raise InputError(reason, hint=hint)
    return replace(answer, restrictions=limits, proof=proof)


def ask_again(plan: Plan) -> PlanQuestion | ClustersQuestion:
    """The question that a plan file answers, within its restrictions."""
    from meshwright.families.transformer.ranked import clusters_of_plan
    from planner.answers.optimum import answered_question

    advice, objective = plan.recommendation, plan.objective
    question = replace(answered_question(plan), risk=plan.risk if advice is None else advice.risk)
    if several := clusters_of_plan(plan):
        return several
    return PlanQuestion(
        question=question,
        objective=Objective() if objective is None else objective.terms,
        sizes=() if objective is None else objective.gpus,
        precisions=() if objective is None else objective.precisions,
        restrictions=plan.user_restrictions,
        top=TOP if advice is None else advice.top,
        pick="fastest" if advice is None else "recommended",
    )


def _ask_on_clusters(options: PlanOptions) -> PlanQuestion | ClustersQuestion:
    """Read the question on one cluster, or on a choice of several."""
    if not options.clusters:
        return _ask_one(options)
    from meshwright.families.transformer.ranked import ask_clusters

    return ask_clusters(options)


def _ask_one(options: PlanOptions) -> PlanQuestion:
    """Read the question on one cluster, its objective, and the numbers of GPUs to choose from."""
    problems = Problems()
    aim = problems.read(lambda: objective_of(options))
    gpus = options.gpus
    single = single_count(gpus)
    answer = problems.read(lambda: questions_of(replace(options, gpus=single)))
    sizes: tuple[int, ...] | None = ()
    if answer is not None and gpus is not None and single is None:
        sizes = problems.read(partial(sizes_of, options, in_words(gpus) or "", answer[0][0]))
    if aim is not None and aim[0].name == "gpus" and answer is not None and not sizes:
        sizes = problems.read(partial(sizes_up_to, options, single, answer[0][0]))
    problems.require()
    assert answer is not None
    assert aim is not None
    assert sizes is not None
    questions, assumptions = answer
    question, (objective, amount) = questions[0], aim
    tokens, counted_words = tokens_of(options, amount, question)
    if tokens is not None:
        question = replace(question, training=question.training.model_copy(update={"tokens": tokens}))
    objective.require_complete(question)
    if sizes:  # nodes are whole in the question, whatever part of one is chosen
        question = replace(question, cluster=whole_nodes(options))
    return PlanQuestion(
        question=question,
        objective=objective,
        sizes=sizes,
        precisions=tuple(one.training.precision for one in questions) if len(questions) > 1 else (),
        restrictions=Restrictions(),
        assumptions=(*assumptions, *counted_words),
        whole_nodes=whole_cluster(options),
    )


def sizes_of(request: Request, gpus: str, question: Question) -> tuple[int, ...]:
    """The numbers of GPUs that a choice names. Raises InputError: it cannot be read, or names more than there are."""
    whole_nodes(request)
    sizes = parse_sizes(gpus, question)
    cluster_of(request.cluster, max(sizes))  # a cluster of a file ends where the file says
    return sizes


def sizes_up_to(request: Request, limit: int | None, question: Question) -> tuple[int, ...]:
    """Doublings from one node to the given number of GPUs."""
    nodes = whole_nodes(request)
    if limit is None:
        missing = [Problem("--gpus", "missing: which numbers of GPUs there are to choose from")]
        raise InputError("`--objective gpus` cannot be answered", problems=missing, hint=SYNTAX)
    return parse_sizes(f"{min(nodes.gpus_per_node, limit)}..{limit}", replace(question, cluster=nodes))


def whole_nodes(request: Request) -> ClusterSpec:
    """The cluster with whole nodes, where the answer may use part of one."""
    cluster = whole_cluster(request)
    if isinstance(cluster, MixedCluster):
        reason = f"the number of GPUs of `{cluster.name}` is no choice: it has several pools"
        raise InputError(reason, hint="change the pools in its file")
    return cluster
