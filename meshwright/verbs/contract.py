"""Contract of verbs and families: answers, commands, and the verbs of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from cost_models.errors import InputError, Problem
from cost_models.families import Family, family_of_plan_kind, load
from meshwright.terminal.answers import Answer, Asked, SavedAnswer
from meshwright.terminal.output import Output

if TYPE_CHECKING:
    from cost_models.base import Spec
    from cost_models.documents import Document
    from cost_models.estimate import Estimate
    from executor.measure.report import AnyReport
    from meshwright.inputs.plans import HasPlan
    from meshwright.pages.chapters import Chapter
    from meshwright.plots.drawing import Draw, Drawing
    from meshwright.verbs.estimate import EstimateOptions
    from meshwright.verbs.plan import PlanOptions
    from meshwright.verbs.ran import AnyRan
    from meshwright.verbs.report import PageRequest
    from planner.plan import AnyPlan
    from planner.search.search import Budget
    from planner.verify import Check

O = TypeVar("O")  # noqa: E741
A = TypeVar("A", bound="PlanAnswer")


@dataclass(frozen=True, slots=True)
class Command(Generic[O]):
    """One verb of the command line."""

    options: type[O]
    call: Callable[[O, Output], None]
    _: KW_ONLY
    shows: tuple[str, ...] = ("json", "csv", "quiet")
    """Names of the flags of `Output` that the verb has, beside `-o`."""
    hides: tuple[str, ...] = ()
    """Flags of shared options that it has not."""
    nested: str = ""
    """A record, `module:name`, whose flags are in the field `config` of the options, by name."""
    head: str = "Options"
    """Heading in the help above the flags that only this verb has."""
    out: str = ""
    """Help of `-o`; empty: it has no such flag of `Output`. With it the verb checks what it writes itself."""

    @property
    def name(self) -> str:
        """Name of the verb: `plan` for the function `plan_command`."""
        return self.call.__name__.removesuffix("_command")

    @property
    def help(self) -> str:
        """Help of the verb."""
        return self.call.__doc__ or ""


def command(options: type[O], **form: Any) -> Callable[[Callable[[O, Output], None]], Command[O]]:
    """Decorate a function as a verb of the command line; `form` are further fields of `Command`. Its docstring is the
    help."""
    return lambda call: Command(options, call, **form)


def refuse(headline: str, problems: Sequence[Problem], hint: str = "") -> None:
    """Do nothing without problems. Raises InputError with all of them."""
    if problems:
        raise InputError(headline, problems=problems, hint=hint)


class PlanAnswer(SavedAnswer):
    """An answer that is saved as a plan file, and explained, compared and drawn as that plan."""

    usual_picture: ClassVar[str] = ""
    """Kind of picture that `plot()` draws; empty: the kind must be given."""

    @property
    def more(self) -> str:
        """Further questions that can be asked about the answer; empty: none."""
        return ""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""
        raise NotImplementedError

    @property
    def best(self) -> Any:
        """The best of the priced layouts, shardings or clusters."""
        raise NotImplementedError

    def explain(self) -> str:
        """Say what binds the plan, what it wins by, and what would change it."""
        from meshwright.verbs.explain import explain

        return repr(explain(self))

    def why_not(self, layout: str) -> str:
        """Say why another layout is not the plan; what the layout leaves out is free."""
        from meshwright.verbs.explain import why_not

        return repr(why_not(self, layout))

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Ranked layouts of a transformer, best first."""
        return ()

    def plot(self, kind: str = "", *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw a kind of picture of the plan, at these numbers of GPUs where it has several. Raises UnknownNameError
        where there is no such kind."""
        from meshwright.plots.pictures import draw_plan

        return draw_plan(kind or self.usual_picture, self.plan, self.estimates, gpus)

    def save(self, path: str | Path) -> None:
        """Write the plan."""
        from planner.plan import save_plan

        save_plan(self.plan, Path(path))

    def next_commands(self, path: Path) -> str:
        """Commands for the plan file at `path`."""
        return f"meshwright explain {path}"


class PlanAsked(Asked, Protocol):
    """A question that a plan answers."""

    def answer(self, budget: Budget | None = None, top: int | None = None) -> PlanAnswer:
        """Search within the budget, or price, and rank `top` plans. Raises InputError, InfeasibleError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuestion(Generic[A]):
    """A question read without errors, and the function that answers it within a budget."""

    solve: Callable[[Budget], A]
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> A:
        """Answer of the question. Raises InputError, InfeasibleError."""
        from planner.search.search import Budget

        return self.solve(budget or Budget())


P = TypeVar("P", bound="AnyPlan", contravariant=True)
Choices: TypeAlias = "Sequence[str | Path | AnyPlan]"
"""Plans, plan files and layouts that `compare` sets beside one plan."""


class Running(Protocol):
    """A plan that is run, and how that is told."""

    def caution(self, *, compiled: bool) -> str | None:
        """Note to read before measured and predicted quantities are compared; None if there is none."""

    def step_line(self, step: Mapping[str, Any]) -> str:
        """One step, with what was predicted."""

    def answer(self, report: AnyReport, steps: int | None = None) -> AnyRan[Any]:
        """Predicted beside measured quantities of a report, for `steps` steps; None: all steps of the report."""

    def next_step(self, report: AnyReport, path: Path) -> str:
        """Hint on the use of the report in this file."""

    def built(self, config: Mapping[str, Any]) -> Answer:
        """Contents of ranks, built without devices, if the run's inputs would let them begin."""

    def emulate(self, rank: int, *, steps: int, fake: bool) -> SavedAnswer:
        """Run one rank without the others; `fake`: memory only, and no device.

        Raises:
            InputError: the plan cannot be trained, or has no such rank.
            HostError: the device has too little memory.
            RunError: the rank failed or ran out of memory.
        """


class Verbs(Protocol[P]):
    """One family: its questions from what the user gives, and its plans read and answered for."""

    @property
    def noun(self) -> str:
        """Noun phrase for a model of the family, as in "a recommender"."""

    @property
    def options(self) -> Mapping[str, frozenset[str]]:
        """Verb → options that the family accepts. A verb that is missing is not for this family."""

    @property
    def pictures(self) -> Mapping[str, Draw]:
        """Kind of `plot` → what draws it of plans of this family."""

    def ask(self, options: PlanOptions) -> PlanAsked:
        """Read everything that `plan` is given. Raises InputError: everything that is wrong, at once."""

    def ask_again(self, plan: P) -> PlanAsked:
        """The question that a plan file answers."""

    def ask_estimate(self, options: EstimateOptions) -> PlanAsked:
        """Read everything that `estimate` is given. Raises InputError: everything that is wrong, at once."""

    def about(self, plan: P) -> str:
        """Words on the plan's model and its GPUs."""

    def notes(self, plan: P) -> Sequence[str]:
        """Sentences on effects that a plan's prediction leaves out."""

    def figures(self, plan: P) -> Mapping[str, Any]:
        """A plan's price as JSON has it, by the names that `explain` gives."""

    def drift(self, plan: P, name: object) -> str:
        """A note where the plan in a file is priced otherwise today; else nothing."""

    def explain(self, plan: P) -> Answer:
        """Explain bottlenecks of a plan, its rivals, and changes that would make it faster."""

    def chapters(self, plan: P, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of a page on a plan: the answer, why, pictures, how far to trust it."""

    def why_not(self, plan: P, layout: str) -> Answer:
        """Why a layout is not the plan."""

    def advise(self, plan: P, layout: str | None, budget: Budget) -> PlanAnswer:
        """Advise how to change a plan, or another layout run today in its place. Raises InputError."""

    def compare(self, first: P, choices: Choices, trainer: str | None) -> Answer:
        """Plans and layouts side by side, measured against the first. Raises InputError."""

    def verify(self, plan: P, budget: Budget) -> Iterable[Check]:
        """Price a plan again and prove it again."""

    def running(self, plan: P) -> Running:
        """How a run of the plan is told."""


def verbs_of_model(model: str | Spec | Document) -> Verbs[Any]:
    """Verbs of the family of a model given by name, as a file, as a file's parsed contents, or as a spec."""
    from cost_models.files.loading import family_of_model

    return _verbs(family_of_model(model))


def verbs_of_plan(plan: AnyPlan) -> Verbs[Any]:
    """The verbs for a plan."""
    return _verbs(family_of_plan_kind(plan.kind))


def read_plan(
    plan: AnyPlan | HasPlan | str | Path, verb: str = "", flags: Collection[str] = ()
) -> tuple[AnyPlan, Verbs[Any]]:
    """Load a plan, from its file if need be, and the verbs of its family.

    Raises:
        InputError: not a plan file, or the family has not the verb, or an option that was given to it.
    """
    from meshwright.inputs.plans import any_plan_of

    loaded = any_plan_of(plan)
    verbs = verbs_of_plan(loaded)
    if verb:
        require_options(verbs, verb, flags)
    return loaded, verbs


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
    if verb not in verbs.options:
        hint = f"there are {', '.join(sorted(verbs.options))}"
        raise InputError(f"`meshwright {verb}` does not take {verbs.noun}", hint=hint)


def require_options(verbs: Verbs[Any], verb: str, flags: Collection[str]) -> None:
    """Raise InputError where a verb, or an option that was given to it, means nothing to the family."""
    from meshwright.render.words import sentence_list

    require_verb(verbs, verb)
    options = verbs.options[verb] | {"model", "cluster"}
    if strangers := [option_word(name) for name in flags if name not in options]:
        does = "do" if len(strangers) > 1 else "does"
        raise InputError(
            f"{sentence_list(strangers)} {does} not go with {verbs.noun}",
            hint=f"meshwright {verb} takes {', '.join(sorted(map(option_word, verbs.options[verb])))}",
        )
