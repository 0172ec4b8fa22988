"""Builds the question from what the user names: a model, a cluster, a training job and the options of all three."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast, get_args

from cost_models.base import Spec
from cost_models.defaults import assumed_dropout, assumed_padding, complete_question, questions_by_precision
from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.loading import (
    LoadedModel,
    known_name,
    resolve_cluster,
    resolve_model,
    resolve_training,
)
from cost_models.question import Question
from cost_models.risk import EVEN, MOST_CONFIDENT, least_chance
from cost_models.specs.cluster import MIN_DEVICE_MEMORY, ClusterSpec, MixedCluster, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec, apply_changes, truncated_share
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import grouped, parse_bytes
from meshwright.inputs.jobs import fine_tuned, images_of, with_lengths, with_parts, with_tuning
from meshwright.inputs.options import Request
from meshwright.inputs.problems import Problems, not_one_of
from planner.formats.trainers import require_own_stack, trainer_named

T = TypeVar("T", bound=Spec)
MOST_HOST_MEMORY = 1e15
"""Bytes beyond which somebody mistook the unit."""
_WORTH_SAYING = 0.001
"""Share of documents that are cut from which an assumption says it."""


def question_of(request: Request, own_stack: StackSpec | None = None) -> tuple[Question, tuple[str, ...]]:
    """Build the question, and say what had to be assumed for it; `own_stack` is a stack that has no name here.

    Raises:
        InputError: an input is missing, or a file or a name is wrong; everything that is, at once.
    """
    require_nouns(request)
    problems = Problems()
    model = problems.read(loaded_model, request.model)
    cluster = problems.read(lambda: cluster_of(request.cluster, one_count(request.gpus)))
    host_memory = problems.read(read_host_memory, request.host_memory)
    job = training = problems.read(_training, request, model.spec if model else None)
    if job is not None:
        training = problems.read(with_tuning, job, request, model.spec if model else None)
        training = problems.read(with_lengths, training or job, request)
    base = own_stack or problems.read(lambda: catalog.load_stack(request.stack) if request.stack else None)
    trainer = problems.read(lambda: trainer_named(request.trainer) if request.trainer else None)
    if base is not None and trainer is not None:
        problems.read(require_own_stack, str(request.trainer), base)
    problems.read(require_profile, request.profile)
    confidence = problems.read(read_confidence, request.confidence)
    problems.require()
    cluster = with_host_memory(cluster, host_memory)
    spec, training = apply_changes(model.spec, training, request.changes)
    stack = own_stack or request.stack or (trainer.stack if trainer else None)
    pools = cluster.pools if isinstance(cluster, MixedCluster) else (cluster,)
    on_cpu = any(one.gpu.kind == "cpu" for one in pools)
    spec = images_of(spec, training)
    training, parted = with_parts(spec, training, mixed=isinstance(cluster, MixedCluster))
    spec, default_stack, tuned = fine_tuned(spec, training, request, has_stack=bool(stack) or on_cpu)
    stack = stack or default_stack
    training, dropped = with_dropout_of(model, training)
    question = complete_question(spec, cluster, training, stack=stack, profile=request.profile)
    question = replace(question, confidence=confidence)
    assumed = (*assumed_dropout(training, question), *assumed_padding(spec, question))
    cut = truncated_share(training.lengths, training.sequence_length) if training.lengths else 0.0
    documents = f"{100 * cut:.1f} % of documents are longer than a sequence, and cut to it"
    notes = (*parted, *tuned, *[documents] * (cut >= _WORTH_SAYING), *dropped, *assumed)
    return question, (*model.assumptions, *_read_as(request, training), *notes)


def questions_of(request: Request) -> tuple[tuple[Question, ...], tuple[str, ...]]:
    """Build the question in every precision that the inputs name, and say what had to be assumed.

    Raises:
        InputError: an input is missing, or a file or a name is wrong; everything that is, at once.
    """
    problems, words = Problems(), in_words(request.precision) or ""
    precisions = problems.read(read_precisions, words)
    if "," in words:
        request = replace(request, precision=precisions[0] if precisions else None)
    answer = problems.read(question_of, request)
    problems.require()
    question, assumptions = answer
    return (questions_by_precision(question, precisions) if precisions else (question,)), assumptions


def with_dropout_of(model: LoadedModel, training: TrainingSpec) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The training job with the dropout of the model's config where it says none itself, and that in words."""
    if training.dropout is not None or model.dropout is None:
        return training, ()
    share, key = model.dropout
    words = f"dropout {share:g}, as `{key}` of the model's config says; --dropout says another"
    return training.model_copy(update={"dropout": share}), (words,)


