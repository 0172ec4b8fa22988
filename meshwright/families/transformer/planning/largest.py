"""The largest size of a family of models that fits on a cluster: reads the question and asks for the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem, UnknownNameError, did_you_mean
from cost_models.files import catalog
from cost_models.files.loading import resolve_model
from cost_models.question import Question
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.families.transformer.planning.largest_sizes import Largest
from meshwright.inputs.limits import confident, restrictions_of
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import question_of, single_count, whole_cluster
from meshwright.verbs.largest import LargestOptions
from planner.answers.feasibility import largest_sizes
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions
from planner.space.sizes import LADDERS, WAYS, By, Family, family_named

USUAL_SEQUENCE = 2048
USUAL_BATCH = 8
"""Tokens of a sequence, and sequences a step on every GPU, where nobody says."""
_EXAMPLE = "meshwright plan llama hgx-h200 --largest --gpus 1 --host-memory 128GiB --stack meshwright"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestQuestion:
    """A family and a question without its model, both read: what is left is to search."""

    family: Family
    question: Question
    """With the family's base."""
    restrictions: Restrictions
    assumptions: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the question the answer leaves out."""
        return notes_of(self.question, self.restrictions)

    def answer(self, budget: Budget) -> Largest:
        """Search sizes within the budget."""
        found = tuple(largest_sizes(self.question, self.family, self.restrictions, budget))
        return Largest(
            family=self.family,
            question=self.question,
            sizes=found,
            restrictions=self.restrictions,
            searches=budget.searches,
            seconds=budget.seconds_spent,
            assumptions=self.assumptions,
        )


def ask(options: LargestOptions) -> LargestQuestion:
    """Read everything that the largest size is asked with.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    _require_nouns(options)
    way = problems.read(lambda: _way(options.by))
    problems.read(lambda: _require_open(options, way))
    family = problems.read(lambda: _family(options.model, way or "depth"))
    restrictions = problems.read(lambda: restrictions_of(options, options.trainer))
    count = problems.read(lambda: _count(options.gpus))
    cluster = problems.read(lambda: whole_cluster(replace(options, host_memory=None)))
    # to read the rest of what is wrong
    base = catalog.load_model("llama2-7b") if family is None else family.base
    asked = options
    assumed: tuple[str, ...] = ()
    if cluster is not None:
        asked, assumed = _with_job(options, base, count or cluster.num_gpus, way or "depth")
        found = problems.read(lambda: question_of(replace(asked, model=base, gpus=count or None)))
    problems.require()
    assert family is not None
    assert restrictions is not None
    assert found is not None
    question, assumptions = found
    if "offload" in options.forbid:
        question = replace(question, stack=question.stack.model_copy(update={"residencies": ()}))
    elif question.cluster.gpu.kind != "cpu":
        restrictions = replace(restrictions, allowed=restrictions.allowed | {"offload"})
    return LargestQuestion(
        family=family,
        question=question,
        restrictions=confident(restrictions, question),
        assumptions=(*assumed, *assumptions),
    )


def _require_nouns(options: LargestOptions) -> None:
    missing = [noun for noun, value in (("FAMILY", options.model), ("CLUSTER", options.cluster)) if not value]
    if missing:
        problems = [Problem(noun, "missing") for noun in missing]
        raise InputError("nothing to look for", problems=problems, hint=_EXAMPLE)


def _require_open(options: LargestOptions, way: By | None) -> None:
    """Raises InputError where what grows was said to be so much."""
    if way == "sequence" and options.sequence is not None:
        what = "is what is looked for: leave it out, or leave out --longest"
        raise InputError("one length of sequences was named", problems=[Problem("--sequence", what)])


def _way(by: str | None) -> By:
    """What grows; depth where nobody says."""
    way = next((known for known in WAYS if known == (by or "depth")), None)
    if way is None:
        known_ways = ", ".join(f"`{known}`" for known in WAYS)
        what = f"`{printable(by or '')}` is none of {known_ways}{did_you_mean(by or '', WAYS)}"
        raise InputError("cannot tell what grows", problems=[Problem("--by", what)])
    return way


def _family(name: str | TransformerSpec | RecommenderSpec | Document, way: By) -> Family:
    """The family of a name, or of a model that grows in depth."""
    assert not isinstance(name, (RecommenderSpec, Document)), "a family is named"
    if isinstance(name, str):
        if way != "sequence" and (found := family_named(name, way)) is not None:
            return found
        try:
            model = resolve_model(name).spec
        except UnknownNameError:
            if way == "sequence":
                raise
            known = (*LADDERS, *catalog.names("models"))
            hint = f"families: {', '.join(LADDERS)}; by depth also any model"
            raise UnknownNameError("family", printable(name), known, hint=hint) from None
    else:
        model = name
    if way == "width":
        raise InputError(
            f"`--by width` follows sizes that were published; `{model.name}` is no family of such",
            hint=f"families: {', '.join(LADDERS)}; or --by depth",
        )
    return Family(name=model.name, base=model, by=way)


def _count(gpus: int | str | Sequence[int] | None) -> int:
    """The one number of GPUs that was said; 0: none was."""
    if gpus is None:
        return 0
    count = single_count(gpus)
    if count is None:
        raise InputError(f"--gpus: `{gpus}` is not one number of GPUs", hint="--largest asks about one")
    return count


def _with_job(
    options: LargestOptions, base: TransformerSpec, gpus: int, way: By
) -> tuple[LargestOptions, tuple[str, ...]]:
    """The inputs with a training job where none is said, and what was assumed."""
    if options.training is not None:
        return options, ()
    said = []
    if options.global_batch is None:
        options = replace(options, global_batch=USUAL_BATCH * max(gpus, 1))
        said.append(f"--global-batch {options.global_batch}")
    if options.sequence is None:
        options = replace(options, sequence=min(USUAL_SEQUENCE, base.max_positions))
        if way != "sequence":
            said.append(f"--sequence {options.sequence}")
    return options, (f"`{' '.join(said)}`",) if said else ()
