"""From flags to a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from cost_models.defaults import assumed_dropout, complete_question, questions_by_precision
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.files.names import known_cluster, known_model
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.units import grouped
from meshwright.api.problems import Together
from planner.trainers import trainer_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line said; None where it said nothing."""

    model: str
    cluster: str
    gpus: int | None = None
    global_batch: int | str | None = None
    """Sequences, or as `4M tokens`."""
    sequence: int | str | None = None
    """Tokens, or as `8K`."""
    precision: str | None = None
    dropout: float | None = None
    training: Path | None = None
    stack: str | None = None
    profile: str | None = None
    trainer: str | None = None


def question_of(asked: Asked) -> tuple[Question, tuple[str, ...]]:
    """The question, and what had to be assumed to build it.

    Raises:
        InputError: an argument is missing, or a file or a name is wrong; everything that is, at once.
    """
    missing = [noun for noun, value in (("MODEL", asked.model), ("CLUSTER", asked.cluster)) if not value]
    if missing:
        raise InputError(
            "nothing to plan for",
            problems=[Problem(noun, "missing") for noun in missing],
            hint="meshwright plan gpt3-175b dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048",
        )
    if known_cluster(asked.model) and known_model(asked.cluster) and not known_model(asked.model):
        raise InputError(
            "MODEL and CLUSTER are swapped", hint=f"write them as `{asked.cluster} {asked.model}`"
        )
    together = Together()
    model = together.read(lambda: resolve_model(asked.model))
    cluster = together.read(lambda: resolve_cluster(asked.cluster, gpus=asked.gpus))
    training = together.read(
        lambda: resolve_training(
            None if asked.training is None else str(asked.training),
            global_batch=asked.global_batch,
            sequence_length=asked.sequence,
            precision=asked.precision,
            dropout=asked.dropout,
        )
    )
    together.read(lambda: catalog.load_stack(asked.stack) if asked.stack else None)
    together.read(lambda: trainer_named(asked.trainer) if asked.trainer else None)
    together.read(lambda: catalog.load_profile(asked.profile) if asked.profile else None)
    together.require()
    assert model is not None
    assert cluster is not None
    assert training is not None
    stack = asked.stack or (trainer_named(asked.trainer).stack if asked.trainer else None)
    question = complete_question(model.spec, cluster, training, stack=stack, profile=asked.profile)
    return question, (*model.assumptions, *_read_as(asked, training), *assumed_dropout(training, question))


def _read_as(asked: Asked, training: TrainingSpec) -> Iterator[str]:
    """How amounts were read that are no plain numbers."""
    batch, length = grouped(training.global_batch), grouped(training.sequence_length)
    if not _is_plain(asked.sequence):
        yield f"`--sequence {asked.sequence}` is {length} tokens"
    if not _is_plain(asked.global_batch):
        yield f"`--global-batch {asked.global_batch}` is {batch} sequences of {length} tokens"


def _is_plain(amount: int | str | None) -> bool:
    return not isinstance(amount, str) or amount.strip().replace(",", "").isdecimal()


def questions_of(asked: Asked) -> tuple[tuple[Question, ...], tuple[str, ...]]:
    """The question in every precision it names, and what had to be assumed to build it.

    Raises:
        InputError: an argument is missing, or a file or a name is wrong; everything that is, at once.
    """
    together = Together()
    precisions = together.read(lambda: read_precisions(asked.precision))
    several = asked.precision is not None and "," in asked.precision
    one = replace(asked, precision=precisions[0] if precisions else None) if several else asked
    found = together.read(lambda: question_of(one))
    together.require()
    assert found is not None
    question, assumptions = found
    return (questions_by_precision(question, precisions) if precisions else (question,)), assumptions


def read_precisions(text: str | None) -> tuple[Precision, ...]:
    """`bf16,fp8`, each once; a single one is left to the question, which knows its own default.

    Raises:
        InputError: names that are no precision.
    """
    names = list(dict.fromkeys((text or "").split(",")))
    if len(names) == 1:
        return ()
    known: tuple[Precision, ...] = get_args(Precision)
    problems = [
        Problem("--precision", f"`{name}` is not one of {', '.join(known)}{did_you_mean(name, known)}")
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError("--precision names what is none", problems=problems)
    return tuple(known[known.index(cast(Precision, name))] for name in names)
