"""The verbs for recommenders; each imports its work when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from meshwright.verbs.contract.family import Running, Verbs
from planner.any_plan import AnyPlan
from planner.recommender.plan import RecommenderPlan

if TYPE_CHECKING:
    from meshwright.families.recommender.advised import ShardingAdvised
    from meshwright.families.recommender.answering import CacheServed
    from meshwright.families.recommender.answers import ShardingExplained, ShardingsCompared
    from meshwright.families.recommender.asking import GivenSharding, ShardingQuestion
    from meshwright.families.recommender.imported import ImportQuestion
    from meshwright.families.recommender.served import ServedRecommender
    from meshwright.families.recommender.why_not import ShardingNotChosen
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawn import Drawing
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.export import ImportOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.plan_cache import CacheOptions
    from meshwright.verbs.plot.requests import PictureRequest
    from meshwright.verbs.report.requests import PageRequest
    from meshwright.verbs.serve import ServeOptions
    from planner.proof.checks import Check
    from planner.search.budget import Budget

_JOB = frozenset({"gpus", "global_batch", "precision", "training", "stack", "profile", "host_memory"})

TAKES: Mapping[str, frozenset[str]] = {
    "plan": _JOB | {"fix", "forbid", "allow", "together", "max_memory", "objective"},
    "estimate": _JOB,
    "compare": frozenset(),
    "explain": frozenset({"why_not"}),
    "advise": frozenset({"layout"}),
    "verify": frozenset(),
    "report": frozenset(),
    "run": frozenset({"clip", "rate_decay", "rate_warm_up", "dry_run"}),
    "emulate": frozenset({"rank", "steps"}),
}

_DRIFT = 1e-6
"""Relative difference between a plan's prediction and its price today that is not rounding."""


