"""The Python API: the verbs of the command line as functions on the same nouns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack, overload

from cost_models.axes.layout import parse_layout
from cost_models.defaults import assumed_dropout, complete_question
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.pools import MixedCluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.answers.planned import Estimated, Planned
from meshwright.answers.ranked import Ranked
from meshwright.api.goals import Goal, objective_of
from meshwright.cli.verbs.estimating import priced_layout
from meshwright.cli.verbs.offering import aim_of, make_offers, prices_of
from meshwright.cli.verbs.planning import restrictions_of
from planner.answers.offers import rank_offers
from planner.answers.optimising import optimise
from planner.answers.remedies import remedies_told
from planner.plan import Plan
from planner.plan_files import read_plan
from planner.proof.checks import Check
from planner.proof.verifying import verify as checks_of
from planner.search.budget import Budget
from planner.space.gpu_counts import parse_sizes
from planner.trainers import trainer_named


class PlanOptions(TypedDict, total=False):
    """What `plan` takes besides model, cluster, training and prices."""

    gpus: int | str | Sequence[int] | None
    stack: str | None
    profile: str | HardwareProfile | None
    fix: Sequence[str]
    forbid: Sequence[str]
    max_memory: str | None
    trainer: str | None
    objective: str | None
    tokens: str | float | None
    deadline: str | None
    top: int
    time_limit: float | None


@overload
def plan(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    *,
    price: str | float | None = None,
    **options: Unpack[PlanOptions],
) -> Planned: ...


@overload
def plan(
    model: str | TransformerSpec,
    cluster: list[str] | list[ClusterSpec] | tuple[str | ClusterSpec, ...],
    training: str | TrainingSpec,
    *,
    price: str | Sequence[float] | None = None,
    **options: Unpack[PlanOptions],
) -> Ranked: ...


def plan(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster | list[str] | list[ClusterSpec] | tuple[str | ClusterSpec, ...],
    training: str | TrainingSpec,
    *,
    gpus: int | str | Sequence[int] | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    max_memory: str | None = None,
    trainer: str | None = None,
    objective: str | None = None,
    tokens: str | float | None = None,
    price: str | float | Sequence[float] | None = None,
    deadline: str | None = None,
    top: int = 5,
    time_limit: float | None = None,
) -> Planned | Ranked:
    """The best layouts of a model on a cluster, with the proof; of several clusters their best plans, ranked.

    Names and paths mean what they mean on the command line; `time_limit` is in seconds. Several `gpus`, as a list or
    written like `64..1024`, are a choice; `objective`, `tokens`, `price` and `deadline` say what the best is. A
    `trainer` is one whose rules the plan obeys (`--for`). Several clusters have a price each, in their order,
    and one plan on each number of GPUs.

    Raises:
        InputError: what was asked is wrong.
        InfeasibleError: nothing fits, or nothing meets the deadline.
    """
    stack = stack or (trainer_named(trainer).stack if trainer else None)
    goal = Goal(objective=objective, tokens=tokens, price=price, deadline=deadline)
    restrictions = replace(restrictions_of((tuple(fix), tuple(forbid), max_memory)), trainer=trainer)
    budget = Budget(time_limit=time_limit, keep_on_interrupt=True)
    if isinstance(cluster, (list, tuple)):
        asked = [_question(model, one, training, None, stack, profile) for one in cluster]
        aim, prices = aim_of(goal), prices_of(goal, len(cluster))
        offers = make_offers([question for question, _ in asked], cluster, _in_words(gpus), aim, prices)
        ranking = rank_offers(offers, aim[0], restrictions=restrictions, budget=budget)
        return Ranked(ranking=ranking, restrictions=restrictions, assumptions=asked[0][1])
    one = gpus if isinstance(gpus, int) else None
    question, assumptions = _question(model, cluster, training, one, stack, profile)
    best, count = objective_of(goal)
    sizes: tuple[int, ...] = ()
    if gpus is not None and not isinstance(gpus, int):
        sizes = parse_sizes(_in_words(gpus) or "", question)
    if count is not None:
        training_spec = question.training.model_copy(update={"tokens": count})
        question = replace(question, training=training_spec)
    whole = resolve_cluster(cluster) if isinstance(cluster, str) else cluster
    with remedies_told(question, restrictions, sizes=sizes, whole_nodes=whole):
        optimum = optimise(question, best, sizes=sizes, top=top, restrictions=restrictions, budget=budget)
    per_node = question.cluster.gpus_per_node
    return Planned(
        optimum=optimum, gpus_per_node=per_node, restrictions=restrictions, assumptions=assumptions
    )


def _in_words(gpus: int | str | Sequence[int] | None) -> str | None:
    """Numbers of GPUs as `--gpus` says them."""
    if gpus is None or isinstance(gpus, str):
        return gpus
    return str(gpus) if isinstance(gpus, int) else ",".join(map(str, gpus))


def verify(plan: str | Path | Plan, *, time_limit: float | None = None) -> tuple[Check, ...]:
    """Every check of a plan or of a plan file; it is true where all of them passed.

    Raises:
        InputError: not a plan file.
    """
    loaded = plan if isinstance(plan, Plan) else read_plan(plan)
    return tuple(checks_of(loaded, Budget(time_limit=time_limit)))


def estimate(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    layout: str,
    *,
    gpus: int | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
) -> Estimated:
    """The price of one layout, written in its notation.

    Raises:
        InputError: what was asked is wrong, or the layout cannot run.
    """
    question, assumptions = _question(model, cluster, training, gpus, stack, profile)
    return Estimated(
        question=question,
        estimate=priced_layout(question, layout),
        assumptions=assumptions,
        split_chosen=not parse_layout(layout).layers,
    )


def _question(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    gpus: int | None,
    stack: str | None,
    profile: str | HardwareProfile | None,
) -> tuple[Question, tuple[str, ...]]:
    loaded = resolve_model(model) if isinstance(model, str) else None
    spec = loaded.spec if loaded is not None else model
    assert isinstance(spec, TransformerSpec)
    place = resolve_cluster(cluster, gpus) if isinstance(cluster, str) else cluster
    job = resolve_training(training) if isinstance(training, str) else training
    question = complete_question(spec, place, job, stack=stack, profile=profile)
    assumed = loaded.assumptions if loaded is not None else ()
    return question, (*assumed, *assumed_dropout(job, question))
