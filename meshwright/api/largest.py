"""The largest size of a family of models that fits on a cluster: reads the question and asks for the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem, UnknownNameError, did_you_mean
from cost_models.files import catalog
from cost_models.files.models import resolve_model
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.answers.largest import Largest
from meshwright.families.transformer.gpu_choices import single_count
from meshwright.inputs.limits import Limits, confident, restrictions_of
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import Inputs, question_of, whole_cluster
from planner.answers.largest import largest_sizes
from planner.search.budget import Budget
from planner.space.families import LADDERS, WAYS, By, Family, family_named
from planner.space.notes import notes_of
from planner.space.restrictions import Restrictions

USUAL_SEQUENCE = 2048
USUAL_BATCH = 8
"""Tokens of a sequence, and sequences a step on every GPU, where nobody says."""
_EXAMPLE = "meshwright plan llama hgx-h200 --largest --gpus 1 --host-memory 128GiB --stack meshwright"


def largest(
    family: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | Path | TrainingSpec | None = None,
    *,
    by: By | None = None,
    gpus: int | None = None,
    global_batch: int | str | None = None,
    sequence: int | str | None = None,
    precision: str | None = None,
    dropout: float | None = None,
    optimizer: str | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    max_memory: str | None = None,
    confidence: float | str | None = None,
    host_memory: str | None = None,
    trainer: str | None = None,
    time_limit: float | None = None,
    budget: Budget | None = None,
) -> Largest:
    """Find the largest size of a family that fits, with nothing in host memory and with each thing that the stack can
    keep there; every one proved by the next size, which fits in no layout.

    A family is `llama` or `gpt`, by depth (more blocks) or by width (wider, as deep as published sizes are); by depth
    any model will do. The rest of the question is said as to `plan`; without a training job it is 8 sequences of 2,048
    tokens a step on every GPU.

    Raises:
        InputError: what was asked is wrong; everything that is, at once.
    """
    inputs = Inputs(
        model=family,
        cluster=cluster,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
        dropout=dropout,
        optimizer=optimizer,
        training=training,
        stack=stack,
        profile=profile,
        trainer=trainer,
        confidence=confidence,
        host_memory=host_memory,
    )
    limits = Limits(fix=tuple(fix), forbid=tuple(forbid), max_memory=max_memory)
    asked = ask(inputs, by, gpus, limits)
    return asked.answer(budget or Budget(time_limit=time_limit, keep_on_interrupt=True))


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
        """What the answer passes over of the question."""
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


def ask(inputs: Inputs, by: str | None, gpus: int | str | None, limits: Limits) -> LargestQuestion:
    """Read everything that the largest size is asked with.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    _require_nouns(inputs)
    way = problems.read(lambda: _way(by))
    family = problems.read(lambda: _family(inputs.model, way or "depth"))
    restrictions = problems.read(lambda: restrictions_of(limits, inputs.trainer))
    count = problems.read(lambda: _count(gpus))
    cluster = problems.read(lambda: whole_cluster(replace(inputs, host_memory=None)))
    base = (
        catalog.load_model("llama2-7b") if family is None else family.base
    )  # to read the rest of what is wrong
    asked: Inputs = inputs
    assumed: tuple[str, ...] = ()
    if cluster is not None:
        asked, assumed = _with_job(inputs, base, count or cluster.num_gpus)
        found = problems.read(lambda: question_of(replace(asked, model=base, gpus=count or None)))
    problems.require()
    assert family is not None
    assert restrictions is not None
    assert found is not None
    question, assumptions = found
    if "offload" in limits.forbid:
        question = replace(question, stack=question.stack.model_copy(update={"residencies": ()}))
    elif question.cluster.gpu.kind != "cpu":
        restrictions = replace(restrictions, allowed=restrictions.allowed | {"offload"})
    return LargestQuestion(
        family=family,
        question=question,
        restrictions=confident(restrictions, question),
        assumptions=(*assumed, *assumptions),
    )


def _require_nouns(inputs: Inputs) -> None:
    missing = [noun for noun, value in (("FAMILY", inputs.model), ("CLUSTER", inputs.cluster)) if not value]
    if missing:
        problems = [Problem(noun, "missing") for noun in missing]
        raise InputError("nothing to look for", problems=problems, hint=_EXAMPLE)


def _way(by: str | None) -> By:
    """What grows; depth where nobody says."""
    way = next((known for known in WAYS if known == (by or "depth")), None)
    if way is None:
        what = f"`{printable(by or '')}` is neither `depth` nor `width`{did_you_mean(by or '', WAYS)}"
        raise InputError("cannot tell what grows", problems=[Problem("--by", what)])
    return way


def _family(name: str | TransformerSpec | RecommenderSpec | Document, way: By) -> Family:
    """The family of a name, or of a model that grows in depth."""
    assert not isinstance(name, (RecommenderSpec, Document)), "a family is named"
    if isinstance(name, str):
        if (found := family_named(name, way)) is not None:
            return found
        try:
            model = resolve_model(name).spec
        except UnknownNameError:
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


def _count(gpus: int | str | None) -> int:
    """The one number of GPUs that was said; 0: none was."""
    if gpus is None:
        return 0
    count = single_count(gpus)
    if count is None:
        raise InputError(f"--gpus: `{gpus}` is not one number of GPUs", hint="--largest asks about one")
    return count


def _with_job(inputs: Inputs, base: TransformerSpec, gpus: int) -> tuple[Inputs, tuple[str, ...]]:
    """The inputs with a training job where none is said, and what was assumed."""
    if inputs.training is not None:
        return inputs, ()
    said = []
    if inputs.global_batch is None:
        inputs = replace(inputs, global_batch=USUAL_BATCH * max(gpus, 1))
        said.append(f"--global-batch {inputs.global_batch}")
    if inputs.sequence is None:
        inputs = replace(inputs, sequence=min(USUAL_SEQUENCE, base.max_positions))
        said.append(f"--sequence {inputs.sequence}")
    return inputs, (f"`{' '.join(said)}`",) if said else ()
