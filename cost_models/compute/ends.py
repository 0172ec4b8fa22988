"""Device seconds of the two ends of the model: token embedding, and final norm + output matrix + loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.compute.device import Device
from cost_models.compute.gemm import gemm_seconds
from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns
from cost_models.workload.parameters import padded_vocabulary

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSeconds:
    """Seconds, each (N,)."""

    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array


def end_seconds(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    """Embedding is a gather and a scatter; the head is a product with the vocabulary and a memory-bound loss.

    The loss passes over the logits: cast to fp32, maximum, exponentials with their sum, gradient in place, cast back.
    """
    model, training = question.model, question.training
    tokens = (columns.mbs * training.sequence_length).astype(np.float64)
    hidden_bytes = tokens * model.hidden_size * device.element_bytes
    vocabulary = padded_vocabulary(model, columns.tp) / columns.tp
    width = np.asarray(float(model.hidden_size))
    logits = tokens * vocabulary
    fp32 = 4 if question.stack.fp32_logits else device.element_bytes
    loss_forward = logits * (device.element_bytes + 4 * fp32)
    loss_backward = logits * (2 * fp32 + 2 * device.element_bytes)
    norm_forward, norm_backward = 2 * hidden_bytes, 3 * hidden_bytes
    kernel = device.profile.kernel_seconds
    return EndSeconds(
        embedding_forward=3 * kernel + 3 * hidden_bytes / device.memory_rate,
        embedding_backward=3 * kernel + 4 * hidden_bytes / device.memory_rate,
        head_forward=gemm_seconds(tokens, vocabulary, width, device)
        + 5 * kernel
        + (loss_forward + norm_forward) / device.memory_rate,
        head_backward=gemm_seconds(tokens, width, vocabulary, device)
        + gemm_seconds(width, vocabulary, tokens, device)
        + 5 * kernel
        + (loss_backward + norm_backward) / device.memory_rate,
    )
