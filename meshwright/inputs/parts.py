"""Reads what a job has of the parts of a model: two stacks' sequences, images before a decoder, what is frozen."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cost_models.errors import InputError, Problem
from cost_models.specs.kinds import frozen_parts
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

_OF_TOWERS = ("tower", "projector", "language")


def with_parts(
    model: TransformerSpec, training: TrainingSpec, *, mixed: bool
) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The job with tokens of a decoder behind an encoder, or images of a tower before one, and what was assumed.

    Raises:
        InputError: the model has no such part, or the job is none of such a model.
    """
    if problems := [Problem(*one) for one in (*_absent(model, training), *_freezing(model, training))]:
        raise InputError(f"`{model.name}` is not trained so", problems=problems)
    apart = "an encoder-decoder" if model.stacks else "a decoder behind a vision tower" if model.tower else ""
    apart = apart or ("a diffusion transformer" if model.diffusion else "")
    apart = apart or ("frozen in part" if training.freeze else "")
    odd = {
        "documents of unlike length (--lengths)": training.lengths,
        "preferences (--task dpo)": training.reference,
        "rewards (--task reward)": training.reward or None,
        "answers alone (--answers)": training.answers,
        "several kinds of GPUs": True if mixed and not (model.stacks or model.diffusion) else None,
    }
    unpriced = [what for what, said in odd.items() if said is not None]
    if apart and unpriced:
        raise InputError(f"`{model.name}` is {apart}, for which {unpriced[0]} have no price")
    if model.stacks is not None and training.target_length is None:
        length = training.sequence_length
        told = f"`--decoder-sequence {length}`: the decoder's sequences are as long as the encoder's"
        return training.model_copy(update={"target_length": length}), (told,)
    return _with_images(model, training)


def images_of(model: TransformerSpec, training: TrainingSpec) -> TransformerSpec:
    """A diffusion transformer with images of so many patches as a sequence of the job has tokens; others as they are.

    Raises:
        InputError: they are no square.
    """
    drawn, length = model.diffusion, training.sequence_length
    if drawn is None or length == drawn.tokens:
        return model
    side = math.isqrt(length)
    if side**2 != length:
        what = f"{length:,} tokens are no square of patches, which a sequence of `{model.name}` is"
        raise InputError(what, hint=f"leave out --sequence, or --sequence {side**2}")
    return model.model_copy(update={"diffusion": drawn.model_copy(update={"latent": side * drawn.patch})})


def _absent(model: TransformerSpec, training: TrainingSpec) -> Iterator[tuple[str, str]]:
    if model.stacks is None and training.target_length is not None:
        what = f"is of a decoder behind an encoder, and `{model.name}` is one stack"
        yield f"--decoder-sequence {training.target_length}", what
    if model.tower is None and training.images is not None:
        yield f"--images {training.images}", f"`{model.name}` has no vision tower"


def _freezing(model: TransformerSpec, training: TrainingSpec) -> Iterator[tuple[str, str]]:
    if not training.freeze:
        return
    if training.tuning is not None or training.reference is not None or training.reward:
        yield "--freeze", "is for --task full"
    if model.stacks is not None or model.further_tokens:
        yield "--freeze", "has no price for two stacks, nor for blocks that predict further tokens"
    for name in training.freeze:
        if name in _OF_TOWERS and model.tower is None:
            yield f"--freeze {name}", f"`{model.name}` has no vision tower; others are embedding and first=N"
    blocks = model.num_layers - (model.tower.layers if model.tower else 0)
    if training.first_frozen > blocks:
        yield f"--freeze first={training.first_frozen}", f"`{model.name}` has {blocks} such blocks"
    if frozen_parts(model, training).trains_nothing:
        yield "--freeze", "leaves nothing to train"


def _with_images(model: TransformerSpec, training: TrainingSpec) -> tuple[TrainingSpec, tuple[str, ...]]:
    if model.tower is None:
        return training, ()
    images, length, side = training.images or 1, training.sequence_length, model.tower.image
    tokens = images * model.tower.features
    if tokens >= length:
        what = f"{images} images of {model.tower.features} tokens leave no place for text in a sequence of {length:,}"
        raise InputError(what, hint="raise --sequence, or lower --images")
    told = f"`--images {images}` a sequence, of {side} x {side} pixels: {tokens:,} of its {length:,} tokens"
    return training.model_copy(update={"images": images}), (told,) if training.images is None else ()
