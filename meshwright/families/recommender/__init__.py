"""Verbs for recommenders: each method calls the function that answers the verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshwright.verbs.contract import Choices, PreparedQuestion, Verbs

if TYPE_CHECKING:
    from meshwright.families.recommender.explain import ShardingAdvised, ShardingExplained, ShardingNotChosen
    from meshwright.families.recommender.plan import ShardingEstimated, ShardingQuestion, ShardingsCompared
    from meshwright.families.recommender.run import RecommenderRun
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.report import PageRequest
    from planner.recommender.plan import RecommenderPlan
    from planner.search.search import Budget
    from planner.verify import Check

_JOB = frozenset({"gpus", "global_batch", "precision", "training", "stack", "profile", "host_memory"})

OPTIONS: Mapping[str, frozenset[str]] = {
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


class RecommenderVerbs(Verbs["RecommenderPlan"]):
    """Verbs for recommenders, whose plans shard embedding tables beside a data-parallel dense network."""

    noun = "a recommender"
    options = OPTIONS

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
        from meshwright.families.recommender.plan import ask_again

        return ask_again(plan)

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
        from meshwright.families.recommender.explain import figures

        return figures(plan)

    def drift(self, plan: RecommenderPlan, name: object) -> str:
        """Note that the plan's predicted step time has changed since the plan was written to its file; empty if
        unchanged."""
        from meshwright.families.recommender.explain import drift

        return drift(plan, name)

    def explain(self, plan: RecommenderPlan) -> ShardingExplained:
        """Explain the plan's bottleneck, and what would change it."""
        from meshwright.families.recommender.explain import explain

        return explain(plan)

    def chapters(self, plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of an HTML page about the plan, in order."""
        from meshwright.families.recommender.explain import chapters

        return chapters(plan, request)

    def why_not(self, plan: RecommenderPlan, layout: str) -> ShardingNotChosen:
        """Explain why the plan does not shard some embedding tables as `layout` says."""
        from meshwright.families.recommender.explain import why_not

        return why_not(plan, layout)

    def advise(self, plan: RecommenderPlan, layout: str | None, budget: Budget) -> ShardingAdvised:
        """Advise which embedding tables to shard in another way."""
        from meshwright.families.recommender.explain import advise

        return advise(plan, layout, budget)

    def compare(self, first: RecommenderPlan, choices: Choices, trainer: str | None) -> ShardingsCompared:
        """Price the plan beside other plans and shardings; no trainer has rules for shardings, so `trainer` has no
        effect."""
        from meshwright.families.recommender.plan import compare

        return compare(first, choices)

    def verify(self, plan: RecommenderPlan, budget: Budget) -> Iterable[Check]:
        """Price the plan again and check its proof."""
        from meshwright.families.recommender.explain import verify

        return verify(plan, budget)

    def running(self, plan: RecommenderPlan) -> RecommenderRun:
        """Plan made ready for `run` and `emulate`."""
        from meshwright.families.recommender.run import RecommenderRun

        return RecommenderRun(plan)
