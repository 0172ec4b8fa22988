"""Interfaces of verbs and families: commands, answers, questions, and the verbs that a family of models
implements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from cost_models.errors import InputError
from cost_models.families import Family, family_of_plan_kind, load
from meshwright.terminal.answers import Answer, SavedAnswer, VerbQuestion
from meshwright.terminal.output import Output

if TYPE_CHECKING:
    from cost_models.base import Spec
    from cost_models.documents import Document
    from cost_models.estimate import Estimate
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
    """One verb of the command line: class of its options, its function, and its flags for output."""

    options: type[O]
    call: Callable[[O, Output], None]
    _: KW_ONLY
    shows: tuple[str, ...] = ("json", "csv", "quiet")
    """Names of the flags of `Output` that the verb has, beside `-o`."""
    hides: tuple[str, ...] = ()
    """Names of inherited options that get no flag in this command."""
    nested: str = ""
    """Pydantic model, as `module:name`, whose fields become flags too; their values are in the option `config`, by
    name."""
    head: str = "Options"
    """Heading in the help above the flags that only this verb has."""
    out: str = ""
    """Help of `-o`; empty: the command lacks the `-o` of `Output`. If set, the command itself checks its files."""

    @property
    def name(self) -> str:
        """Name of the verb: `plan` for the function `plan_command`."""
        return self.call.__name__.removesuffix("_command")

    @property
    def help(self) -> str:
        """Help text of the verb: the docstring of its function."""
        return self.call.__doc__ or ""


def command(options: type[O], **form: Any) -> Callable[[Callable[[O, Output], None]], Command[O]]:
    """Decorator: make a function a verb of the command line, with its docstring as help; `form` sets further fields
    of `Command`."""
    return lambda call: Command(options, call, **form)


class PlanAnswer(SavedAnswer):
    """Answer that is saved as a plan file, and explained, compared and drawn as that plan."""

    usual_picture: ClassVar[str] = ""
    """Kind of picture that `plot()` draws by default; empty: the kind must be given."""
    suggestion = "meshwright explain {path}"

    @property
    def more(self) -> str:
        """Words that name the flag to print more of the answer; empty if there is none."""
        return ""

    @property
    def plan(self) -> AnyPlan:
        """Answer as a plan."""
        raise NotImplementedError

    @property
    def best(self) -> Any:
        """Best of the priced layouts, shardings or clusters."""
        raise NotImplementedError

    def explain(self) -> str:
        """Explain the plan as text: bottleneck, rivals, and changes that would make it faster."""
        from meshwright.verbs.explain import explain

        return repr(explain(self))

    def why_not(self, layout: str) -> str:
        """Explain as text why another layout is not the plan; if the layout names only some axes, a search sets the
        others."""
        from meshwright.verbs.explain import why_not

        return repr(why_not(self, layout))

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """Ranked layouts of a transformer, best first; empty for other answers."""
        return ()

    def plot(self, kind: str = "", *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw one kind of picture of the plan; some kinds are drawn over the numbers `gpus`. Raises UnknownNameError
        for an unknown kind."""
        from meshwright.plots.pictures import draw_plan

        return draw_plan(kind or self.usual_picture, self.plan, self.estimates, gpus)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file."""
        from planner.plan import save_plan

        save_plan(self.plan, Path(path))


class PlanningQuestion(VerbQuestion, Protocol):
    """Protocol of a question whose answer is a plan."""

    def answer(self, budget: Budget | None = None, top: int | None = None) -> PlanAnswer:
        """Search within the limits of `budget` (or price a given layout), and rank `top` plans. Raises InputError,
        InfeasibleError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuestion(Generic[A]):
    """Question that was completely read, with the function that answers it."""

    solve: Callable[[Budget], A]
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self, budget: Budget | None = None, top: int | None = None) -> A:
        """Answer the question within the time limit of `budget`. Raises InputError, InfeasibleError."""
        from planner.search.search import Budget

        return self.solve(budget or Budget())


P = TypeVar("P", bound="AnyPlan", contravariant=True)
Choices: TypeAlias = "Sequence[str | Path | AnyPlan]"
"""Plans, plan files and layouts that `compare` sets beside one plan."""


