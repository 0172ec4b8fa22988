"""`estimate` and `import` of a transformer: reads a layout, prices it, and tells what it costs part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cost_models.axes.layout import parse_layout
from cost_models.defaults import assumed_dropout, complete_question
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, UnknownNameError
from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep, expected_step
from cost_models.files.loading import LoadedModel, read_sequence, resolve_model
from cost_models.files.reading import read_document, read_text
from cost_models.pipeline.pricing import crossing
from cost_models.question import Question
from cost_models.specs.cluster import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.families.transformer.training import TrainingRun, training_run
from meshwright.inputs import questions
from meshwright.inputs.goals import trained_at
from meshwright.inputs.problems import Problems, read_flag
from meshwright.inputs.questions import question_of
from meshwright.plots.drawing import Drawing
from meshwright.plots.pictures import draw_plan
from meshwright.records.estimates import completed_record, estimate_record, estimate_row, question_record
from meshwright.render.estimates import estimate_text, expected_lines, expected_record
from meshwright.render.explanation import explanation_text, filled_sentence, why_not_text
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import layout_text
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from meshwright.terminal.answers import PlanAnswer
from meshwright.verbs.estimate import EstimateOptions
from meshwright.verbs.export import ImportOptions
from planner.explain.reasons import CompletedLayout, complete_layout, explain, why_not
from planner.formats.deepspeed import read_deepspeed
from planner.formats.fsdp2 import read_accelerate, read_axolotl
from planner.formats.launches import launch_of
from planner.formats.megatron import read_megatron
from planner.formats.nemo import overrides, read_bridge, read_nemo
from planner.formats.registry import MARKS, is_command
from planner.formats.settings import Reading, ReadOptions, also_settings, by_path, without
from planner.formats.torchtitan import read_torchtitan
from planner.objectives import Objective
from planner.plan import Plan, make_plan
from planner.search.search import Budget
from planner.space.obstacles import notes_of
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, kw_only=True)
class EstimateQuestion:
    """A question and a layout that were read: what is left is to price it."""

    question: Question
    layout: str
    trainer: str | None = None
    """Whose rules the layout obeys."""
    assumptions: tuple[str, ...] = ()
    objective: Objective = field(default_factory=Objective)
    """Objective that holds the price of GPUs."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on effects that the answer leaves out."""
        return notes_of(self.question)

    def answer(self, budget: Budget | None = None, top: int | None = None) -> Estimated:
        """Price the layout. The search fills fields left open, and places blocks as well as possible.

        Raises:
            InputError: the layout cannot run, or the trainer refuses it.
        """
        completed = complete_layout(self.question, self.layout, Restrictions(trainer=self.trainer))
        return Estimated(asked=self, completed=completed)


@dataclass(frozen=True, kw_only=True, repr=False)
class Estimated(PlanAnswer):
    """A question and the price of one layout."""

    asked: EstimateQuestion
    completed: CompletedLayout
    """Layout with its price, and how the words were read."""

    @property
    def question(self) -> Question:
        """The question that was asked."""
        return self.asked.question

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on assumptions made to read the question."""
        return self.asked.assumptions

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the question the answer leaves out."""
        return self.asked.notes

    @property
    def estimate(self) -> Estimate:
        """The price of the layout."""
        return self.completed.estimate

    @property
    def fits(self) -> bool:
        """Whether the layout fits in GPU memory, and its offloads in host memory."""
        return self.estimate.fits

    @property
    def plan(self) -> Plan:
        """The layout as a plan that was given, not searched for."""
        return make_plan(self.question, self.estimate, None, Restrictions(trainer=self.asked.trainer))

    def explain(self) -> str:
        """Say what binds the layout, what a search finds, and what would change its step."""
        return explanation_text(explain(self.plan, self.estimate))

    def why_not(self, layout: str) -> str:
        """Say how another layout compares."""
        return why_not_text(why_not(self.question, self.estimate, layout), self.estimate)

    def next_commands(self, path: Path) -> str:
        return f"meshwright explain {path}, meshwright advise {path}"

    def plot(self, kind: str, *, gpus: Sequence[int] | None = None) -> Drawing:
        """Draw one kind of picture, as of a plan; `scaling` shows the best layouts, not this one."""
        return draw_plan(kind, self.plan, [self.estimate], gpus)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row, flat."""
        return [estimate_row(self.estimate)]

    def document(self) -> dict[str, Any]:
        return {
            "question": question_record(self.question),
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "estimate": estimate_record(self.estimate, self.question),
            "expected": expected_record(self.question, self.estimate.layout, self.expected),
            "split": {"layers": list(self.estimate.layout.layers), "chosen": self._split_chosen},
            **completed_record(self.completed),
            **({} if self.training is None else {"training": self.training.record()}),
        }

    @property
    def _split_chosen(self) -> bool:
        """Whether the layout did not say how many blocks go on which stage."""
        return "layers=" not in self.asked.layout

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """Step time to expect, with its interval."""
        return expected_step(self.question, self.estimate)

    @cached_property
    def training(self) -> TrainingRun | None:
        """All of the training job; None where nobody says on how many tokens."""
        return training_run(self.question, self.asked.objective, self.estimate, self.expected)

    @property
    def text(self) -> tuple[str | Table, ...]:
        """Text that `meshwright estimate` prints."""
        return layout_text(self.question, self.estimate, repr(self))

    def __repr__(self) -> str:
        words = [filled_sentence(self.completed), estimate_text(self.estimate, searched=self._split_chosen)]
        words += expected_lines(self.question, self.estimate.layout, self.expected)
        words += [wrapped(f"Training: {self.training.words}")] if self.training else []
        return "\n".join(filter(None, [*words, crossing_sentence(crossing(self.question, self.estimate))]))


def ask(options: EstimateOptions) -> EstimateQuestion:
    """Read everything that `estimate` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    answer = problems.read(lambda: question_of(options))
    written = problems.read(lambda: parse_layout(options.layout))
    problems.require()
    assert answer is not None
    assert written is not None
    question, objective, counted_words = trained_at(options, answer[0])
    assumed = (*answer[1], *counted_words)
    return EstimateQuestion(
        question=question,
        layout=options.layout,
        trainer=options.trainer,
        assumptions=assumed,
        objective=objective,
    )