class RecommenderVerbs(Verbs[RecommenderPlan]):
    """Shardings of embedding tables beside a data-parallel dense network."""

    noun = "a recommender"
    takes = TAKES

    @property
    def pictures(self) -> Mapping[str, Callable[[PictureRequest], Drawing]]:
        from meshwright.families.recommender.pictures import PICTURES

        return PICTURES

    def ask(self, options: PlanOptions) -> ShardingQuestion:
        from meshwright.families.recommender.asking import ask

        return ask(options)

    def ask_again(self, plan: RecommenderPlan) -> ShardingQuestion:
        from meshwright.families.recommender.asking import ask_again

        return ask_again(plan)

    def ask_estimate(self, options: EstimateOptions) -> GivenSharding:
        from meshwright.families.recommender.asking import ask_estimate

        return ask_estimate(options)

    trainers = frozenset({"torchrec"})

    def ask_import(self, trainer: str, options: ImportOptions) -> ImportQuestion:
        from meshwright.families.recommender.imported import ask_import

        return ask_import(options)

    def plan_cache(self, options: CacheOptions) -> ServedRecommender:
        from meshwright.families.recommender.serving import plan_cache

        return plan_cache(options)

    def serve(self, options: ServeOptions) -> CacheServed:
        from meshwright.families.recommender.answering import serve

        return serve(options)

    def about(self, plan: RecommenderPlan) -> str:
        return f"{plan.model.name} on {plan.cluster.num_gpus} x {plan.cluster.gpu.name}"

    def notes(self, plan: RecommenderPlan) -> tuple[str, ...]:
        return ()

    def figures(self, plan: RecommenderPlan) -> dict[str, Any]:
        from cost_models.recommender.estimating import estimate
        from meshwright.families.recommender.records import estimate_record

        return {"estimate": estimate_record(estimate(plan.question, plan.sharding))}

    def drift(self, plan: RecommenderPlan, name: object) -> str:
        from cost_models.recommender.estimating import estimate
        from meshwright.families.recommender.text import precise

        today, then = estimate(plan.question, plan.sharding).step_seconds, plan.prediction.step_seconds
        if abs(today / then - 1) <= _DRIFT:
            return ""
        return (
            f"note: {name} was written with a step of {precise(then)}; this version prices it at"
            f" {precise(today)}"
        )

    def explain(self, plan: RecommenderPlan) -> ShardingExplained:
        from cost_models.recommender.estimating import estimate
        from meshwright.families.recommender.answers import ShardingExplained
        from planner.recommender.alternatives import binding_stages
        from planner.recommender.answer import rows_of
        from planner.recommender.restrictions import covered_options
        from planner.recommender.search.posing import limited

        limits = plan.restrictions.read(plan.model)
        prices = limited(covered_options(plan.question, limits, plan.sharding), limits)
        return ShardingExplained(
            plan=plan,
            estimate=estimate(plan.question, plan.sharding),
            stages=binding_stages(prices, rows_of(prices, plan.sharding), plan.sharding),
        )

    def chapters(self, plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
        from meshwright.families.recommender.pictures import chapters

        return chapters(plan, request, self.explain(plan).text)

    def why_not(self, plan: RecommenderPlan, layout: str) -> ShardingNotChosen:
        from meshwright.families.recommender.why_not import why_not

        return why_not(plan, layout)

    def advise(self, plan: RecommenderPlan, layout: str | None, budget: Budget) -> ShardingAdvised:
        from meshwright.families.recommender.advised import ShardingAdvised
        from meshwright.families.recommender.asking import sharding_of
        from planner.recommender.advice import advise_sharding

        today = plan.sharding if layout is None else sharding_of(plan.question, layout)
        limits = plan.restrictions.read(plan.model)
        return ShardingAdvised(
            advice=advise_sharding(plan.question, today, limits, budget), limits=plan.restrictions
        )

    def compare(
        self, first: RecommenderPlan, others: Sequence[str | Path | AnyPlan], trainer: str | None
    ) -> ShardingsCompared:
        from cost_models.recommender.estimating import estimate
        from meshwright.families.recommender.answers import ShardingsCompared
        from meshwright.families.recommender.asking import sharding_of
        from meshwright.inputs.plans import any_plan_of, is_plan

        chosen = [(first.question, first.sharding)]
        for other in others:
            if not is_plan(other):
                chosen.append((first.question, sharding_of(first.question, str(other))))
                continue
            plan = any_plan_of(other)
            if not isinstance(plan, RecommenderPlan):
                raise InputError(
                    f"plans of two kinds cannot be compared: {plan.model_name} is no recommender"
                )
            chosen.append((plan.question, plan.sharding))
        return ShardingsCompared(
            priced=[(question, estimate(question, sharding), sharding) for question, sharding in chosen]
        )

    def reshard(
        self, first: RecommenderPlan, second: str | Path | AnyPlan, *, states: bool
    ) -> ShardingsCompared:
        raise InputError("what moves between two shardings of tables is not priced")

    def verify(self, plan: RecommenderPlan, budget: Budget) -> tuple[Check, ...]:
        return tuple(_checks(plan, budget))

    def running(self, plan: RecommenderPlan) -> Running:
        from meshwright.families.recommender.running import RecommenderRun

        return RecommenderRun(plan)


def _checks(plan: RecommenderPlan, budget: Budget) -> Iterator[Check]:
    """The plan's price and its proof, again."""
    from meshwright.families.recommender.text import precise
    from planner.proof.checks import Check
    from planner.proof.shardings import verify_sharding
    from planner.recommender.plan import ShardingPrediction
    from planner.recommender.restrictions import covered_options

    if problems := plan.problems():
        yield Check("layout", False, "; ".join(problem.what for problem in problems))
        return
    from cost_models.recommender.estimating import estimate

    found = ShardingPrediction.of(estimate(plan.question, plan.sharding))
    same = found == plan.prediction
    said = f"a step of {precise(plan.prediction.step_seconds)}"
    if same:
        told = f"{said}, as priced now"
    elif found.step_seconds != plan.prediction.step_seconds:
        told = f"{said}; priced now it is {precise(found.step_seconds)}"
    else:
        differ = [name for name, now in found if now != getattr(plan.prediction, name)]
        told = f"{said}, as priced now; what differs is {', '.join(differ)}"
    yield Check("prediction", same, told)
    if plan.certificate is None:
        return
    limits = plan.restrictions.read(plan.model)
    yield from verify_sharding(
        covered_options(plan.question, limits, plan.sharding),
        plan.sharding,
        plan.certificate,
        restrictions=limits,
        time_limit=60.0 if budget.time_limit is None else budget.time_limit,
    )
