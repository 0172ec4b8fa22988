"""Documents that share sequences, and further tokens that a model predicts: their FLOPs, waits and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, columns

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.files import catalog
from cost_models.operators.documents import attended_keys, context_rank_excess, straggler_excess
from cost_models.operators.flops import causal_flops, model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.training import LengthsSpec, TrainingSpec, sequences_of
from cost_models.specs.transformer import TransformerSpec

LONG = 1024


def asked(lengths: LengthsSpec | None, *, batch: int = 64, **model: Any) -> Question:
    shape = catalog.load_model("llama3-8b").model_copy(update=model)
    return ask(shape, "dgx-h100", stack="fsdp", global_batch=batch, sequence_length=LONG, lengths=lengths)


def test_sequences_are_filled_best() -> None:
    drawn = sequences_of(LengthsSpec(documents=(700, 600, 400, 300)), LONG)
    assert set(np.bincount(drawn.places, weights=drawn.documents)) == {1000.0}
    assert drawn.documents.sum() == 1000 * drawn.number
    assert drawn.mean == 500


@pytest.mark.parametrize(
    ("packing", "keys"), [("pack", 128), ("bucket", 128 * 256 / LONG), ("pad", LONG / 2)]
)
def test_attention_by_document(packing: Any, keys: float) -> None:
    """Four documents of 256 tokens a sequence: a token has 128 keys on average; padding has them all."""
    question = asked(LengthsSpec(packing=packing, documents=(256,)))
    assert attended_keys(question.model, question.training).computed == pytest.approx(keys)


def test_documents_of_whole_sequences_change_nothing() -> None:
    whole, packed = asked(None), asked(LengthsSpec(documents=(LONG,)))
    layout = parse_layout("tp2 cp2 dp2 mbs1 zero3")
    assert estimate(packed, layout).step_seconds == estimate(whole, layout).step_seconds
    for flops in (model_flops, causal_flops):
        assert flops(packed.model, packed.training) == pytest.approx(flops(whole.model, whole.training))


@pytest.mark.parametrize(("dp", "batch", "zero"), [(8, 8, 0), (8, 64, 0), (8, 64, 3), (4, 2048, 0)])
def test_waits_are_those_of_drawn_steps(dp: int, batch: int, zero: int) -> None:
    question = asked(LengthsSpec(lognormal=(400, 1.0)), batch=batch)
    drawn = sequences_of(question.training.lengths, LONG)  # type: ignore[arg-type]
    scores = np.bincount(drawn.places, weights=drawn.documents.astype(float) ** 2 / 2)
    each = 1 if zero == 3 else batch // dp
    steps = np.random.default_rng(1).choice(scores, (4000, dp, each)).mean(axis=2).max(axis=1)
    rows = LayoutColumns.of([parse_layout(f"dp{dp} mbs1 zero{zero}")])
    found = straggler_excess(question, rows, data_parallel=True)
    assert found == pytest.approx(steps.mean() / scores.mean() - 1, rel=0.05, abs=2e-3)
    assert straggler_excess(question, rows, data_parallel=False) <= found


def test_pieces_are_counted_token_by_token() -> None:
    question = asked(LengthsSpec(lognormal=(300, 1.0)))
    drawn = sequences_of(question.training.lengths, LONG)  # type: ignore[arg-type]
    most, mean = 0.0, 0.0
    for number in range(min(256, drawn.number)):
        keys = np.zeros(LONG)
        own = np.concatenate([np.arange(one) + 0.5 for one in drawn.documents[drawn.places == number]])
        keys[: len(own)] = own
        pieces = keys.reshape(4, -1).sum(axis=1)
        ranks = pieces[:2] + pieces[:1:-1]
        most, mean = most + ranks.max(), mean + ranks.mean()
    rows = LayoutColumns.of([parse_layout("cp2 dp4 mbs1 zero3")])
    assert context_rank_excess(question, rows) == pytest.approx(most / mean - 1)
    traded = LayoutColumns.of([parse_layout("cp2 dp4 mbs1 zero3 context=all-to-all")])
    assert context_rank_excess(question, traded) == 0


DEEPSEEK = catalog.load_model("deepseek-v3")
JOB = {"global_batch": 256, "sequence_length": 4096}
TRAINING = TrainingSpec.model_validate(JOB)


def predicting(times: int, model: TransformerSpec = DEEPSEEK) -> TransformerSpec:
    return model.model_copy(update={"further_tokens": times})


def deepseek_predicting(model: TransformerSpec, **training: Any) -> Question:
    return ask(model, "dgx-h100", 256, stack="megatron-core", **JOB | training)


def test_its_parameters_are_a_block_and_a_projection() -> None:
    """The MTP module of DeepSeek-V3 has 11.5 B parameters of its own (README of its weights, 671 B beside it)."""
    own = total_parameters(predicting(1)) - total_parameters(DEEPSEEK)
    assert own == pytest.approx(11.5e9, rel=0.05)


def test_its_work_is_a_block_a_projection_and_the_head() -> None:
    tokens, h = TRAINING.tokens_per_step, DEEPSEEK.hidden_size
    extra = model_flops(predicting(1), TRAINING) - model_flops(DEEPSEEK, TRAINING)
    least = 6 * tokens * (h * DEEPSEEK.vocab_size + 2 * h * h)
    assert least + model_flops(DEEPSEEK, TRAINING) / 70 < extra
    assert extra < least + model_flops(DEEPSEEK, TRAINING) / 60


def test_only_the_rank_with_the_head_pays() -> None:
    x = columns("pp8 dp32 ep8 zero1", "pp1 dp256 ep8 zero1")
    plain, further = (
        stage_costs(deepseek_predicting(DEEPSEEK), x),
        stage_costs(deepseek_predicting(predicting(2)), x),
    )
    last = plain.each_kind[-1]  # further blocks are of the last block's kind, mixtures
    for way in ("forward", "backward"):
        block = getattr(last, f"layer_{way}")
        block = block[:, 0] if block.ndim > 1 else block
        head = getattr(plain, f"head_{way}")
        extra = getattr(further, f"head_{way}") - head
        assert (extra > 2 * (block + head)).all()
        assert (extra < 2.2 * (block + head)).all()
        assert getattr(further, f"layer_{way}") == pytest.approx(getattr(plain, f"layer_{way}"))
    held = further.head_static - plain.head_static
    assert held[0] == pytest.approx(2 * last.layer_static[0] + plain.embedding_static[0])
    assert held[1] == pytest.approx(2 * last.layer_static[1])  # where the embedding lies anyway
