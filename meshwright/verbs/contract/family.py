"""What the verbs ask of a family of models, and which family answers: that of a model, or of a plan file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cost_models.errors import InputError
from cost_models.families import FAMILIES, Family, family_of_plan_kind, load
from meshwright.terminal.output import Asked
from meshwright.verbs.contract.answers import (
    AdviceAnswer,
    Answer,
    EstimateAnswer,
    LargestAnswer,
    PlanAnswer,
    RunAnswer,
    SavedAnswer,
    ServedAnswer,
)

if TYPE_CHECKING:
    from cost_models.base import Spec
    from cost_models.documents import Document
    from executor.measure.any_report import AnyReport
    from meshwright.inputs.plans import HasPlan
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawn import Drawing
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.export import ImportOptions
    from meshwright.verbs.largest import LargestOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.plan_cache import CacheOptions
    from meshwright.verbs.plot.requests import PictureRequest
    from meshwright.verbs.report.requests import PageRequest
    from meshwright.verbs.serve import ServeOptions
    from planner.plan import AnyPlan
    from planner.search.search import Budget
    from planner.verify import Check

P = TypeVar("P", bound="AnyPlan", contravariant=True)


class PlanAsked(Asked, Protocol):
    """A question for the best plans: what is left is to search."""

    def answer(self, top: int | None, budget: Budget) -> PlanAnswer:
        """Search within the budget and rank `top` plans. Raises InfeasibleError where nothing fits."""


class EstimateAsked(Asked, Protocol):
    """A question for the price of one layout, or of what another trainer runs."""

    def answer(self, budget: Budget | None = None) -> EstimateAnswer:
        """Price it. Raises InputError where it cannot run."""


class LargestAsked(Asked, Protocol):
    """A question for the largest size that fits."""

    def answer(self, budget: Budget) -> LargestAnswer:
        """Search sizes within the budget."""


class Running(Protocol):
    """A plan that is run, and how that is told."""

    def before(self, *, compiled: bool) -> str | None:
        """What to know before it is compared with what is measured."""

    def step_line(self, step: Mapping[str, Any]) -> str:
        """One step, with what was predicted."""

    def answer(self, report: AnyReport, steps: int) -> RunAnswer:
        """Predicted beside measured."""

    def told_again(self, report: AnyReport) -> Answer:
        """Predicted beside measured, of a report that was kept."""

    def next_step(self, report: AnyReport, path: Path) -> str:
        """What to do with the report in this file."""

    def built(self, config: Mapping[str, Any]) -> Answer:
        """What ranks hold, built without their devices, where they could begin with what the run is given."""

    def alone(self, rank: int, *, steps: int, fake: bool) -> SavedAnswer:
        """What one rank does without the others; `fake`: memory only, and no device.

        Raises:
            InputError: the plan cannot be trained, or has no such rank.
            HostError: the device has too little memory.
            RunError: the rank failed or ran out of memory.
        """


class FindsLargest(Protocol):
    """A family whose models come in sizes."""

    def largest(self, options: LargestOptions) -> LargestAsked:
        """Read everything that the largest size is asked with. Raises InputError."""


class ServesCaches(Protocol):
    """A family whose tables are cached while serving."""

    def plan_cache(self, options: CacheOptions) -> ServedAnswer:
        """Plan the cache of every GPU. Raises InputError, InfeasibleError."""

    def serve(self, options: ServeOptions) -> SavedAnswer:
        """Answer lookups from a planned cache. Raises InputError, HostError."""


class Verbs(Protocol[P]):
    """One family: its questions from what the user gives, and its plans read and answered for."""

    @property
    def noun(self) -> str:
        """A model of it in words, as in "a recommender"."""

    @property
    def takes(self) -> Mapping[str, frozenset[str]]:
        """Verb → the options that mean something to it; a verb that is missing is not for this family."""

    @property
    def pictures(self) -> Mapping[str, Callable[[PictureRequest], Drawing]]:
        """Kind of `plot` → what draws it of plans of this family."""

    def ask(self, options: PlanOptions) -> PlanAsked:
        """Read everything that `plan` is given. Raises InputError: everything that is wrong, at once."""

    def ask_again(self, plan: P) -> PlanAsked:
        """The question that a plan file answers."""

    def ask_estimate(self, options: EstimateOptions) -> EstimateAsked:
        """Read everything that `estimate` is given. Raises InputError: everything that is wrong, at once."""

    @property
    def trainers(self) -> frozenset[str]:
        """Trainers whose files `import` reads as questions of this family."""

    def ask_import(self, trainer: str, options: ImportOptions) -> EstimateAsked:
        """Read what a trainer runs. Raises InputError: the source, or what is said beside it, is wrong."""

    def about(self, plan: P) -> str:
        """The model and its GPUs in a few words."""

    def notes(self, plan: P) -> Sequence[str]:
        """What a plan's prediction leaves out."""

    def figures(self, plan: P) -> Mapping[str, Any]:
        """A plan's price as JSON has it, by the names that `explain` gives."""

    def drift(self, plan: P, name: object) -> str:
        """A note where the plan in a file is priced otherwise today; else nothing."""

    def explain(self, plan: P) -> Answer:
        """What binds a plan, its rivals, and what would change it."""

    def chapters(self, plan: P, request: PageRequest) -> Iterator[Chapter]:
        """What a page tells of a plan: the answer, why, pictures, how far to trust it."""

    def why_not(self, plan: P, layout: str) -> Answer:
        """Why a layout is not the plan."""

    def advise(self, plan: P, layout: str | None, budget: Budget) -> AdviceAnswer:
        """What to change of a plan, or of another layout of its question, that is run today. Raises InputError."""

    def compare(self, first: P, others: Sequence[str | Path | AnyPlan], trainer: str | None) -> Answer:
        """Plans and layouts side by side, measured against the first. Raises InputError."""

    def reshard(self, first: P, second: str | Path | AnyPlan, *, states: bool) -> Answer:
        """What moves between the layouts of two plans. Raises InputError."""

    def verify(self, plan: P, budget: Budget) -> Iterable[Check]:
        """Price a plan again and prove it again."""

    def running(self, plan: P) -> Running:
        """How a run of the plan is told."""


