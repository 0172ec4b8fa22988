"""The verbs for transformers, each with the function that answers it."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.families import load
from meshwright.inputs.options import TUNING
from meshwright.verbs.contract.family import Verbs, later
from planner.plan import Plan

_HERE = "meshwright.families.transformer"
_JOB = frozenset(
    {"gpus", "global_batch", "sequence", "precision", "dropout", "training", "stack", "profile"}
    | {"optimizer", "optimizer_in_backward", "state_dtype"}
) | frozenset(TUNING)
_FITTING = frozenset({"confidence", "host_memory", "trainer"})
_LIMITS = frozenset({"fix", "forbid", "allow", "max_memory"})
_GOAL = frozenset(
    {"objective", "tokens", "samples", "epochs", "price", "deadline", "operations", "pick", "risk", "solver"}
)
_NONE: frozenset[str] = frozenset()

TAKES: Mapping[str, frozenset[str]] = {
    "plan": _JOB | _FITTING | _LIMITS | _GOAL | {"clusters", "largest", "longest", "by"},
    "estimate": _JOB | _FITTING | {"tokens", "samples", "epochs", "price"},
    "compare": frozenset({"trainer"}),
    "reshard": frozenset({"states"}),
    "explain": frozenset({"why_not"}),
    "advise": frozenset({"layout"}),
    "verify": frozenset({"solver"}),
    "report": frozenset({"tokens", "operations", "price", "start"}),
    "explore": (_JOB - {"dropout", "optimizer", "optimizer_in_backward", "state_dtype", *TUNING})
    | frozenset({"trainer", "fix", "forbid", "allow", "tokens", "operations"}),
    "run": frozenset({"compile", "clip", "rate_decay", "rate_warm_up", "trace", "profiler", "dry_run"})
    | {"weights", "save_weights"},
    "emulate": frozenset({"rank", "fake", "steps"}),
    "measure": _NONE,
}


class TransformerVerbs(Verbs[Plan]):
    """Layouts of tensor, pipeline, context, expert and data parallelism."""

    noun = "a transformer"
    takes = TAKES
    trainers = frozenset({"megatron", "torchtitan", "deepspeed", "nemo", "accelerate", "axolotl"})
    pictures = property(lambda self: load(f"{_HERE}.pictures:PICTURES"))

    ask = later(f"{_HERE}.planning.question:ask")
    ask_again = later(f"{_HERE}.planning.question:ask_again")
    ask_estimate = later(f"{_HERE}.estimate:ask")
    ask_import = later(f"{_HERE}.importing:ask_import")
    largest = later(f"{_HERE}.planning.largest:ask")
    figures = later(f"{_HERE}.explain:figures")
    drift = later(f"{_HERE}.explain:drift")
    explain = later(f"{_HERE}.explain:explain")
    why_not = later(f"{_HERE}.explain:why_not")
    chapters = later(f"{_HERE}.chapters:chapters")
    advise = later(f"{_HERE}.advise:advise")
    compare = later(f"{_HERE}.compare:compare")
    reshard = later(f"{_HERE}.reshard:reshard")
    measure = later(f"{_HERE}.measured:measure")
    verify = later("planner.verify.plans:verify")
    running = later(f"{_HERE}.run:TransformerRun")

    def about(self, plan: Plan) -> str:
        from meshwright.render.goals import gpus_in_words

        return f"{plan.model.name} on {gpus_in_words(plan.question)}"

    def notes(self, plan: Plan) -> tuple[str, ...]:
        from planner.space.obstacles import notes_of

        return (*plan.notes, *notes_of(plan.question, plan.restrictions.read))
