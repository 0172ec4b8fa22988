"""`import` of a sharding: what runs today, priced, and how far it is from the best of the same question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost_models.errors import InputError
from cost_models.files.loading import read_once
from cost_models.files.recommenders import resolve_recommender
from cost_models.flags import part_of
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.units import format_bytes
from meshwright.families.recommender.answers import ShardingEstimated, ShardingPlanned
from meshwright.families.recommender.asking import GivenSharding, ShardingQuestion, ask, ask_estimate
from meshwright.families.recommender.text import precise
from meshwright.inputs.options import TIME_LIMIT
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, wrapped
from meshwright.verbs.contract.answer import WithPlan
from meshwright.verbs.estimate import EstimateOptions
from meshwright.verbs.export import ImportOptions
from meshwright.verbs.plan import PlanOptions
from planner.formats.torchrec import import_sharding
from planner.recommender.plan import RecommenderPlan
from planner.recommender.search import PROVEN
from planner.search.search import Budget


@dataclass(frozen=True, kw_only=True, repr=False)
class Imported(WithPlan):
    """A sharding of another trainer's file, beside the best."""

    today: ShardingEstimated
    best: ShardingPlanned

    @property
    def gain(self) -> float:
        """Share of today's step that the best one saves; not below zero."""
        return max(0.0, 1 - self.best.estimate.step_seconds / self.today.estimate.step_seconds)

    def document(self) -> dict[str, Any]:
        """What `estimate` says, with the best beside it."""
        return self.today.document() | {"best": self.best.record(), "gain": self.gain}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each table."""
        return self.today.rows

    @property
    def text(self) -> tuple[str | Table, ...]:
        return *self.today.text, "", self._beside(), "", wrapped(self._finding())

    def _beside(self) -> Table:
        rows = []
        for name, one in (("today", self.today), ("best", self.best)):
            fullest = float(one.estimate.device_bytes.max())
            stages = one.estimate.stages
            longest = max(stages, key=lambda stage: stages[stage])
            rows.append((name, precise(one.estimate.step_seconds), format_bytes(fullest), longest))
        return table(
            ("which", "step", "fullest GPU", "longest stage"), rows, names=("which", "longest stage")
        )

    def _finding(self) -> str:
        step = precise(self.best.estimate.step_seconds)
        gap = self.best.certificate.gap
        proof = "which is proved" if gap <= PROVEN else f"proved within {percent(gap)}"
        if self.gain <= PROVEN:
            none = "No sharding is" if gap <= PROVEN else "No sharding was found that is"
            return f"{none} faster than what runs today ({proof})"
        return f"What runs today is {percent(1 / (1 - self.gain) - 1)} slower than the best, {step} ({proof})"

    @property
    def plan(self) -> RecommenderPlan:
        """What runs today as a plan."""
        return self.today.plan

    @property
    def fits(self) -> bool:
        """Whether what runs today fits in memory, as it must to be priced."""
        return True

    def next_commands(self, path: Path) -> str:
        """What to do with the plan in this file."""
        return f"meshwright explain {path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportQuestion:
    """A sharding of another trainer's file, and the question for the best one: what is left is to search."""

    given: GivenSharding
    best: ShardingQuestion
    notes: tuple[str, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What nobody said and prices depend on."""
        return self.given.assumptions

    def answer(self, budget: Budget | None = None) -> Imported:
        """Price the sharding, and search for the best."""
        spending = budget or Budget(time_limit=TIME_LIMIT, keep_on_interrupt=True)
        today = self.given.answer()
        return Imported(today=today, best=no_slower(self.best.answer(None, spending), today))


def no_slower(best: ShardingPlanned, today: ShardingEstimated) -> ShardingPlanned:
    """The best sharding that is known: what a search found, or what runs today where that is faster and fits."""
    seconds, proof = today.estimate.step_seconds, best.certificate
    if not today.estimate.fits or seconds >= best.estimate.step_seconds:
        return best
    bound = min(proof.bound, seconds)
    proof = proof.model_copy(update={"value": seconds, "bound": bound, "gap": 1 - bound / seconds})
    return replace(best, estimate=today.estimate, sharding=today.sharding, certificate=proof)


def ask_import(trainer: str, options: ImportOptions) -> ImportQuestion:
    """Read a sharding plan of TorchRec. Raises InputError: the file, or what is said beside it, is wrong."""
    if options.also is not None or options.ignore:
        flag = "--also" if options.also is not None else "--ignore"
        raise InputError(f"{flag}: a sharding plan has no settings beside its tables", hint="leave it out")
    if options.sequence is not None:
        raise InputError("--sequence: a recommender has no sequences", hint="leave it out")
    if not options.model:
        raise InputError("TorchRec's plan has no model", hint="name it: `import plan.json MODEL CLUSTER`")
    named = options.model
    model = named if isinstance(named, RecommenderSpec) else resolve_recommender(read_once(str(named)))
    sharding, world = import_sharding(options.source, model)
    if options.gpus not in (None, world):
        raise InputError(
            f"`{options.source}` is for {world} GPUs, --gpus says {options.gpus}", hint="leave out --gpus"
        )
    known = replace(options, model=model, gpus=world)
    return ImportQuestion(
        given=ask_estimate(part_of(known, EstimateOptions, layout=str(sharding))),
        best=ask(part_of(known, PlanOptions)),
    )
