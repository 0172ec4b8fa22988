"""The output product and the loss as `explain` tells them: chunks hold less, and their share is of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.pipeline.pricing import estimate, loss_part
from cost_models.specs.training import TrainingSpec


def test_chunks_hold_what_is_planned_less() -> None:
    """8,192 tokens of Llama 3.2 1B (docs/concepts/executor.md): 4.2 GB of fp32 logits held three times, or a chunk of
    2,048 twice with the gradient of the output matrix and of the hidden states."""
    job = TrainingSpec(global_batch=8, sequence_length=8192)
    question = complete_question(
        resolve_model("llama3.2-1b").spec, resolve_cluster("dgx-h100", 1), job, stack=OWN_STACK
    )
    layout, found = parse_layout("mbs1"), []
    for chunk in (2048, None):
        asked = replace(question, stack=question.stack.model_copy(update={"loss_chunk": chunk}))
        part, priced = loss_part(asked, layout), estimate(asked, layout)
        assert part is not None
        assert part.chunk == chunk
        assert 0.05 < priced.microbatches * part.seconds / priced.step_seconds < 0.5
        found.append((part.bytes, priced.peak_bytes))
    (few, peak), (many, before) = found
    words, hidden = 128_256, 2048 * 2
    assert few == pytest.approx(2 * 4 * 2048 * words + hidden * words + 8192 * hidden)
    assert many >= 3 * 4 * 8192 * words
    assert before - peak == pytest.approx(many - few, rel=0.1)
