"""Bytes that embedding, final norm and a loss in chunks keep or hold, and those of a norm anywhere."""

from __future__ import annotations

from cost_models.arrays import Array
from cost_models.operators.chunked_loss import compiles_chunks
from cost_models.operators.parameters import padded_vocabulary
from cost_models.question import Question
from cost_models.specs.model.transformer_shape import Norm

_FP32 = 4.0


def head_vectors(question: Question) -> float:
    """Bytes that norms before the output matrix keep for each number of the stream, and what is before these."""
    model, element = question.model, question.training.element_bytes
    transforms = model.encoder is not None and model.encoder.head_transform
    return norm_bytes(question, model.norm) * (model.ends_in_norm + transforms) + element * (
        2 * transforms + (model.diffusion is not None)
    )


def embedding_vectors(question: Question) -> float:
    """Bytes that an encoder's norm behind the embedding keeps for each number of the stream."""
    model = question.model
    return norm_bytes(question, model.norm) if model.embedding_norm and model.encoder else 0.0


def patch_bytes(question: Question) -> float:
    """Bytes that a vision tower's embedding keeps for each of its tokens: patches, and what a norm behind them reads;
    none where it is left as it is. Of diffusion patches, and what makes a vector of a time step."""
    tower, training, drawn = question.model.tower, question.training, question.model.diffusion
    if drawn is not None:
        kept = drawn.pixels + (drawn.frequencies + 2 * question.model.hidden_size) / drawn.tokens
        return training.element_bytes * kept * training.trains("embedding")
    if tower is None or tower.part != "tower" or not training.trains("embedding"):
        return 0.0
    normed = norm_bytes(question, tower.norm) * tower.hidden_size if tower.norm_before else 0.0
    return training.element_bytes * tower.pixels + normed


def chunked_loss_bytes(question: Question, hidden: Array) -> Array:
    """What a loss in chunks holds while a chunk is at work, besides what it keeps.

    It keeps the gradient of its hidden states, which takes the place of these once they are done with. Until then both
    are there, with the gradient of the output matrix in the type of the weights, and a chunk's logits and
    log-probabilities in fp32, or where it is compiled its logits and their gradient.
    """
    vocabulary = float(padded_vocabulary(question.model, 1))
    element = question.training.element_bytes if compiles_chunks(question) else _FP32
    chunk = 2 * element * (question.stack.loss_chunk or 0) * vocabulary
    matrix = question.training.element_bytes * question.model.hidden_size * vocabulary
    matrix = matrix * question.training.trains("head matrix")
    return hidden + matrix + chunk


def norm_bytes(question: Question, norm: Norm) -> float:
    """Bytes per element that a norm keeps: its input; in an eager RMS norm that and, for a gain that is trained, the
    normalised input, on a CPU in fp32."""
    element, stack = question.training.element_bytes, question.stack
    trains = question.training.tuning is None
    if norm != "rmsnorm":
        return element
    if is_eager(question):
        return (1 + trains) * _FP32
    return element if stack.fused_norms else (stack.eager_norm_bytes / 2 - (not trains)) * element


def is_eager(question: Question) -> bool:
    """Neither a fused RMS norm nor an attention kernel that reads grouped heads in place."""
    return question.stack.eager_attention_and_norms and question.cluster.gpu.kind == "cpu"
