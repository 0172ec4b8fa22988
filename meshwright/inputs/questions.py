"""Build the question from the request: model, cluster, and training job with its documents, frozen parts and
adapters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast, get_args

from cost_models.base import Spec
from cost_models.defaults import assumed_dropout, assumed_padding, complete_question, questions_by_precision
from cost_models.documents import Document, printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem
from cost_models.files import catalog
from cost_models.files.loading import (
    LoadedModel,
    known_name,
    resolve_cluster,
    resolve_model,
    resolve_training,
)
from cost_models.files.reading import read_text
from cost_models.operators.parameters import matrix_names, missing_targets
from cost_models.question import Question
from cost_models.risk import EVEN, MOST_CONFIDENT, least_chance
from cost_models.specs.cluster import MIN_DEVICE_MEMORY, ClusterSpec, MixedCluster, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.kinds import frozen_parts
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import (
    DEFAULT_RANK,
    DEFAULT_TARGETS,
    Base,
    Group,
    LengthsSpec,
    Matrix,
    Packing,
    Reference,
    TrainingSpec,
    TuningSpec,
    apply_changes,
    grouped_lengths,
    truncated_share,
)
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import grouped, parse_bytes
from meshwright.inputs.goals import choice_of
from meshwright.inputs.options import Job, Request
from meshwright.inputs.problems import Problems, not_one_of, refuse, require_given
from planner.formats.trainers import require_own_stack, trainer_named

T = TypeVar("T", bound=Spec)
MOST_HOST_MEMORY = 1e15
"""Largest memory of a host in bytes; a larger input has the wrong unit."""
_WORTH_SAYING = 0.001
"""Share of documents cut to the sequence length from which an assumption mentions them."""


def question_of(request: Request, own_stack: StackSpec | None = None) -> tuple[Question, tuple[str, ...]]:
    """Build the question of a request, with the assumptions made; `own_stack` is a stack that has no catalogue name.

    Raises:
        InputError: an input is missing, or a file or a name is wrong; everything that is, at once.
    """
    require_nouns(request)
    problems = Problems()
    model = problems.read(loaded_model, request.model)
    count = problems.read(one_count, request.gpus)
    cluster = problems.read(cluster_of, request.cluster, count, request.host_memory)
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
    spec, training = apply_changes(model.spec, training, request.changes)
    stack = own_stack or request.stack or (trainer.stack if trainer else None)
    pools = cluster.pools if isinstance(cluster, MixedCluster) else (cluster,)
    on_cpu = any(one.gpu.kind == "cpu" for one in pools)
    spec, training, parted = with_parts(spec, training, mixed=isinstance(cluster, MixedCluster))
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


def questions_of(request: Request) -> tuple[Question, tuple[Precision, ...], tuple[str, ...]]:
    """Build the question of a request that may name several precisions: the question in the first of them, the
    precisions to choose from (empty if one is named), and the assumptions made.

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
    questions_by_precision(question, precisions)  # which refuses what a GPU cannot compute in
    return question, precisions, assumptions


def with_dropout_of(model: LoadedModel, training: TrainingSpec) -> tuple[TrainingSpec, tuple[str, ...]]:
    """Training job with the dropout of the model's config, unless the job states a dropout; and a sentence on it."""
    if training.dropout is not None or model.dropout is None:
        return training, ()
    share, key = model.dropout
    words = f"dropout {share:g}, as `{key}` of the model's config says; --dropout says another"
    return training.model_copy(update={"dropout": share}), (words,)


def cluster_of(
    cluster: str | ClusterSpec | MixedCluster | Sequence[str | ClusterSpec],
    gpus: int | None = None,
    host_memory: str | None = None,
) -> ClusterSpec | MixedCluster:
    """Load a cluster from its name or file, sized to `gpus`, with `host_memory` (such as `128GiB`) on every host; a
    spec keeps the GPUs it states. Raises InputError."""
    assert isinstance(cluster, (str, ClusterSpec, MixedCluster)), "of several each is read"
    problems = Problems()
    loaded = problems.read(lambda: resolve_cluster(cluster, gpus) if isinstance(cluster, str) else cluster)
    size = problems.read(_read_host_memory, host_memory)
    problems.require()
    update: dict[str, Any] = {} if size is None else {"host_memory": size}
    if isinstance(loaded, MixedCluster):
        update = {"pools": tuple(pool.model_copy(update=update) for pool in loaded.pools)}
    return loaded.model_copy(update=update)


