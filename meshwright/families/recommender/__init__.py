"""Verbs for recommenders: each method answers a verb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from meshwright.verbs.contract import Choices, PreparedQuestion, Verbs

if TYPE_CHECKING:
    from executor.recommender.training import RecommenderReport
    from meshwright.families.recommender.plan import (
        ShardingAdvised,
        ShardingEstimated,
        ShardingExplained,
        ShardingNotChosen,
        ShardingQuestion,
        ShardingsCompared,
    )
    from meshwright.families.recommender.run import RecommenderRan, ShardEmulated, ShardsBuilt
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.report import PageRequest
    from planner.recommender.plan import RecommenderPlan
    from planner.search.search import Budget
    from planner.verify import Check

_JOB = frozenset({"gpus", "global_batch", "precision", "training", "stack", "profile", "host_memory"})


class RecommenderVerbs(Verbs["RecommenderPlan"]):
    """Verbs for recommenders, whose plans shard embedding tables beside a data-parallel dense network."""

    noun = "a recommender"
    options: ClassVar[Mapping[str, frozenset[str]]] = {
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

    @property
    def pictures(self) -> Mapping[str, Draw]:
        """Kinds of pictures of a recommender's plan → function that draws the kind."""
        from meshwright.plots.pictures import pictures_of
        from planner.recommender.plan import RecommenderPlan

        return pictures_of(RecommenderPlan)

    def ask(self, options: PlanOptions) -> ShardingQuestion:
        """Read the options of `plan` for a recommender."""
        from meshwright.families.recommender.plan import ask

        return ask(options)

    def ask_again(self, plan: RecommenderPlan) -> ShardingQuestion:
        """Question that a recommender's plan file answers."""
        from meshwright.families.recommender.plan import ShardingQuestion
        from planner.recommender.problem import Objective

        certificate = plan.certificate
        objective: Objective = "step" if certificate is None else certificate.objective
        return ShardingQuestion(question=plan.question, limits=plan.restrictions, objective=objective)

    def ask_estimate(self, options: EstimateOptions) -> PreparedQuestion[ShardingEstimated]:
        """Read the options of `estimate` for a recommender."""
        from meshwright.families.recommender.plan import ask_estimate

        return ask_estimate(options)

    def about(self, plan: RecommenderPlan) -> str:
        """Title of a plan: model, number of GPUs, GPU."""
        return f"{plan.model.name} on {plan.cluster.num_gpus} x {plan.cluster.gpu.name}"

    def notes(self, plan: RecommenderPlan) -> tuple[str, ...]:
        """Notes on effects that the plan's prices leave out."""
        return plan.notes

    def figures(self, plan: RecommenderPlan) -> dict[str, Any]:
        """JSON fields of a recommender's plan, with the price predicted today."""
        from cost_models.recommender.prices import estimate
        from meshwright.families.recommender.text import estimate_record

        return {"estimate": estimate_record(estimate(plan.question, plan.sharding))}

    def drift(self, plan: RecommenderPlan, name: object) -> str:
        """Note that the plan's predicted step time has changed since the plan was written to its file; empty if
        unchanged."""
        from cost_models.recommender.prices import estimate
        from meshwright.families.recommender.text import precise
        from meshwright.render.words import drift_note

        today = estimate(plan.question, plan.sharding).step_seconds
        return drift_note(name, plan.prediction.step_seconds, today, precise)

    def explain(self, plan: RecommenderPlan) -> ShardingExplained:
        """Explain which embedding tables limit each stage of a recommender's step, such as the index exchange."""
        from cost_models.recommender.prices import estimate
        from meshwright.families.recommender.plan import ShardingExplained
        from planner.recommender.advice import binding_stages
        from planner.recommender.problem import with_memory_limit
        from planner.recommender.restrictions import covered_options

        limits = plan.restrictions.read(plan.model)
        prices = with_memory_limit(covered_options(plan.question, limits, plan.sharding), limits)
        priced, stages = estimate(plan.question, plan.sharding), binding_stages(prices, plan.sharding)
        return ShardingExplained(plan=plan, estimate=priced, stages=stages)

    def chapters(self, plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of an HTML page about the plan, in order."""
        from meshwright.pages.chapters import Chapter
        from meshwright.verbs.report import pictures

        yield Chapter(title="The answer, and what binds it", blocks=self.explain(plan).text)
        drawn = ("Stages of a step", "time"), ("Memory", "memory"), ("Where tables lie", "sharding")
        yield from pictures(plan, request, drawn, self.pictures)

    def why_not(self, plan: RecommenderPlan, layout: str) -> ShardingNotChosen:
        """Explain why the plan does not shard some embedding tables as `layout` says.

        Raises:
            InputError: words that are none, or places that are not there.
        """
        from cost_models.errors import InfeasibleError
        from cost_models.recommender.prices import estimate
        from meshwright.families.recommender.plan import SECONDS, ShardingNotChosen
        from planner.recommender.advice import alternative
        from planner.recommender.search import best_sharding
        from planner.search.search import Budget

        question, limits = plan.question, plan.restrictions.read(plan.model)
        variant = alternative(question, plan.sharding, layout, limits)
        today, otherwise, anew = estimate(question, plan.sharding), None, None
        if variant.sharding is not None:
            otherwise = estimate(question, variant.sharding)
            if plan.searched and not variant.forbidden:
                tables = set(variant.tables)
                fixed = [one for one in limits.fixed if not tables & set(range(one.first, one.last + 1))]
                limits = replace(limits, fixed=(*fixed, *variant.words))
                with suppress(InfeasibleError):
                    anew = best_sharding(question, Budget(), limits, SECONDS)
        answer = ShardingNotChosen(plan=plan, layout=layout, answer=variant, today=today, otherwise=otherwise)
        return replace(answer, replanned=anew)

    def advise(self, plan: RecommenderPlan, layout: str | None, budget: Budget) -> ShardingAdvised:
        """Advise which embedding tables to shard in another way, starting from `layout`, the sharding run today
        (default: the plan's)."""
        from meshwright.families.recommender.plan import ShardingAdvised, sharding_of
        from planner.recommender.advice import advise_sharding

        today = plan.sharding if layout is None else sharding_of(plan.question, layout)
        advice = advise_sharding(plan.question, today, plan.restrictions.read(plan.model), budget)
        return ShardingAdvised(advice=advice, limits=plan.restrictions)

    def compare(self, first: RecommenderPlan, choices: Choices, trainer: str | None) -> ShardingsCompared:
        """Price the plan beside other plans and shardings; no trainer has rules for shardings, so `trainer` has no
        effect."""
        from cost_models.errors import InputError
        from meshwright.families.recommender.plan import ShardingsCompared, priced_sharding, sharding_of
        from meshwright.inputs.plans import any_plan_of, is_plan
        from planner.recommender.plan import RecommenderPlan

        pairs = [(first.question, first.sharding)]
        for choice in choices:
            if not is_plan(choice):
                pairs.append((first.question, sharding_of(first.question, str(choice))))
                continue
            plan = any_plan_of(choice)
            if not isinstance(plan, RecommenderPlan):
                raise InputError(
                    f"plans of two kinds cannot be compared: {plan.model_name} is no recommender"
                )
            pairs.append((plan.question, plan.sharding))
        return ShardingsCompared(priced=[priced_sharding(*one) for one in pairs])

    def verify(self, plan: RecommenderPlan, budget: Budget) -> Iterator[Check]:
        """Price the plan again and check its proof; yields a check for each comparison."""
        from cost_models.recommender.prices import estimate
        from planner.recommender.plan import ShardingPrediction
        from planner.recommender.restrictions import covered_options
        from planner.verify import Check, check_equal
        from planner.verify.recommenders import verify_sharding

        if problems := plan.problems():
            yield Check("layout", False, "; ".join(problem.what for problem in problems))
            return
        prediction = ShardingPrediction.of(estimate(plan.question, plan.sharding))
        yield check_equal("prediction", plan.prediction.model_dump(), prediction.model_dump())
        if plan.certificate is None:
            return
        limits = plan.restrictions.read(plan.model)
        prices = covered_options(plan.question, limits, plan.sharding)
        seconds = 60.0 if budget.time_limit is None else budget.time_limit
        checked = plan.sharding, plan.certificate
        yield from verify_sharding(prices, *checked, restrictions=limits, time_limit=seconds)

    def caution(self, plan: RecommenderPlan, *, compiled: bool) -> str:
        """Warning that the plan was made for another software stack than the one it runs on; empty if both are the
        same."""
        from cost_models.defaults import OWN_STACK

        if (stack := plan.stack.name) == OWN_STACK:
            return ""
        return f"note: the plan is for stack {stack}, what runs is {OWN_STACK}: memory and times differ"

    def step_line(self, plan: RecommenderPlan, step: Mapping[str, Any]) -> str:
        """Line on one training step: loss, measured and predicted seconds, samples per second."""
        from cost_models.units import format_count
        from meshwright.render.measured import step_line

        rate = plan.training.global_batch / step["seconds"]
        return step_line(step, plan.prediction.step_seconds, f"{format_count(rate)} samples/s")

    def ran(self, report: RecommenderReport, steps: int | None = None) -> RecommenderRan:
        """Answer of `run` from a run's report."""
        from meshwright.families.recommender.run import RecommenderRan

        return RecommenderRan(report=report, steps=steps or len(report.losses))

    def next_step(self, report: RecommenderReport, path: Path) -> str:
        """Sentence that suggests what to run next."""
        return "Next: more --steps, or --fix tables otherwise and compare"

    def build(self, plan: RecommenderPlan, config: Mapping[str, Any]) -> ShardsBuilt:
        """Build the shards of the plan's ranks without devices, for `run --dry-run`."""
        from executor.requirements import require_torch

        require_torch("run --dry-run")
        from executor.emulate.dry_run import build_shards_without_devices
        from meshwright.families.recommender.run import ShardsBuilt

        return ShardsBuilt(plan=plan, ranks=build_shards_without_devices(plan))

    def emulate(self, plan: RecommenderPlan, rank: int, *, steps: int, fake: bool) -> ShardEmulated:
        """Run one rank of the plan alone on this machine, for `emulate`."""
        from executor.requirements import require_torch

        require_torch("emulate")
        from executor.emulate.recommender import emulate
        from meshwright.families.recommender.run import ShardEmulated

        return ShardEmulated(plan=plan, report=emulate(plan, rank, steps=steps))