def later(name: str) -> Any:
    """A verb of a family by its name, `module:function`, which is imported when it is called."""
    return staticmethod(lambda *arguments, **options: load(name)(*arguments, **options))


def verbs_of_model(model: str | Spec | Document) -> Verbs[Any]:
    """The verbs for a model by its name, its file, what that holds, or itself."""
    from cost_models.files.loading import family_of_model

    return _verbs(family_of_model(model))


def verbs_of_plan(plan: AnyPlan) -> Verbs[Any]:
    """The verbs for a plan."""
    return _verbs(family_of_plan_kind(plan.kind))


def read_plan(
    plan: AnyPlan | HasPlan | str | Path, verb: str = "", given: Collection[str] = ()
) -> tuple[AnyPlan, Verbs[Any]]:
    """A plan, read where it is a file, and the verbs of its family.

    Raises:
        InputError: not a plan file, or the family has not the verb, or an option that was given to it.
    """
    from meshwright.inputs.plans import any_plan_of

    loaded = any_plan_of(plan)
    verbs = verbs_of_plan(loaded)
    if verb:
        require_options(verbs, verb, given)
    return loaded, verbs


def verbs_with(method: str) -> Any:
    """The verbs of the one family that answers a question of its own."""
    return next(one for one in map(_verbs, FAMILIES.values()) if hasattr(one, method))


def verbs_that_read(trainer: str) -> Verbs[Any]:
    """The verbs of the family whose plans a trainer's files are."""
    return next(one for one in map(_verbs, FAMILIES.values()) if trainer in one.trainers)


def _verbs(family: Family) -> Verbs[Any]:
    verbs: Callable[[], Verbs[Any]] = load(family.verbs)
    return verbs()


_WORDS = {"model": "MODEL", "cluster": "CLUSTER", "clusters": "CLUSTER,CLUSTER", "trainer": "--for"}
"""Name of an option → how it is written, where that is not `--name`."""


def option_word(name: str) -> str:
    """ "max_memory" → "--max-memory"."""
    return _WORDS.get(name, "--" + name.replace("_", "-"))


def require_verb(verbs: Verbs[Any], verb: str) -> None:
    """Raise InputError where a verb is not for this family."""
    if verb not in verbs.takes:
        raise InputError(
            f"`meshwright {verb}` does not take {verbs.noun}",
            hint=f"there are {', '.join(sorted(verbs.takes))}",
        )


def require_options(verbs: Verbs[Any], verb: str, given: Collection[str]) -> None:
    """Raise InputError where a verb, or an option that was given to it, means nothing to the family."""
    from meshwright.render.words import sentence_list

    require_verb(verbs, verb)
    known = verbs.takes[verb] | {"model", "cluster"}
    if strangers := [option_word(name) for name in given if name not in known]:
        does = "do" if len(strangers) > 1 else "does"
        raise InputError(
            f"{sentence_list(strangers)} {does} not go with {verbs.noun}",
            hint=f"meshwright {verb} takes {', '.join(sorted(map(option_word, verbs.takes[verb])))}",
        )