def single_count(gpus: int | str | Sequence[int] | None) -> int | None:
    """Number of GPUs from a number or its text; None if several counts, or none, are given."""
    if not isinstance(gpus, str):
        return gpus if isinstance(gpus, int) else None
    word = gpus.strip()
    return int(word) if word.removeprefix("-").isdecimal() and len(word) < 100 else None


def one_count(gpus: int | str | Sequence[int] | None, hint: str = "") -> int | None:
    """Number of GPUs of a question, from one number or its text; None if not given. Raises InputError for several."""
    count = single_count(gpus)
    if gpus is not None and count is None:
        raise InputError(f"--gpus: `{printable(str(gpus))}` is not one number of GPUs", hint=hint)
    return count


def _read_host_memory(text: str | None) -> float | None:
    """Parse the size of each host's memory, such as `128GiB`, into bytes; None if not given. Raises InputError."""
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
    """Parse several precisions, such as `bf16,fp8`; empty for a single precision, which the question parses itself.

    Raises:
        InputError: names that are no precision.
    """
    names = cast("list[Precision]", list(dict.fromkeys((text or "").split(","))))
    if len(names) == 1:
        return ()
    choices = get_args(Precision)
    unknown = [not_one_of(name, choices) for name in names if name not in choices]
    refuse("--precision names what is none", [Problem("--precision", reason) for reason in unknown])
    return tuple(names)


