"""FLOPs as torch's own counter has them, where it can: one process, attention written out, no grouped products."""

from __future__ import annotations

import pytest
import torch
from flop_counter import FlopCounter
from initialising import initialise
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from training import GPT, LLAMA, T5

from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import padded_vocabulary
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.engine.engine import loss
from executor.models import attention
from executor.models.attention import WrittenOut
from executor.models.transformer import Transformer


@pytest.mark.parametrize("fields", [GPT, LLAMA], ids=["gpt", "llama"])
def test_flops_of_a_step_are_torchs_and_the_models(fields: dict[str, object]) -> None:
    """All three exactly: torch's counter, ours, and the numerator of MFU."""
    spec = TransformerSpec.model_validate(fields)
    model = Transformer(spec, vocabulary=int(padded_vocabulary(spec, 1)))
    initialise(model, 0, tied=spec.tied_embeddings)
    tokens = torch.arange(2 * 16).reshape(2, 16)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs, FlopCounter() as ours:
        loss(model(tokens), tokens).backward()  # type: ignore[no-untyped-call]
    job = TrainingSpec(global_batch=2, sequence_length=16, precision="fp32")
    assert torchs.get_total_flops() == model_flops(spec, job)
    assert ours.products + ours.attention == torchs.get_total_flops()


def test_two_stacks_run_what_is_counted(monkeypatch) -> None:
    """And scores inside a stack once more: the backward pass makes them again, as flash kernels do."""
    monkeypatch.setattr(attention, "kernel_for", lambda met: WrittenOut())
    spec = TransformerSpec.model_validate(T5)
    model = Transformer(spec, vocabulary=spec.vocab_size)
    initialise(model, 0, tied=spec.tied_embeddings)
    source, target = (torch.arange(2 * length).reshape(2, length) for length in (16, 12))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torchs:
        loss(model(source, target), target).backward()  # type: ignore[no-untyped-call]
    job = TrainingSpec(global_batch=2, sequence_length=16, target_length=12, precision="fp32")
    again = 2 * 2 * spec.query_size * (2 * 16 * 16 + 2 * 12 * 12)
    assert torchs.get_total_flops() == model_flops(spec, job) + again