class Verbs(Protocol[P]):
    """Protocol of the verbs that a family of models implements: questions read from options, and answers about
    plans."""

    @property
    def noun(self) -> str:
        """Noun phrase for a model of the family, as in "a recommender"."""

    @property
    def options(self) -> Mapping[str, frozenset[str]]:
        """Verb → names of the options that the family accepts; a missing verb is not available for the family."""

    @property
    def pictures(self) -> Mapping[str, Draw]:
        """Kind of picture → function that draws it for plans of the family."""

    def ask(self, options: PlanOptions) -> PlanningQuestion:
        """Read the options of `plan`. Raises InputError listing all problems."""

    def ask_again(self, plan: P) -> PlanningQuestion:
        """Question that a plan file answers."""

    def ask_estimate(self, options: EstimateOptions) -> PlanningQuestion:
        """Read the options of `estimate`. Raises InputError listing all problems."""

    def about(self, plan: P) -> str:
        """Title of a plan: model and GPUs."""

    def notes(self, plan: P) -> Sequence[str]:
        """Sentences on effects that a plan's prediction leaves out."""

    def figures(self, plan: P) -> Mapping[str, Any]:
        """JSON fields of a plan's price, as in `explain`."""

    def drift(self, plan: P, name: object) -> str:
        """Note that a plan's predicted step time has changed since the plan was written to its file; empty if
        unchanged."""

    def explain(self, plan: P) -> Answer:
        """Explain a plan's bottleneck, its rivals, and changes that would make it faster."""

    def chapters(self, plan: P, request: PageRequest) -> Iterator[Chapter]:
        """Chapters of an HTML page about a plan: answer, reasons, pictures, trust."""

    def why_not(self, plan: P, layout: str) -> Answer:
        """Explain why a layout is not the plan."""

    def advise(self, plan: P, layout: str | None, budget: Budget) -> PlanAnswer:
        """Advise how to change a plan, or the layout `layout` that is run today. Raises InputError."""

    def compare(self, first: P, choices: Choices, trainer: str | None) -> Answer:
        """Price a plan beside other plans and layouts. Raises InputError."""

    def verify(self, plan: P, budget: Budget) -> Iterable[Check]:
        """Check a plan: price it again and prove it again."""

    def caution(self, plan: P, *, compiled: bool) -> str:
        """Warning on why measured and predicted quantities may differ, such as a plan for another software stack;
        empty if there is no reason."""

    def step_line(self, plan: P, step: Mapping[str, Any]) -> str:
        """Line on one training step, measured beside predicted."""

    def ran(self, report: Any, steps: int | None = None) -> AnyRan[Any]:
        """Answer of `run` from a run report: predicted beside measured quantities over `steps` steps (None: all steps
        in the report)."""

    def next_step(self, report: Any, path: Path) -> str:
        """Suggestion of what to do with the run report at `path`."""

    def build(self, plan: P, config: Mapping[str, Any]) -> Answer:
        """Build ranks without devices, after checking the run's inputs, for `run --dry-run`."""

    def emulate(self, plan: P, rank: int, *, steps: int, fake: bool) -> SavedAnswer:
        """Run one rank of a plan alone; with `fake`, follow only its memory, without a device.

        Raises:
            InputError: the plan cannot be trained, or has no such rank.
            HostError: the device has too little memory.
            RunError: the rank failed or ran out of memory.
        """


def verbs_of_model(model: str | Spec | Document) -> Verbs[Any]:
    """Verbs of a model's family, from the model's name, file, parsed document or spec."""
    from cost_models.files.loading import family_of_model

    return _verbs(family_of_model(model))


def verbs_of_plan(plan: AnyPlan) -> Verbs[Any]:
    """Verbs of a plan's family."""
    return _verbs(family_of_plan_kind(plan.kind))


def read_plan(
    plan: AnyPlan | HasPlan | str | Path, verb: str = "", flags: Collection[str] = ()
) -> tuple[AnyPlan, Verbs[Any]]:
    """Load a plan, from its file if need be, and the verbs of its family; check that the family has `verb` and
    accepts `flags`.

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
    """Create the verbs of a family."""
    verbs: Callable[[], Verbs[Any]] = load(family.verbs)
    return verbs()


_WORDS = {"model": "MODEL", "cluster": "CLUSTER", "clusters": "CLUSTER,CLUSTER", "trainer": "--for"}
"""Option → how users write it, if that is not `--name`."""


def option_word(name: str) -> str:
    """Option as users write it: "max_memory" → "--max-memory"."""
    return _WORDS.get(name, "--" + name.replace("_", "-"))


def require_verb(verbs: Verbs[Any], verb: str) -> None:
    """Raise InputError if a family of models lacks a verb."""
    if verb not in verbs.options:
        hint = f"there are {', '.join(sorted(verbs.options))}"
        raise InputError(f"`meshwright {verb}` does not take {verbs.noun}", hint=hint)


def require_options(verbs: Verbs[Any], verb: str, flags: Collection[str]) -> None:
    """Raise InputError if a family of models lacks a verb, or does not accept one of these options."""
    from meshwright.render.words import sentence_list

    require_verb(verbs, verb)
    options = verbs.options[verb] | {"model", "cluster"}
    if strangers := [option_word(name) for name in flags if name not in options]:
        does = "do" if len(strangers) > 1 else "does"
        raise InputError(
            f"{sentence_list(strangers)} {does} not go with {verbs.noun}",
            hint=f"meshwright {verb} takes {', '.join(sorted(map(option_word, verbs.options[verb])))}",
        )