def read_confidence(amount: float | str | None) -> float:
    """Parse the minimum probability that a layout fits in memory, `95%` or 0.95; the default just allows predicted
    peaks that fill memory.

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
    lowest, low = least_chance(EVEN), f"{100 * least_chance(EVEN):.3g}%"
    if not lowest <= share <= MOST_CONFIDENT:
        reason = f"`{text}` is not a probability from {low} to {MOST_CONFIDENT:.2%}"
        hint = f"write it as `95%` or `0.95`; the default, {low}, is that of a peak which fills the memory"
        raise InputError(f"--confidence: {reason}", hint=hint)
    return share


def require_profile(profile: str | HardwareProfile | None) -> None:
    """Raise InputError if a hardware profile is named that does not exist."""
    if isinstance(profile, str):
        catalog.load_profile(profile)


def in_words(values: str | float | Sequence[str] | Sequence[int] | None) -> str | None:
    """Write a value, or several between commas, as a flag takes them: `64,128`; None stays None."""
    if values is None or isinstance(values, str):
        return values
    return str(values) if isinstance(values, (int, float)) else ",".join(map(str, values))


def require_nouns(request: Request) -> None:
    """Raise InputError if model or cluster is missing, or if the two are swapped."""
    model, cluster = request.model, request.cluster
    hint = "meshwright plan gpt3-175b dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048"
    require_given({"MODEL": model, "CLUSTER": cluster}, "nothing to plan for", hint)
    if not isinstance(model, str) or not isinstance(cluster, str):
        return
    if known_name(model, "clusters") and known_name(cluster, "models") and not known_name(model, "models"):
        raise InputError("MODEL and CLUSTER are swapped", hint=f"write them as `{cluster} {model}`")


def loaded_model(model: str | TransformerSpec | RecommenderSpec | Document) -> LoadedModel:
    """Load a transformer from its name, its file, a document already read from a file, or its spec."""
    assert not isinstance(model, RecommenderSpec), "another family reads it"
    return resolve_model(model) if isinstance(model, (str, Document)) else LoadedModel(spec=model)


def _training(request: Request, model: TransformerSpec | None) -> TrainingSpec:
    """Read the training job of a request, with its single flags; the sequence of a diffusion transformer is one
    image."""
    image = model.diffusion.tokens if model and model.diffusion and request.training is None else None
    fields = ("global_batch", "images", "dropout", "optimizer", "state_dtype", "answers")
    amounts = {name: getattr(request, name) for name in fields} | {
        "sequence_length": image if request.sequence is None else request.sequence,
        "target_length": request.decoder_sequence,
        "freeze": request.freeze.split(",") if isinstance(request.freeze, str) else request.freeze,
        "precision": in_words(request.precision),
        "optimizer_in_backward": request.optimizer_in_backward or None,
    }
    return job_of(request.training, TrainingSpec, resolve_training, amounts, "a transformer")


def job_of(
    job: object, kind: type[T], resolve: Callable[..., T], amounts: Mapping[str, object], noun: str
) -> T:
    """Training job read from a file, taken from a spec or from a mapping of its fields, or made from `amounts` alone;
    amounts that are given override the job's fields.

    Raises:
        InputError: a file or an amount that cannot be read, or a spec of another kind than that of the model (`noun`).
    """
    if isinstance(job, Spec) and not isinstance(job, kind):
        other = "a recommender" if isinstance(job, RecommenderTraining) else "a transformer"
        raise InputError(f"`training` is {other}'s, the model is {noun}")
    if isinstance(job, Mapping):
        return resolve(
            None, **{**job, **{name: value for name, value in amounts.items() if value is not None}}
        )
    if not isinstance(job, kind):
        return resolve(None if job is None else str(job), **amounts)
    fields = {name: amount for name, amount in amounts.items() if amount is not None}
    return resolve(None, **(job.model_dump(exclude_unset=True) | fields)) if fields else job


def _read_as(request: Request, training: TrainingSpec) -> Iterator[str]:
    """Sentences on how `--sequence` and `--global-batch` were read, if they are not plain numbers."""
    tokens = f"{grouped(training.sequence_length)} tokens"
    batch = f"{grouped(training.global_batch)} sequences of {tokens}"
    amounts = ("sequence", request.sequence, tokens), ("global-batch", request.global_batch, batch)
    for name, amount, words in amounts:
        if isinstance(amount, str) and not amount.strip().replace(",", "").isdecimal():
            yield f"`--{name} {amount}` is {words}"


_MOST_BYTES = 100_000_000
"""Largest file of lengths in bytes: some ten million documents."""
_HINT = "write --lengths 'lognormal(600,0.9)': mean in tokens, deviation of the logarithms; or name a file of lengths"
_LOGNORMAL = re.compile(r"\s*lognormal\s*\(\s*([^,()]+),([^,()]+)\)\s*")


def with_lengths(training: TrainingSpec, options: Job) -> TrainingSpec:
    """Training job with the document lengths that `--lengths` gives; `--packing` alone changes the packing of the
    job's documents.

    Raises:
        InputError: lengths that cannot be read, or are longer than a sequence.
    """
    words: tuple[Packing, ...] = get_args(Packing)
    lengths, answers, sequence = training.lengths, training.answers, training.sequence_length
    if options.lengths is not None:
        lengths, share = _read_lengths(options.lengths, sequence)
        answers = share if answers is None else answers
    if options.packing is not None:
        packing = choice_of(words, options.packing, "--packing", "cannot tell what is made of documents")
        if lengths is None:
            raise InputError("--packing: says what is made of documents, and there are none", hint=_HINT)
        lengths = lengths.model_copy(update={"packing": packing})
    if lengths is not None and (longest := max(lengths.documents, default=0)) > sequence:
        hint = f"--sequence {longest}, or cut it in the file"
        raise InputError(f"--lengths: {_too_long(longest, sequence)}", hint=hint)
    return training.model_copy(update={"lengths": lengths, "answers": answers})


def _too_long(document: int, sequence: int) -> str:
    """Message that a document has more tokens than a sequence."""
    return f"a document of {grouped(document)} tokens is longer than a sequence of {grouped(sequence)}"


def _read_lengths(source: str | LengthsSpec, sequence: int) -> tuple[LengthsSpec, float | None]:
    """Read document lengths in tokens, and the share of these tokens that are answers (None if the source does not
    say)."""
    if isinstance(source, LengthsSpec):
        return source, None
    if match := _LOGNORMAL.fullmatch(source):
        with suppress(ValueError):
            return LengthsSpec(lognormal=(float(match[1]), float(match[2]))), None
    if "(" in source:
        raise InputError(f"--lengths: `{printable(source)}` is no distribution of lengths", hint=_HINT)
    try:
        lines = read_text(source, most_bytes=_MOST_BYTES).splitlines()
    except InputError as error:
        raise InputError(f"--lengths: {error.headline}", hint=_HINT) from None
    documents, answers = _of_lines(source, lines, sequence)
    return LengthsSpec(documents=grouped_lengths(documents)), answers


def _of_lines(path: str, lines: list[str], sequence: int) -> tuple[list[int], float | None]:
    """Parse lines of a file into tokens of each document, and the share of all tokens in the column `answer` (None
    without it).

    The first column holds tokens of documents or, headed `prompt`, tokens before their answers.
    """
    numbered = [(number, line.split(",")) for number, line in enumerate(lines, 1) if line.strip(' ,;\t"')]
    rows = [(number, [word.strip(' \t"') for word in words]) for number, words in numbered]
    heading = [word.lower() for word in rows.pop(0)[1]] if rows and rows[0][1][0][:1].isalpha() else []
    column = heading.index("answer") if "answer" in heading else None
    documents, answer_tokens, problems = list[int](), 0, list[Problem]()
    for number, words in rows:
        cells = [words[0]] if column is None else [words[0], *(words[column : column + 1] or [""])]
        errors = [word for word in cells if not re.fullmatch(r"0*[0-9]{1,9}", word, re.ASCII)]
        counts = [0 if errors else int(word) for word in cells]
        total, answer = sum(counts) if heading[:1] == ["prompt"] else counts[0], sum(counts[1:])
        reasons = {
            f"`{printable((errors or cells)[0][:40])}` is no number of tokens above zero": bool(errors)
            or not total,
            f"an answer of {grouped(answer)} tokens in a document of {grouped(total)}": answer > total,
            _too_long(total, sequence): total > sequence,
        }
        problems += [Problem(f"{path}:{number}", reason) for reason, holds in reasons.items() if holds][:1]
        documents.append(total)
        answer_tokens += answer
    if problems or not documents or (column is not None and not answer_tokens):
        lacks = "length" if not documents else "answer"
        longest = max(documents, default=0)
        hint = f"--sequence {longest}, or cut what is longer"
        raise InputError(
            "lengths cannot be read" if problems else f"--lengths: {path} holds no {lacks}",
            problems=problems[:MOST_PROBLEMS],
            more=max(0, len(problems) - MOST_PROBLEMS),
            hint=hint if longest > sequence else "write a number of tokens on each line",
        )
    return documents, None if column is None else answer_tokens / sum(documents)


_OF_TOWERS = ("tower", "projector", "language")


def with_parts(
    model: TransformerSpec, training: TrainingSpec, *, mixed: bool
) -> tuple[TransformerSpec, TrainingSpec, tuple[str, ...]]:
    """Model with images of the job's sequence length (a diffusion transformer has a token for each patch), training job
    completed for models of two parts, such as the decoder's sequence length, and sentences on what was assumed.

    Raises:
        InputError: the model has no such part, the job is none of such a model, or a sequence is no square image.
    """
    image, length = model.diffusion, training.sequence_length
    if image is not None and length != image.tokens:
        side = math.isqrt(length)
        if side**2 != length:
            text = f"{length:,} tokens are no square of patches, which a sequence of `{model.name}` is"
            raise InputError(text, hint=f"leave out --sequence, or --sequence {side**2}")
        model = model.model_copy(
            update={"diffusion": image.model_copy(update={"latent": side * image.patch})}
        )
    refuse(f"`{model.name}` is not trained so", [Problem(*one) for one in _wrong_parts(model, training)])
    kinds = {
        "an encoder-decoder": model.stacks,
        "a decoder behind a vision tower": model.tower,
        "a diffusion transformer": model.diffusion,
        "frozen in part": training.freeze,
    }
    unpriced = {
        "documents of unlike length (--lengths)": training.lengths is not None,
        "preferences (--task dpo)": training.reference is not None,
        "rewards (--task reward)": training.reward,
        "answers alone (--answers)": training.answers is not None,
        "several kinds of GPUs": mixed and not (model.stacks or model.diffusion),
    }
    kind, what = (next((name for name, holds in one.items() if holds), "") for one in (kinds, unpriced))
    if kind and what:
        raise InputError(f"`{model.name}` is {kind}, for which {what} have no price")
    tower = model.tower
    if model.stacks is not None and training.target_length is None:
        note = f"`--decoder-sequence {length}`: the decoder's sequences are as long as the encoder's"
        return model, training.model_copy(update={"target_length": length}), (note,)
    if tower is None:
        return model, training, ()
    images, side = training.images or 1, tower.image
    tokens = images * tower.features
    if tokens >= length:
        reason = f"tokens leave no place for text in a sequence of {length:,}"
        hint = "raise --sequence, or lower --images"
        raise InputError(f"{images} images of {tower.features} {reason}", hint=hint)
    note = f"`--images {images}` a sequence, of {side} x {side} pixels: {tokens:,} of its {length:,} tokens"
    notes = (note,) if training.images is None else ()
    return model, training.model_copy(update={"images": images}), notes


def _wrong_parts(model: TransformerSpec, training: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Flags that the model cannot take (such as `--images` without a vision tower, or parts that cannot be frozen),
    each with the reason."""
    name = model.name
    if model.stacks is None and training.target_length is not None:
        reason = f"is of a decoder behind an encoder, and `{name}` is one stack"
        yield f"--decoder-sequence {training.target_length}", reason
    if model.tower is None and training.images is not None:
        yield f"--images {training.images}", f"`{name}` has no vision tower"
    if not training.freeze:
        return
    if training.tuning is not None or training.reference is not None or training.reward:
        yield "--freeze", "is for --task full"
    if model.stacks is not None or model.further_tokens:
        yield "--freeze", "has no price for two stacks, nor for blocks that predict further tokens"
    for part in _OF_TOWERS if model.tower is None else ():
        if part in training.freeze:
            yield f"--freeze {part}", f"`{name}` has no vision tower; others are embedding and first=N"
    blocks = model.num_layers - (model.tower.layers if model.tower else 0)
    if training.first_frozen > blocks:
        yield f"--freeze first={training.first_frozen}", f"`{name}` has {blocks} such blocks"
    if frozen_parts(model, training).trains_nothing:
        yield "--freeze", "leaves nothing to train"


