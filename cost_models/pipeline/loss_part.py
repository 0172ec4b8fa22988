"""The output product and the loss of a layout: seconds on the rank that has them, and bytes at their widest moment."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.device import device_of
from cost_models.compute.ends import end_seconds
from cost_models.memory.activations import activation_bytes
from cost_models.operators.chunked_loss import loss_chunk
from cost_models.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """The last of a model's parts, on one rank."""

    seconds: float
    """Seconds of a microbatch, forward and backward."""
    bytes: float
    """Bytes of logits and their derivatives; a loss in chunks also holds the gradient of the output matrix."""
    chunk: int | None
    """Tokens whose logits exist at a time; None: those of a microbatch."""


def loss_part(question: Question, layout: Layout) -> LossPart | None:
    """Seconds and bytes of the loss on the last stage; None over several pools of GPUs."""
    if len(question.by_pool) > 1:
        return None
    columns = LayoutColumns.of([layout])
    ends = end_seconds(question, columns, device_of(question, wide=True))
    kept = activation_bytes(question, columns)
    return LossPart(
        seconds=float(ends.head_forward[0] + ends.head_backward[0]),
        bytes=float(kept.log_probabilities[0] + kept.loss_gradients[0] + kept.released_logits[0]),
        chunk=loss_chunk(question, layout),
    )
