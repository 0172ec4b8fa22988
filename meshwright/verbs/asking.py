"""From flags to a question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cost_models.asking import ask
from cost_models.errors import InputError, Problem
from cost_models.question import Question
from cost_models.specs import catalog
from cost_models.specs.loading import resolve_cluster, resolve_model, resolve_training
from meshwright.together import Together


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line said; None where it said nothing."""

    model: str
    cluster: str
    gpus: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    precision: str | None = None
    training: Path | None = None
    stack: str | None = None
    profile: str | None = None


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
    together = Together()
    model = together.read(lambda: resolve_model(asked.model))
    cluster = together.read(lambda: resolve_cluster(asked.cluster, gpus=asked.gpus))
    training = together.read(
        lambda: resolve_training(
            None if asked.training is None else str(asked.training),
            global_batch=asked.global_batch,
            sequence_length=asked.sequence,
            precision=asked.precision,
        )
    )
    together.read(lambda: catalog.load_stack(asked.stack) if asked.stack else None)
    together.read(lambda: catalog.load_profile(asked.profile) if asked.profile else None)
    together.require()
    assert model is not None
    assert cluster is not None
    assert training is not None
    question = ask(model.spec, cluster, training, stack=asked.stack, profile=asked.profile)
    return question, model.assumptions