_TASKS = ("full", "lora", "qlora", "dpo", "reward")
_REFERENCES = get_args(Reference)
_BASES = ("bf16", *get_args(Base))
_TARGETS = (*get_args(Group), *get_args(Matrix))
_OF_PEFT = "_proj"
"""Suffix of matrix names in the library peft: its `q_proj` is `q` here."""
_USUAL_STACK = "fsdp"
"""Default stack for adapters: Hugging Face's trainers over `fully_shard`."""


def with_tuning(training: TrainingSpec, options: Job, model: TransformerSpec | None) -> TrainingSpec:
    """Training job with the adapters that the flags describe; flags override single fields of the job's own adapters.

    Raises:
        InputError: words that are none, flags that contradict one another, targets that name no matrix of the model;
            all at once.
    """
    targets = options.targets.split(",") if isinstance(options.targets, str) else options.targets
    targets = targets and [one.removesuffix(_OF_PEFT) if one not in _TARGETS else one for one in targets]
    values = {"--rank": options.rank, "--targets": targets, "--base-precision": options.base_precision}
    flags = [flag for flag, value in values.items() if value is not None]
    tuning, words = training.tuning, [("--task", options.task, _TASKS)]
    words += [("--targets", target, _TARGETS) for target in targets or ()]
    words += [("--base-precision", options.base_precision, _BASES)]
    words += [("--reference", options.reference, _REFERENCES)]
    problems = [
        Problem(flag, not_one_of(word, choices))
        for flag, word, choices in words
        if word is not None and word not in choices
    ]
    task = options.task or (tuning.task if tuning else None)
    reference = training.reference if options.task is None else None
    reward = options.task == "reward" or (options.task is None and training.reward)
    if options.task in ("dpo", "reward"):
        task = "lora" if flags else "full"
    if reward and (training.answers is not None or options.reference is not None):
        problems.append(Problem("--task reward", "has neither answers of its own nor a reference model"))
    elif options.task == "dpo":
        reference = cast(Reference, options.reference or "resident")
        if reference == "host" and (flags or tuning):
            text = "beside adapters the reference is the model without them, so nothing need lie on the host"
            problems.append(Problem("--reference", f"{text}; leave it out"))
    elif options.reference is not None:
        problems.append(Problem("--reference", "is of preferences, and there are none; add --task dpo"))
    if flags and task in (None, "full"):
        problems += [Problem(flag, "is of adapters, and there are none; add --task lora") for flag in flags]
    if options.task == "qlora" and options.base_precision == "bf16":
        problems.append(Problem("--base-precision", "`qlora` keeps frozen matrices in nf4 or int8"))
    hint, adapted = "", targets or (tuning.targets if tuning else ())
    names = tuple(name for name in adapted if name in _TARGETS)
    if model and task != "full" and (missing := missing_targets(model, names)):
        place, hint = "--targets" if targets else "tuning.targets", f"it has {_matrices(model)}"
        problems += [Problem(place, f"`{model.name}` has no `{name}`") for name in missing]
    refuse("what is trained cannot be read", problems, hint)
    job: dict[str, Any] = {"tuning": None, "reference": reference, "reward": reward}
    if task in (None, "full"):
        return training.model_copy(update=job) if task else training
    fields: dict[str, Any] = tuning.model_dump() if tuning else {}
    given = {"rank": options.rank, "targets": tuple(targets or ())}
    fields |= {name: value for name, value in given.items() if value}
    if options.base_precision is not None:
        fields["base"] = None if options.base_precision == "bf16" else options.base_precision
    elif options.task is not None:
        fields["base"] = (fields.get("base") or "nf4") if options.task == "qlora" else None
    return training.model_copy(update=job | {"tuning": TuningSpec(**fields)})


