"""Encoder-decoders and diffusion transformers by hand: parameters, FLOPs and bytes, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import ask
from calling import told

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.documents import Document
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.hugging_face.config import read_config
from cost_models.memory.activations import activation_bytes
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.operators.record import boundary_elements
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

T5 = {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128}
LARGE = T5 | {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128}
COUNTED: list[tuple[dict[str, Any], int]] = [
    (T5, 60_506_624),
    (LARGE, 11_307_321_344),
    (T5 | {"num_layers": 4, "num_decoder_layers": 7, "feed_forward_proj": "gated-gelu"}, 69_943_296),
]
"""By `AutoModelForSeq2SeqLM` of transformers 5.24 on the meta device."""


@pytest.mark.parametrize(("config", "count"), COUNTED)
def test_configs_have_every_parameter(config: dict[str, Any], count: int) -> None:
    fields, _ = read_config(Document(source="config.json", value={"model_type": "t5"} | config))
    assert total_parameters(TransformerSpec.model_validate(fields.value)) == count


def asked(**training: Any) -> Question:
    job = {"global_batch": 16, "sequence_length": 512, "target_length": 128} | training
    return ask("t5-small", "dgx-a100-80gb", 8, **job)


def test_flops_by_hand() -> None:
    """Keys and values of cross-attention are made of the encoder's tokens, all else of the decoder's of its own."""
    question, s, t, h, q, f = asked(), 512, 128, 512, 512, 2048
    encoder = s * (8 * h * q + 4 * h * f) + 4 * s * s * q
    decoder = t * (8 * h * q + 4 * h * f) + t * 4 * h * q + s * 4 * h * q + 4 * t * (t + s) * q
    head = 2 * t * h * 32128
    counted = model_flops(question.model, question.training)
    assert counted == pytest.approx(3 * 16 * (6 * encoder + 6 * decoder + head), rel=1e-12)
    masked = 3 * 16 * 6 * 2 * t * t * q
    assert causal_flops(question.model, question.training) == pytest.approx(counted - masked, rel=1e-12)
    assert question.training.tokens_per_step == 16 * (512 + 128)


def test_bytes_by_hand() -> None:
    """A token of the encoder's block keeps inputs and outputs of 2 norms, queries, keys, values and what attention
    returns, and what the activation reads and returns. A decoder's has the cross part besides: norm, its output,
    queries and what attention returns, and keys and values of four tokens of the encoder."""
    question, h, q, f = asked(dropout=0.0), 512, 512, 2048
    one = LayoutColumns.of([Layout(mbs=1)])
    encoder, decoder = (activation_bytes(own, one).block[0, 0] for own in question.by_kind)
    rows = 4 * 8
    assert encoder == 512 * (2 * (4 * h + 4 * q + 2 * f) + rows)
    assert decoder == 128 * (2 * (4 * h + 4 * q + 2 * f) + rows + 2 * (2 * h + 2 * q + 4 * 2 * q) + rows)


def test_stages_hand_on_the_tokens_of_both() -> None:
    """As those of a decoder with so many tokens do."""
    question, columns = asked(), LayoutColumns.of([Layout(pp=2, dp=4, mbs=1)])
    job = question.training.model_copy(update={"sequence_length": 640, "target_length": None})
    alone = replace(question, model=question.model.model_copy(update={"stacks": None}), training=job)
    both, one = (stage_costs(own, columns).p2p for own in (question, alone))
    np.testing.assert_allclose(both, one)


@pytest.mark.parametrize(
    ("asked_for", "why"),
    [
        ("t5-small dgx-a100-80gb --layout dp8 --task dpo", "preferences (--task dpo) have no price"),
        ("t5-small local --layout pp8_schedule=zero-bubble", "splits no backward pass"),
        ("t5-small dgx-a100-80gb --layout dp8 --lengths lognormal(99,0.5)", "--lengths) have no price"),
        ("t5-small dgx-a100-80gb --layout cp2 --decoder-sequence 128", "is priced for whole ones alone"),
        ("t5-small dgx-a100-80gb --layout dp8 --decoder-sequence abc", "--decoder-sequence: `abc` is no"),
        ("bert-base dgx-a100-80gb --layout dp8 --decoder-sequence 128", "`bert-base` is one stack"),
    ],
)
def test_what_has_no_price_is_refused(capsys: pytest.CaptureFixture[str], asked_for: str, why: str) -> None:
    job = "--gpus 8 --global-batch 64 --sequence 512"
    answer = told(capsys, "estimate", *(word.replace("_", " ") for word in asked_for.split()), *job.split())
    assert answer.code == 2
    assert why in answer.err


def dit(name: str) -> TransformerSpec:
    return resolve_model(name).spec


@pytest.mark.parametrize(("name", "layers", "h", "p"), [("dit-xl-2", 28, 1152, 2), ("dit-b-4", 12, 768, 4)])
def test_parameters_by_hand(name: str, layers: int, h: int, p: int) -> None:
    block = 3 * h * h + 3 * h + h * h + h + 8 * h * h + 5 * h + 6 * h * h + 6 * h
    ends = 4 * p * p * h + h + (256 * h + h) + (h * h + h) + 1001 * h
    final = 2 * h * h + 2 * h + (h + 1) * 8 * p * p
    assert total_parameters(dit(name)) == layers * block + ends + final


def test_parameters_are_the_published_ones() -> None:
    """Those of the published code besides are fixed positions, 256 x 1152."""
    assert total_parameters(dit("dit-xl-2")) == 675_129_632 - 256 * 1152


@pytest.mark.parametrize(
    ("name", "tokens", "published"),
    [("dit-xl-2", 256, 118.64), ("dit-b-4", 64, 5.56), ("dit-xl-2", 1024, 524.6)],
)
def test_flops_are_those_of_the_paper(name: str, tokens: int, published: float) -> None:
    """Its tables 1 and 4 count multiply-adds of a forward pass of an image."""
    model = dit(name)
    assert model.diffusion is not None
    larger = model.diffusion.model_copy(update={"latent": round(tokens**0.5) * model.diffusion.patch})
    model = model.model_copy(update={"diffusion": larger})
    one = forward_flops(model, tokens)
    forward = model.num_layers * one.block + one.head
    assert forward / 2e9 == pytest.approx(published, rel=1e-3)
    step = model_flops(model, TrainingSpec(global_batch=8, sequence_length=tokens))
    assert step / 8 == pytest.approx(3 * forward, rel=1e-3)


def test_what_modulates_is_kept_and_handed_on() -> None:
    """Of a token what each half's vectors are multiplied with, two in a half; of an image the six vectors, and what
    they are made of before and behind SiLU. A plain encoder keeps all the rest."""
    model = dit("dit-b-4")
    plain = model.model_copy(update={"diffusion": None})
    job, columns = TrainingSpec(global_batch=8, sequence_length=64), LayoutColumns.of([Layout(mbs=8, pp=2)])
    cluster = resolve_cluster("dgx-h100", 2)
    modulated, bare = (complete_question(one, cluster, job) for one in (model, plain))
    more = activation_bytes(modulated, columns).block[0, 0] - activation_bytes(bare, columns).block[0, 0]
    assert more == pytest.approx(2 * 8 * (64 * 4 + 6 + 2) * 768)
    assert boundary_elements(modulated, columns)[0] == 8 * (64 + 1) * 768


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--sequence 1000", "1,000 tokens are no square of patches"),
        ("--task dpo", "is a diffusion transformer, for which preferences (--task dpo) have no price"),
        ("--lengths lognormal(100,0.5)", "for which documents of unlike length (--lengths) have no price"),
        ("--layout cp2", "is priced for whole ones alone"),
    ],
)
def test_refusals_about_images(capsys: pytest.CaptureFixture[str], words: str, why: str) -> None:
    asked = ["estimate", "dit-b-4", "dgx-h100", "--gpus", "2", "--global-batch", "8", "--layout", "dp2"]
    answer = told(capsys, *asked, *words.split())
    assert answer.code == 2
    assert why in answer.err
