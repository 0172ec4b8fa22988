"""The Python API: the verbs of the command line as functions on the same nouns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cost_models.asking import ask
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.specs.pools import MixedCluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.answers import Estimated, Planned
from meshwright.verbs.estimating import priced_layout
from meshwright.verbs.planning import restrictions_of
from planner.search import search
from planner.trainers import trainer_named


def plan(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    *,
    gpus: int | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    max_memory: str | None = None,
    trainer: str | None = None,
    top: int = 5,
    time_limit: float | None = None,
) -> Planned:
    """The best layouts of a model on a cluster, with the proof.

    Names and paths mean what they mean on the command line; `time_limit` is in seconds. A `trainer` is one whose rules
    the plan obeys (`--for`).

    Raises:
        InputError: what was asked is wrong.
        InfeasibleError: nothing fits.
    """
    stack = stack or (trainer_named(trainer).stack if trainer else None)
    question, assumptions = _question(model, cluster, training, gpus, stack, profile)
    restrictions = replace(restrictions_of((tuple(fix), tuple(forbid), max_memory)), trainer=trainer)
    result = search(
        question, top=top, restrictions=restrictions, time_limit=time_limit, keep_on_interrupt=True
    )
    return Planned(question=question, result=result, restrictions=restrictions, assumptions=assumptions)


def estimate(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    layout: str,
    *,
    gpus: int | None = None,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
) -> Estimated:
    """The price of one layout, written in its notation.

    Raises:
        InputError: what was asked is wrong, or the layout cannot run.
    """
    question, assumptions = _question(model, cluster, training, gpus, stack, profile)
    return Estimated(question=question, estimate=priced_layout(question, layout), assumptions=assumptions)


def _question(
    model: str | TransformerSpec,
    cluster: str | ClusterSpec | MixedCluster,
    training: str | TrainingSpec,
    gpus: int | None,
    stack: str | None,
    profile: str | HardwareProfile | None,
) -> tuple[Question, tuple[str, ...]]:
    loaded = resolve_model(model) if isinstance(model, str) else None
    spec = loaded.spec if loaded is not None else model
    assert isinstance(spec, TransformerSpec)
    place = resolve_cluster(cluster, gpus) if isinstance(cluster, str) else cluster
    job = resolve_training(training) if isinstance(training, str) else training
    question = ask(spec, place, job, stack=stack, profile=profile)
    return question, loaded.assumptions if loaded is not None else ()