def _matrices(model: TransformerSpec) -> str:
    """Names of the model's matrices that can have adapters, as text."""
    return ", ".join(f"`{name}`" for name in matrix_names(model))


def fine_tuned(
    model: TransformerSpec, training: TrainingSpec, options: Job, *, has_stack: bool
) -> tuple[TransformerSpec, str | None, tuple[str, ...]]:
    """Model adapted to fine-tuning, default stack for adapters (None if a stack is given or no adapters are trained),
    and sentences on assumptions.

    Raises:
        InputError: an encoder is asked for preferences or answers.
    """
    tuning = training.tuning
    if model.encoder is not None and (training.reference or training.reward or training.answers is not None):
        unit = "answers (--answers)" if training.answers else "preferences (--task dpo)"
        unit = "rewards (--task reward)" if training.reward else unit
        reason = f"is an encoder, trained to guess masked tokens: there are no {unit}"
        raise InputError(f"`{model.name}` {reason}", hint="--task full or lora trains it")
    if training.reward:
        model = model.model_copy(update={"outputs": 1, "tied_embeddings": False, "further_tokens": 0})
    if tuning is None:
        return model, None, ()
    stack = None if has_stack else _USUAL_STACK
    notes = {
        f"`--rank {DEFAULT_RANK}`, as is usual": options.rank is None and tuning.rank == DEFAULT_RANK,
        f"`--targets {DEFAULT_TARGETS[0]}`: {_matrices(model)}": options.targets is None
        and tuning.targets == DEFAULT_TARGETS,
        f"`--stack {stack}`, as most adapters are trained with Hugging Face's trainers": not has_stack,
        "blocks that predict further tokens are left out": bool(model.further_tokens),
    }
    model = model.model_copy(update={"further_tokens": 0}) if model.further_tokens else model
    return model, stack, tuple(note for note, holds in notes.items() if holds)