_FLAGS = {
    "model": "MODEL",
    "global_batch": "--global-batch",
    "sequence": "--sequence",
    "precision": "--precision",
    "training": "--training",
}
"""Option of a request → flag that repeats a value of the command."""


_OF_SETTINGS = {
    "deepspeed": (read_deepspeed, ""),
    "accelerate": (read_accelerate, "deepspeed_config"),
    "axolotl": (read_axolotl, "deepspeed"),
}
"""Trainer of a file of settings → its reader, and where the file has or names one for DeepSpeed."""


def ask_import(kind: str, options: ImportOptions) -> EstimateQuestion:
    """Read the command or files of a trainer of transformers, without running it.

    Raises:
        InputError: the source, or what is said beside it, is wrong.
    """
    if kind in _OF_SETTINGS:
        return _settings_file(kind, options)
    reads = {"torchtitan": _torchtitan_recipe, "nemo": _nemo_file}
    return reads.get(kind, _megatron_command)(options)


def _megatron_command(request: ImportOptions) -> EstimateQuestion:
    """Read a command that starts Megatron-LM, or the script that holds it, without running it.

    Raises:
        InputError: the command cannot be read, contradicts itself or what is said beside it.
    """
    _require_unsaid(request, tuple(_FLAGS), "command")
    text = str(request.source) if is_command(str(request.source)) else read_text(Path(request.source))
    reading = read_megatron(
        launch_of(text, request.also or "", {"cluster": request.cluster, "gpus": request.gpus}),
        gpus=questions.single_count(request.gpus),
        stack=request.stack,
        ignore=request.ignore,
    )
    return _question(reading, request)


def _settings_file(kind: str, request: ImportOptions) -> EstimateQuestion:
    """Read a file of DeepSpeed, accelerate or axolotl, with arguments of its program, for the model given, else for the
    file's.

    Raises:
        InputError: the file cannot be read or contradicts itself; what it does not have is not said.
    """
    read, place = _OF_SETTINGS[kind]
    stated = ("sequence",) if kind == "axolotl" else ()
    _require_unsaid(request, ("global_batch", "precision", "training", *stated), "file")
    document = _with_file(request, kind, place)
    base: Any = request.model or document.get("base_model")
    flags = {"MODEL": base, "--sequence": request.sequence or bool(stated)}
    if missing := [Problem(flag, "missing") for flag, one in flags.items() if not one]:
        hint = "the model goes before the cluster: llama3.1-8b dgx-h100 --sequence 4K"
        raise InputError(f"{kind}'s file does not say all", problems=missing, hint=hint)
    assert not isinstance(base, RecommenderSpec), "the file is of a transformer"
    try:
        model = LoadedModel(spec=base) if isinstance(base, TransformerSpec) else resolve_model(base)
    except UnknownNameError as error:
        if request.model:
            raise
        hint = "name one of the catalogue before the cluster, or a folder with its config.json"
        raise InputError(f"`base_model: {base}`: {error.headline}", hint=hint) from None
    node = getattr(questions.cluster_of(request.cluster), "gpus_per_node", 1)
    sequence = 0 if stated else int(read_flag("--sequence", request.sequence, read_sequence) or 0)
    options = replace(_options(request, also_settings), node=node, sequence=sequence)
    reading = read(document, model.spec, options)
    training, dropped = questions.with_dropout_of(model, reading.training)
    assumptions = (*model.assumptions, *reading.assumptions, *dropped)
    return _question(replace(reading, training=training, assumptions=assumptions), request)


