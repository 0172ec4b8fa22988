"""Reads questions about recommenders, and has them priced or searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.files import catalog
from cost_models.files.recommenders import resolve_recommender, resolve_recommender_training
from cost_models.memory.device import is_own_host
from cost_models.recommender.prices import estimate
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from cost_models.units import counted, format_bytes, parse_bytes
from meshwright.families.recommender.answers import ShardingEstimated, ShardingPlanned
from meshwright.inputs import questions
from meshwright.inputs.options import Limits, Request
from meshwright.inputs.problems import Problems
from meshwright.verbs.estimate import EstimateOptions
from meshwright.verbs.plan import PlanOptions
from planner.recommender.advice import refusal
from planner.recommender.plan import RecommenderPlan
from planner.recommender.problem import OBJECTIVES, Objective
from planner.recommender.restrictions import ShardingLimits, ShardingRestrictions, covered_options
from planner.recommender.search import plan_sharding
from planner.search.search import Budget

MOST_PROBLEMS = 5
"""Tables that are named of those that cannot be held as said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingQuestion:
    """A question that was read whole: what is left is to search."""

    question: RecommenderQuestion
    limits: ShardingLimits
    objective: Objective = "step"
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self, top: int | None, budget: Budget) -> ShardingPlanned:
        """Search within the budget. Raises DoesNotFitError: no sharding fits, which is proven."""
        restrictions = self.limits.read(self.question.model)

        def tell(value: float, bound: float, doing: str) -> None:
            if budget.on_status is not None:
                budget.on_status(doing)

        found = plan_sharding(
            covered_options(self.question, restrictions),
            objective=self.objective,
            restrictions=restrictions,
            budget=budget,
            progress=tell,
        )
        budget.interrupted = budget.interrupted or found.interrupted
        return ShardingPlanned(
            question=self.question,
            estimate=estimate(self.question, found.sharding),
            sharding=found.sharding,
            limits=self.limits,
            certificate=found.certificate,
            assumptions=self.assumptions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSharding:
    """A question and a sharding that were read: what is left is to price it."""

    question: RecommenderQuestion
    sharding: Sharding
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self) -> ShardingEstimated:
        """Price it. Raises InputError where it names GPUs or nodes that are not there."""
        return ShardingEstimated(
            question=self.question,
            estimate=estimate(self.question, self.sharding),
            sharding=self.sharding,
            assumptions=self.assumptions,
        )


def ask(options: PlanOptions) -> ShardingQuestion:
    """Read everything that `plan` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    gpus = problems.read(lambda: _one_count(options.gpus))
    read = Problems()
    model = read.read(lambda: _model(options))
    known = options if model is None else replace(options, model=model)
    question = problems.read(lambda: question_of(known, gpus or None))
    limits = problems.read(lambda: _limits(options))
    objective = problems.read(lambda: _objective(options.objective))
    words = None if model is None or limits is None else problems.read(lambda: limits.read(model))
    if question is not None and words is not None:
        problems.read(lambda: _require_tiers(question, words))
    problems.require()
    assert question is not None
    assert limits is not None
    assert objective is not None
    return ShardingQuestion(
        question=question, limits=limits, objective=objective, assumptions=tuple(_assumed(options, question))
    )


def ask_again(plan: RecommenderPlan) -> ShardingQuestion:
    """The question that a plan file answers."""
    told = plan.certificate
    return ShardingQuestion(
        question=plan.question, limits=plan.restrictions, objective="step" if told is None else told.objective
    )


def ask_estimate(options: EstimateOptions) -> GivenSharding:
    """Read everything that `estimate` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    question = question_of(options, questions.single_count(options.gpus))
    return GivenSharding(
        question=question,
        sharding=sharding_of(question, options.layout),
        assumptions=tuple(_assumed(options, question)),
    )


def sharding_of(question: RecommenderQuestion, text: str) -> Sharding:
    """Read where every table lies. Raises InputError."""
    try:
        return parse_sharding(text, question.model.num_tables)
    except InputError as error:
        hint = "write it like `table:0-3=whole@0,1,2,3 table:4-25=row`"
        raise InputError(error.headline, problems=error.problems, hint=hint) from None


