"""Reads what is fine-tuned: task, rank, targets and the type of what is frozen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast, get_args

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.operators.parameters import matrix_names, missing_targets
from cost_models.specs.training import (
    DEFAULT_RANK,
    DEFAULT_TARGETS,
    Base,
    Group,
    Matrix,
    Reference,
    TrainingSpec,
    TuningSpec,
)
from cost_models.specs.transformer import TransformerSpec
from meshwright.inputs.options import Job

_TASKS = ("full", "lora", "qlora", "dpo", "reward")
_REFERENCES = get_args(Reference)
_BASES = ("bf16", *get_args(Base))
_TARGETS = (*get_args(Group), *get_args(Matrix))
_OF_PEFT = "_proj"
"""What peft's names of matrices end with: `q_proj` is `q`."""
_USUAL_STACK = "fsdp"
"""Hugging Face's trainers over `fully_shard`, with which most adapters are trained."""


def with_tuning(training: TrainingSpec, options: Job, model: TransformerSpec | None) -> TrainingSpec:
    """The job with the adapters that the flags ask for; where its file has some, flags replace single fields.

    Raises:
        InputError: words that are none, flags that contradict one another, targets that name no matrix of the model;
            all at once.
    """
    targets = options.targets.split(",") if isinstance(options.targets, str) else options.targets
    targets = targets and [one.removesuffix(_OF_PEFT) if one not in _TARGETS else one for one in targets]
    said = {"--rank": options.rank, "--targets": targets, "--base-precision": options.base_precision}
    problems = [
        *_unknown("--task", [options.task], _TASKS),
        *_unknown("--targets", targets or [], _TARGETS),
        *_unknown("--base-precision", [options.base_precision], _BASES),
        *_unknown("--reference", [options.reference], _REFERENCES),
    ]
    given = [flag for flag, value in said.items() if value is not None]
    task = options.task or (training.tuning.task if training.tuning else None)
    reference = training.reference if options.task is None else None
    reward = options.task == "reward" or (options.task is None and training.reward)
    if options.task in ("dpo", "reward"):
        task = "lora" if given else "full"
    if reward and (training.answers is not None or options.reference is not None):
        problems.append(Problem("--task reward", "has neither answers of its own nor a reference model"))
    elif options.task == "dpo":
        reference = cast(Reference, options.reference or "resident")
        if reference == "host" and (given or training.tuning):
            what = "beside adapters the reference is the model without them, so nothing need lie on the host"
            problems.append(Problem("--reference", f"{what}; leave it out"))
    elif options.reference is not None:
        problems.append(Problem("--reference", "is of preferences, and there are none; add --task dpo"))
    if given and task in (None, "full"):
        problems += [Problem(flag, "is of adapters, and there are none; add --task lora") for flag in given]
    if options.task == "qlora" and options.base_precision == "bf16":
        problems.append(Problem("--base-precision", "`qlora` keeps frozen matrices in nf4 or int8"))
    adapted = targets or (training.tuning.targets if training.tuning else ())
    known = tuple(one for one in adapted if one in _TARGETS)
    missing = missing_targets(model, known) if model and task != "full" else ()
    where = "--targets" if targets else "tuning.targets"
    problems += [Problem(where, f"`{model.name}` has no `{one}`") for one in missing if model]
    if problems:
        there = f"it has {_matrices(model)}" if missing and model else ""
        raise InputError("what is trained cannot be read", problems=problems, hint=there)
    if task in (None, "full"):
        job = {"tuning": None, "reference": reference, "reward": reward}
        return training.model_copy(update=job) if task else training
    fields: dict[str, Any] = training.tuning.model_dump() if training.tuning else {}
    fields |= {name: value for name, value in (("rank", options.rank), ("targets", targets)) if value}
    if options.base_precision is not None:
        fields["base"] = None if options.base_precision == "bf16" else options.base_precision
    elif options.task is not None:
        fields["base"] = (fields.get("base") or "nf4") if options.task == "qlora" else None
    return training.model_copy(update={"tuning": _spec(fields), "reference": reference, "reward": reward})


def _matrices(model: TransformerSpec) -> str:
    return ", ".join(f"`{one}`" for one in matrix_names(model))


def _spec(fields: dict[str, Any]) -> TuningSpec:
    if "targets" in fields:
        fields |= {"targets": tuple(fields["targets"])}
    return TuningSpec(**fields)


def _unknown(flag: str, words: Any, known: tuple[str, ...]) -> Iterator[Problem]:
    for word in words:
        if word is not None and word not in known:
            what = f"`{printable(str(word))}` is not one of {', '.join(known)}"
            yield Problem(flag, f"{what}{did_you_mean(str(word), known)}")


def fine_tuned(
    model: TransformerSpec, training: TrainingSpec, options: Job, *, named: bool
) -> tuple[TransformerSpec, str | None, tuple[str, ...]]:
    """The model without what fine-tuning leaves out, the usual stack unless another is `named`, and what was assumed.

    Raises:
        InputError: an encoder is asked for preferences or answers.
    """
    tuning = training.tuning
    if model.encoder is not None and (training.reference or training.reward or training.answers is not None):
        what = "answers (--answers)" if training.answers else "preferences (--task dpo)"
        what = "rewards (--task reward)" if training.reward else what
        raise InputError(
            f"`{model.name}` is an encoder, trained to guess masked tokens: there are no {what}",
            hint="--task full or lora trains it",
        )
    if training.reward:
        model = model.model_copy(update={"outputs": 1, "tied_embeddings": False, "further_tokens": 0})
    if tuning is None:
        return model, None, ()
    told = []
    if options.rank is None and tuning.rank == DEFAULT_RANK:
        told.append(f"`--rank {DEFAULT_RANK}`, as is usual")
    if options.targets is None and tuning.targets == DEFAULT_TARGETS:
        told.append(f"`--targets {DEFAULT_TARGETS[0]}`: {_matrices(model)}")
    stack = None
    if not named:
        stack = _USUAL_STACK
        told.append(f"`--stack {stack}`, as most adapters are trained with Hugging Face's trainers")
    if model.further_tokens:
        model = model.model_copy(update={"further_tokens": 0})
        told.append("blocks that predict further tokens are left out")
    return model, stack, tuple(told)