def _with_file(request: ImportOptions, kind: str, place: str) -> dict[str, Any]:
    """A document, without what --ignore names, with the file in it that it names for DeepSpeed, if it does; that lies
    beside it, or where the command runs.

    Raises:
        InputError: either cannot be read, or --ignore names what is in neither.
    """
    document = _document(request.source, kind)
    if place in request.ignore:
        return without(document, request.ignore)
    inner = document.get(place) or {}
    name = inner.get(f"{place}_file") if isinstance(inner, dict) else inner
    if name:
        places = [Path(request.source).parent / str(name), Path(str(name))]
        if not (files := [one for one in places if one.is_file()]):
            text = f"`{printable(str(name))}`, which `{request.source}` names, is not there"
            raise InputError(text, hint="put it beside that file")
        inner = _document(files[0], "deepspeed")
    keys = [
        key for key in request.ignore if any(f"{path}.".startswith(f"{key}.") for path, _ in by_path(inner))
    ]
    base = {key: value for key, value in document.items() if key != place}
    return without(base, [key for key in request.ignore if key not in keys]) | {place: without(inner, keys)}


def _document(source: str | Path, trainer: str) -> dict[str, Any]:
    document = read_document(source).value
    if not isinstance(document, dict):
        raise InputError(f"`{source}` is no file of {trainer}")
    return document


def _options(request: ImportOptions, parse: Callable[[str], dict[str, Any]]) -> ReadOptions:
    """What is said beside a file, given how its trainer writes settings."""
    gpus, also = questions.single_count(request.gpus), parse(request.also or "")
    return ReadOptions(gpus=gpus, also=also, stack=request.stack, ignore=request.ignore)


def _torchtitan_recipe(request: ImportOptions) -> EstimateQuestion:
    """Read a recipe of torchtitan, a Python file or TOML, without running it.

    Raises:
        InputError: it cannot be read, contradicts itself or what is said beside it.
    """
    flags = tuple(name for name in _FLAGS if name != "model")
    _require_unsaid(request, flags, "recipe")
    text, options = read_text(Path(request.source)), _options(request, also_settings)
    source = request.model
    assert not isinstance(source, RecommenderSpec), "torchtitan trains transformers"
    model = resolve_model(source) if isinstance(source, str) and source else None
    spec = model.spec if model is not None else source if isinstance(source, TransformerSpec) else None
    reading = read_torchtitan(text, str(request.source), spec, options)
    first = model.assumptions if model is not None else ()
    return _question(replace(reading, assumptions=(*first, *reading.assumptions)), request)


def _nemo_file(request: ImportOptions) -> EstimateQuestion:
    """Read what NeMo trains: the YAML of a GPT of NeMo 1, or a recipe of Megatron Bridge, which is not run.

    Raises:
        InputError: it cannot be read, contradicts itself or what is said beside it.
    """
    _require_unsaid(request, tuple(_FLAGS), "file")
    options = _options(request, overrides)
    if Path(request.source).suffix == ".py":
        return _question(read_bridge(read_text(request.source), options), request)
    document = without(_document(request.source, "NeMo"), request.ignore)
    if not document.keys() >= MARKS["nemo"]:
        raise InputError(f"`{request.source}` is no file of NeMo", hint="it has `trainer` and `model`")
    return _question(read_nemo(document, options), request)


def _require_unsaid(request: ImportOptions, names: tuple[str, ...], source: str) -> None:
    if twice := [_FLAGS[name] for name in names if getattr(request, name)]:
        problems = [Problem(one, f"the {source} says it") for one in twice]
        raise InputError(f"said beside a {source} that says it", problems=problems, hint="leave it out")


def _question(reading: Reading, request: ImportOptions) -> EstimateQuestion:
    layout = reading.layout
    if layout.zero and layout.shard_group == 1:
        idle = f"ZeRO-{layout.zero} shards over a single replica, which is nothing: zero0"
        settled = layout.model_copy(update={"zero": 0, "shard": None})
        reading = replace(reading, layout=settled, assumptions=(*reading.assumptions, idle))
    cluster = questions.cluster_of(request.cluster, reading.layout.num_gpus)
    if isinstance(cluster, MixedCluster):
        raise InputError("the trainer runs on one kind of GPU, and the cluster has several pools")
    cluster = questions.with_host_memory(cluster, questions.read_host_memory(request.host_memory))
    stack, training = reading.stack, reading.training
    question = complete_question(reading.model, cluster, training, stack=stack, profile=request.profile)
    ignored = [f"no effect of `{key}`, which --ignore leaves out of the price" for key in request.ignore]
    assumptions = (*ignored, *reading.assumptions, *assumed_dropout(reading.training, question))
    return EstimateQuestion(question=question, layout=str(reading.layout), assumptions=assumptions)
