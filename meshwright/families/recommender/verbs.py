"""The verbs for recommenders, each with the function that answers it."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.families import load
from meshwright.verbs.contract.family import Verbs, later
from planner.recommender.plan import RecommenderPlan

_HERE = "meshwright.families.recommender"
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


class RecommenderVerbs(Verbs[RecommenderPlan]):
    """Shardings of embedding tables beside a data-parallel dense network."""

    noun = "a recommender"
    takes = TAKES
    trainers = frozenset({"torchrec"})
    pictures = property(lambda self: load(f"{_HERE}.pictures:PICTURES"))

    ask = later(f"{_HERE}.asking:ask")
    ask_again = later(f"{_HERE}.asking:ask_again")
    ask_estimate = later(f"{_HERE}.asking:ask_estimate")
    ask_import = later(f"{_HERE}.imported:ask_import")
    plan_cache = later(f"{_HERE}.serving:plan_cache")
    serve = later(f"{_HERE}.answering:serve")
    figures = later(f"{_HERE}.explained:figures")
    drift = later(f"{_HERE}.explained:drift")
    explain = later(f"{_HERE}.explained:explain")
    why_not = later(f"{_HERE}.why_not:why_not")
    chapters = later(f"{_HERE}.pictures:chapters")
    advise = later(f"{_HERE}.advised:advise")
    compare = later(f"{_HERE}.answers:compare")
    reshard = later(f"{_HERE}.answers:reshard")
    verify = later(f"{_HERE}.explained:verify")
    running = later(f"{_HERE}.running:RecommenderRun")

    def about(self, plan: RecommenderPlan) -> str:
        return f"{plan.model.name} on {plan.cluster.num_gpus} x {plan.cluster.gpu.name}"

    def notes(self, plan: RecommenderPlan) -> tuple[str, ...]:
        return plan.notes