def cluster_of(
    cluster: str | ClusterSpec | MixedCluster | Sequence[str | ClusterSpec], gpus: int | None = None
) -> ClusterSpec | MixedCluster:
    """Load a cluster from its name, its file or itself. A cluster that is a value has the GPUs that it states."""
    assert isinstance(cluster, (str, ClusterSpec, MixedCluster)), "of several each is read"
    return resolve_cluster(cluster, gpus) if isinstance(cluster, str) else cluster


def single_count(gpus: int | str | Sequence[int] | None) -> int | None:
    """Number of GPUs; None if there are several to choose from."""
    if not isinstance(gpus, str):
        return gpus if isinstance(gpus, int) else None
    word = gpus.strip()
    return int(word) if word.removeprefix("-").isdecimal() and len(word) < 100 else None


def one_count(gpus: int | str | Sequence[int] | None, hint: str = "") -> int | None:
    """The number of GPUs of a question that takes one. Raises InputError."""
    count = single_count(gpus)
    if gpus is not None and count is None:
        raise InputError(f"--gpus: `{printable(str(gpus))}` is not one number of GPUs", hint=hint)
    return count


def whole_cluster(request: Request) -> ClusterSpec | MixedCluster:
    """The cluster that the inputs name, in whole nodes."""
    return with_host_memory(cluster_of(request.cluster), read_host_memory(request.host_memory))


def with_host_memory(cluster: ClusterSpec | MixedCluster, size: float | None) -> ClusterSpec | MixedCluster:
    """The cluster with as much memory in every host; as it is where none is given."""
    update: dict[str, Any] = {} if size is None else {"host_memory": size}
    if isinstance(cluster, MixedCluster):
        update = {"pools": tuple(pool.model_copy(update=update) for pool in cluster.pools)}
    return cluster.model_copy(update=update)


def read_host_memory(text: str | None) -> float | None:
    """Read `128GiB`. Raises InputError."""
    if text is None:
        return None
    hint = "write it like `128GiB` or `2TB`"
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise InputError(f"--host-memory: {error}", hint=hint) from None
    if not MIN_DEVICE_MEMORY <= size <= MOST_HOST_MEMORY:
        raise InputError(f"--host-memory: `{printable(text)}` is no memory of a host", hint=hint)
    return size


def read_precisions(text: str | None) -> tuple[Precision, ...]:
    """Parse `bf16,fp8` into distinct precisions; empty for a single one, which the question reads itself.

    Raises:
        InputError: names that are no precision.
    """
    names = cast("list[Precision]", list(dict.fromkeys((text or "").split(","))))
    if len(names) == 1:
        return ()
    choices = get_args(Precision)
    if problems := [
        Problem("--precision", not_one_of(name, choices)) for name in names if name not in choices
    ]:
        raise InputError("--precision names what is none", problems=problems)
    return tuple(names)


def read_confidence(amount: float | str | None) -> float:
    """Read `95%` or 0.95; unless it is said, predictions are taken as they are.

    Raises:
        InputError: it is no share, or outside what can be asked for.
    """
    if amount is None:
        return EVEN
    text = str(amount).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    lowest, default = least_chance(EVEN), f"{100 * least_chance(EVEN):.3g}%"
    if not lowest <= share <= MOST_CONFIDENT:
        reason = f"`{text}` is not a probability from {default} to {MOST_CONFIDENT:.2%}"
        hint = (
            f"write it as `95%` or `0.95`; the default, {default}, is that of a peak which fills the memory"
        )
        raise InputError(f"--confidence: {reason}", hint=hint)
    return share


