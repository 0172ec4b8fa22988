"""Documents by hand: what sequences hold, attention by document, and what ranks wait, held against drawn steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.operators.documents import attended_keys, context_rank_excess, straggler_excess
from cost_models.operators.flops import causal_flops, model_flops
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import LengthsSpec, TrainingSpec, sequences_of

LONG = 1024


def asked(lengths: LengthsSpec | None, *, batch: int = 64, **model: Any) -> Question:
    training = TrainingSpec(global_batch=batch, sequence_length=LONG, lengths=lengths)
    shape = catalog.load_model("llama3-8b").model_copy(update=model)
    return complete_question(shape, catalog.load_cluster("dgx-h100"), training, stack="fsdp")


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


def test_windows_are_cut_by_documents() -> None:
    question = asked(LengthsSpec(documents=(256,)), attention_window=64)
    assert attended_keys(question.model, question.training).computed == pytest.approx(64 * (1 - 64 / 512))


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


def test_more_ranks_wait_longer_and_more_sequences_less() -> None:
    question = asked(LengthsSpec(lognormal=(300, 1.2)))
    rows = LayoutColumns.of([parse_layout(f"dp{dp} mbs1 zero0") for dp in (1, 2, 4, 8)])
    few, many = (
        straggler_excess(
            replace(question, training=question.training.model_copy(update={"global_batch": batch})),
            rows,
            data_parallel=True,
        )
        for batch in (8, 512)
    )
    assert (np.diff(few) > 0).all()
    assert (np.diff(many) > 0).all()
    assert (many[1:] < few[1:]).all()


def test_a_document_longer_than_a_sequence_is_refused() -> None:
    with pytest.raises(InputError, match="1 problem in TrainingSpec"):
        TrainingSpec(global_batch=1, sequence_length=8, lengths=LengthsSpec(documents=(9,)))