def question_of(request: Request, gpus: int | None) -> RecommenderQuestion:
    """Build the question.

    Raises:
        InputError: an input is missing, or a file or a name is wrong; everything that is, at once.
    """
    questions.require_nouns(request)
    problems = Problems()
    model = problems.read(lambda: _model(request))
    cluster = problems.read(lambda: questions.cluster_of(request.cluster, gpus))
    host_memory = problems.read(lambda: questions.read_host_memory(request.host_memory))
    training = problems.read(lambda: _training(request))
    problems.read(lambda: catalog.load_stack(request.stack) if request.stack else None)
    problems.read(
        lambda: catalog.load_profile(request.profile) if isinstance(request.profile, str) else request.profile
    )
    problems.require()
    assert model is not None
    assert cluster is not None
    assert training is not None
    _require_even_batch(training.global_batch, cluster)
    sized = questions.with_host_memory(cluster, host_memory)
    return complete_recommender(model, sized, training, stack=request.stack, profile=request.profile)


def _require_even_batch(batch: int, cluster: ClusterSpec | MixedCluster) -> None:
    """Raises InputError where GPUs cannot have as many samples each."""
    gpus = cluster.num_gpus
    if batch % gpus:
        below = batch - batch % gpus
        near = [str(one) for one in (below, below + gpus) if one]
        raise InputError(
            f"--global-batch: {batch} samples are not the same number on each of {counted(gpus, 'GPU')}",
            hint=f"{' and '.join(near)} {'are' if len(near) > 1 else 'is'}",
        )


def _model(request: Request) -> RecommenderSpec:
    if isinstance(request.model, (str, Document)):
        return resolve_recommender(request.model)
    assert isinstance(request.model, RecommenderSpec), "another family reads it"
    return request.model


def _training(request: Request) -> RecommenderTraining:
    """The job, with the amounts that were given beside it."""
    said = {"global_batch": request.global_batch, "precision": questions.in_words(request.precision)}
    job = request.training
    if isinstance(job, TrainingSpec):
        raise InputError("`training` is a transformer's, the model is a recommender")
    if isinstance(job, RecommenderTraining):
        given = {name: value for name, value in said.items() if value is not None}
        return resolve_recommender_training(None, **(job.model_dump(exclude_unset=True) | given))
    return resolve_recommender_training(None if job is None else str(job), **said)


def _one_count(gpus: object) -> int:
    """The one number of GPUs; 0 where none was said."""
    text = "" if gpus is None else str(gpus).strip()
    if text and not (text.isdecimal() and text.strip("0")):
        raise InputError(
            f"--gpus: `{printable(text)}` is not one number of GPUs", hint="tables are sharded over one"
        )
    return int(text or 0)


def _objective(word: str | None) -> Objective:
    name = "step" if word in (None, "time") else word
    for known in OBJECTIVES:
        if name == known:
            return known
    raise UnknownNameError("objective", str(word), OBJECTIVES, hint=f"there are {', '.join(OBJECTIVES)}")


def _limits(limits: Limits) -> ShardingLimits:
    size = None
    if limits.max_memory is not None:
        try:
            size = parse_bytes(limits.max_memory)
        except ValueError as error:
            raise InputError(f"--max-memory: {error}") from None
    return ShardingLimits.model_validate(
        {
            "fix": limits.fix,
            "together": limits.together,
            "forbid": limits.forbid,
            "allow": limits.allow,
            "max_memory": None if size is None else f"{size!r} B",
        }
    )


def _require_tiers(question: RecommenderQuestion, restrictions: ShardingRestrictions) -> None:
    """Refuse tables in host memory where devices have no other, and splits that no rule allows."""
    on_host = next((said for said in restrictions.fixed if said.option.tier == "host"), None)
    if on_host is not None and is_own_host(question.cluster):
        raise InputError(
            f"`--fix table:{on_host.first}={on_host.option}` on `{question.cluster.name}`: its devices' memory is the"
            " host's",
            hint=f"fix it as `{replace(on_host.option, tier='device', cached=0.0)}`",
        )
    problems = [
        Problem(f"--fix table:{table}={said.option}", reason)
        for said in restrictions.fixed
        for table in range(said.first, said.last + 1)
        if (reason := refusal(question, table, said.option))
    ]
    if problems:
        raise InputError("tables cannot be held so", problems=problems[:MOST_PROBLEMS])


def _assumed(request: Request, question: RecommenderQuestion) -> Iterator[str]:
    """What nobody said and prices depend on."""
    if request.training is None:
        training = question.training
        yield f"tables in {training.table_dtype}, updated by {training.optimizer}; --training says otherwise"
    if is_own_host(question.cluster):
        return
    if not question.cluster.host_memory:
        yield "no memory of hosts: nobody says how much there is (--host-memory)"
    elif request.host_memory is not None:
        yield f"hosts have {format_bytes(question.cluster.host_memory)} each"