def require_profile(profile: str | HardwareProfile | None) -> None:
    """Raises InputError where a profile is named that is not there."""
    if isinstance(profile, str):
        catalog.load_profile(profile)


def in_words(values: str | float | Sequence[str] | Sequence[int] | None) -> str | None:
    """Write one value or several as a flag has them: `64,128`."""
    if values is None or isinstance(values, str):
        return values
    return str(values) if isinstance(values, (int, float)) else ",".join(map(str, values))


def require_nouns(request: Request) -> None:
    """Raises InputError where model or cluster are missing, or each in the place of the other."""
    nouns = {"MODEL": request.model, "CLUSTER": request.cluster}
    if missing := [Problem(noun, "missing") for noun, value in nouns.items() if not value]:
        hint = "meshwright plan gpt3-175b dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048"
        raise InputError("nothing to plan for", problems=missing, hint=hint)
    model, cluster = request.model, request.cluster
    if not isinstance(model, str) or not isinstance(cluster, str):
        return
    if known_name(model, "clusters") and known_name(cluster, "models") and not known_name(model, "models"):
        raise InputError("MODEL and CLUSTER are swapped", hint=f"write them as `{cluster} {model}`")


def loaded_model(model: str | TransformerSpec | RecommenderSpec | Document) -> LoadedModel:
    """A transformer by its name, its file, what that holds, or itself."""
    assert not isinstance(model, RecommenderSpec), "another family reads it"
    return resolve_model(model) if isinstance(model, (str, Document)) else LoadedModel(spec=model)


def _training(request: Request, model: TransformerSpec | None) -> TrainingSpec:
    """The job, with the amounts that were given beside it; a sequence of diffusion is an image."""
    image = model.diffusion.tokens if model and model.diffusion and request.training is None else None
    amounts = {
        "global_batch": request.global_batch,
        "sequence_length": image if request.sequence is None else request.sequence,
        "target_length": request.decoder_sequence,
        "images": request.images,
        "freeze": request.freeze.split(",") if isinstance(request.freeze, str) else request.freeze,
        "precision": in_words(request.precision),
        "dropout": request.dropout,
        "optimizer": request.optimizer,
        "optimizer_in_backward": request.optimizer_in_backward or None,
        "state_dtype": request.state_dtype,
        "answers": request.answers,
    }
    return job_of(request.training, TrainingSpec, resolve_training, amounts, "a transformer")


def job_of(
    job: object, kind: type[T], resolve: Callable[..., T], amounts: Mapping[str, object], noun: str
) -> T:
    """Training job from a file, a spec of this kind, or amounts alone; amounts that were given replace its fields.

    Raises:
        InputError: a file or an amount that cannot be read, or a spec of another kind than that of the model (`noun`).
    """
    if isinstance(job, Spec) and not isinstance(job, kind):
        other = "a recommender" if isinstance(job, RecommenderTraining) else "a transformer"
        raise InputError(f"`training` is {other}'s, the model is {noun}")
    if not isinstance(job, kind):
        return resolve(None if job is None else str(job), **amounts)
    fields = {name: amount for name, amount in amounts.items() if amount is not None}
    return resolve(None, **(job.model_dump(exclude_unset=True) | fields)) if fields else job


def _read_as(request: Request, training: TrainingSpec) -> Iterator[str]:
    """Say how amounts were read that are no plain numbers."""
    tokens = f"{grouped(training.sequence_length)} tokens"
    batch = f"{grouped(training.global_batch)} sequences of {tokens}"
    for name, amount, words in (
        ("sequence", request.sequence, tokens),
        ("global-batch", request.global_batch, batch),
    ):
        if isinstance(amount, str) and not amount.strip().replace(",", "").isdecimal():
            yield f"`--{name} {amount}` is {words}"
