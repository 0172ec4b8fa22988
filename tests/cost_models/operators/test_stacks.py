"""Questions of several stacks and towers, and of packed documents."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import ask, columns
from calling import told
from tables import rows

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.documents import Document
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.hugging_face.config import read_config
from cost_models.memory.activations import activation_bytes
from cost_models.operators.documents import attended_keys, context_rank_excess, straggler_excess
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import block_weights, total_parameters
from cost_models.operators.record import boundary_elements
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, stage_costs
from cost_models.question import Question
from cost_models.specs.kinds import frozen_parts, tower_of
from cost_models.specs.training import LengthsSpec, TrainingSpec, sequences_of
from cost_models.specs.transformer import Tower, TransformerSpec

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


TEXT = {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4}
TEXT |= {"intermediate_size": 1024, "vocab_size": 1000}
VISION = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
NORM, BLOCK = 2 * 256, 12 * 256**2 + 13 * 256
"""Parameters of the tower's layer norm, and of its block."""
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, **VISION}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, **VISION}
QWEN = {"model_type": "qwen2_vl", "depth": 4, "embed_dim": 256, "num_heads": 4, "hidden_size": 512}
GEMMA = {"model_type": "gemma", "head_dim": 64}
LLAVA = {"model_type": "llava", "vision_feature_layer": -2}
ONEVISION = {"model_type": "llava_onevision", "vision_feature_layer": -1}
QWEN_7B = {
    "model_type": "qwen2_5_vl_text",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
}
QWEN_7B |= {"intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False}
GEMMA_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "num_hidden_layers": 34,
    "intermediate_size": 10240,
}
GEMMA_4B |= {"head_dim": 256, "vocab_size": 262208, "sliding_window": 1024}
SO400M = {"image_size": 896, "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
SO400M |= {"num_attention_heads": 16}
DEEP = {"depth": 32, "hidden_size": 1280, "num_heads": 16}
TOWERS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], int, int]] = [
    (LLAVA, {"model_type": "llama"}, CLIP, 11_958_272, BLOCK + NORM),
    (ONEVISION, {"model_type": "qwen2"}, SIGLIP, 12_000_256, NORM + 512),
    ({"model_type": "paligemma"}, GEMMA, SIGLIP | {"image_size": 224}, 11_100_928, 0),
    ({"model_type": "qwen2_vl"}, {"model_type": "qwen2_vl_text"}, QWEN, 13_143_552, 0),
    ({"model_type": "qwen2_5_vl"}, QWEN_7B, DEEP, 8_292_166_656, 0),
    ({"model_type": "gemma3"}, GEMMA_4B, SIGLIP | SO400M, 4_300_079_472, -1152),
]
"""Configs (outside, of the text, of the tower), parameters by `AutoModelForImageTextToText` of transformers 5.24 on the
meta device (Qwen2.5-VL-7B, Gemma 3 4B: headers of the checkpoints), and those of them that the decoder does not read: a
block and a norm, a vector behind rows of patches; Gemma's norm before its projector has no bias, ours has."""


def test_configs_have_every_parameter_of_towers() -> None:
    for outer, text, vision, count, unread in TOWERS:
        value = outer | {"text_config": TEXT | text, "vision_config": vision}
        fields, _ = read_config(Document(source="config.json", value=value))
        assert total_parameters(TransformerSpec.model_validate(fields.value)) == count - unread


def test_flops_by_hand_of_towers() -> None:
    """Of a step of 8 sequences with two images: what is frozen behind something trained has no weight gradients, what
    is frozen at the start runs forward alone, and what is trained behind it has no gradients of its inputs."""
    whole, h, t, s, images = model({"projector_hidden_size": 96}), 128, 64, 128, 2
    tower = 17 * (24 * t * t) + 4 * 17 * 17 * t
    decoder = s * 24 * h * h + 4 * s * s * h
    patches, entered, projector = 2 * 16 * 588 * t, 2 * 16 * t * 96, 2 * 16 * (t * 96 + 96 * h)
    head = 2 * s * h * 512
    trained = 3 * (images * (2 * tower + projector) + 3 * decoder + head) + 2 * images * patches
    assert model_flops(whole, job()) == pytest.approx(8 * trained, rel=1e-12)
    stage_one = images * (2 * tower + patches + 3 * projector - entered) + 3 * decoder + 2 * head
    stage_one += 3 * (s * 24 * h * h + 2 * 4 * s * s * h)
    assert model_flops(whole, job(freeze=("tower", "language"))) == pytest.approx(8 * stage_one, rel=1e-12)


def test_what_is_frozen_keeps_weights_alone() -> None:
    """A frozen tower keeps nothing for the backward pass, and neither gradients nor states; nor does what is frozen
    behind a projector that is trained, but for what gradients of its inputs want."""
    columns = LayoutColumns.of([Layout(mbs=1)])
    cluster = resolve_cluster("dgx-a100-80gb", 1)

    def costs(*freeze: str) -> tuple[StageCosts, ...]:
        question = complete_question(model(), cluster, job(freeze=freeze), stack="megatron-core")
        return stage_costs(question, columns).each_kind

    whole, frozen, one = costs(), costs("tower"), costs("tower", "language")
    assert [len(own) for own in (whole, frozen, one)] == [3, 3, 3]
    tower, own = whole[0], frozen[0]
    assert own.layer_backward.max() == own.layer_activation.max() == own.layer_optimizer.max() == 0.0
    weights = sum(block_weights(tower_of(model())).values())
    assert own.layer_static[0] == 2 * weights
    assert tower.layer_static[0] > 8 * weights
    np.testing.assert_allclose(own.layer_forward, tower.layer_forward)
    decoder = one[-1]
    assert decoder.layer_weight[0] < whole[-1].layer_weight[0]
    assert 0 < decoder.layer_activation[0, 0] < whole[-1].layer_activation[0, 0]


@pytest.mark.parametrize(("width", "numbers"), [(64, 128 * 128), (1024, 2 * 17 * 1024)])
def test_stages_hand_on_what_is_more(width: int, numbers: int) -> None:
    """Tokens of a sequence, or of its two images before the projector."""
    cluster = resolve_cluster("dgx-a100-80gb", 2)
    question = complete_question(model({"hidden_size": width}), cluster, job())
    assert boundary_elements(question.by_kind[-1], LayoutColumns.of([Layout(pp=2, mbs=1)])) == numbers


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "adamw-8bit", "sgd"])
@pytest.mark.parametrize(
    "freeze", [("tower", "language"), ("embedding", "first=3"), ("tower", "projector", "embedding")]
)
def test_frozen_parts_hold_no_more(freeze: tuple[str, ...], optimizer: str) -> None:
    """No more than where all is trained, whatever states the optimizer has; all prices are finite."""
    columns = LayoutColumns.of(
        [Layout(mbs=1), Layout(dp=8, zero=2), Layout(dp=8, zero=3), Layout(tp=2, pp=2, sp=True)]
    )
    cluster, whole = resolve_cluster("dgx-a100-80gb", 8), job(optimizer=optimizer)
    for tied in (True, False):
        spec = model(tied_embeddings=tied)
        questions = [
            complete_question(spec, cluster, one) for one in (whole, job(freeze=freeze, optimizer=optimizer))
        ]
        trained, frozen = (stage_costs(one, columns) for one in questions)
        for name in COLUMNS:
            less, more = getattr(frozen, name), getattr(trained, name)
            assert np.isfinite(less).all(), name
            if name.endswith(("static", "activation", "pending", "update", "working")):
                assert (less <= more * (1 + 1e-9)).all(), name


TOWER = {"layers": 2, "hidden_size": 64, "num_heads": 4, "image": 56, "patch": 14, "class_token": True}


def model(tower: dict[str, object] | None = None, **more: object) -> TransformerSpec:
    fields = {
        "num_layers": 5,
        "hidden_size": 128,
        "num_heads": 4,
        "vocab_size": 512,
        "tied_embeddings": False,
    }
    own = Tower.model_validate(TOWER | (tower or {}))
    return TransformerSpec.model_validate(fields | {"tower": own} | more)


def job(**more: object) -> TrainingSpec:
    return TrainingSpec.model_validate({"global_batch": 8, "sequence_length": 128, "images": 2} | more)


def test_leading_frozen_blocks_run_forward_alone() -> None:
    for freeze, still, through in [
        (("tower",), "xx---", "..---"),
        (("tower", "projector"), "xx---", "..---"),
        (("language",), "--xxx", "--ppp"),
        (("tower", "language"), "xxxxx", "..ppp"),
        (("tower", "projector", "embedding", "first=2"), "xxxx-", "....-"),
        (("tower", "projector", "first=2"), "xxxx-", "..pp-"),
    ]:
        found = frozen_parts(model(), job(freeze=freeze))
        assert "".join("x" if one else "-" for one in found.blocks) == still
        states = ((frozen, found.trained_before(block)) for block, frozen in enumerate(found.blocks))
        assert "".join("-" if not frozen else "p" if moved else "." for frozen, moved in states) == through


def test_what_has_no_price_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    job = "--gpus 8 --layout dp8 --global-batch 64 --sequence 1024"
    for asked_for, why in rows("""
        t5-small dgx-h100 --task dpo | preferences (--task dpo) have no price
        t5-small local --layout "pp8 schedule=zero-bubble" | splits no backward pass
        t5-small dgx-h100 --lengths lognormal(99,0.5) | --lengths) have no price
        t5-small dgx-h100 --layout cp2 --decoder-sequence 128 | is priced for whole ones alone
        t5-small dgx-h100 --decoder-sequence abc | --decoder-sequence: `abc` is no
        bert-base dgx-h100 --decoder-sequence 128 | `bert-base` is one stack
        dit-b-4 dgx-h100 --sequence 1000 | 1,000 tokens are no square of patches
        dit-b-4 dgx-h100 --task dpo | is a diffusion transformer, for which preferences (--task dpo) have no price
        dit-b-4 dgx-h100 --lengths lognormal(100,0.5) | for which documents of unlike length (--lengths) have no
        dit-b-4 dgx-h100 --layout cp2 | is priced for whole ones alone
        llava-1.5-7b dgx-h100 --freeze tower --images 8 | 8 images of 576 tokens leave no place for text in a sequence
        llava-1.5-7b dgx-h100 --freeze towr | is not one of tower, projector, language, embedding, first=N
        llava-1.5-7b dgx-h100 --freeze tower,projector,language | leaves nothing to train
        llava-1.5-7b dgx-h100 --freeze tower --task lora | --freeze: is for --task full
        llava-1.5-7b dgx-h100 --freeze tower --lengths lognormal(99,0.5) | --lengths) have no price
        llama3-8b dgx-h100 --freeze first=33,embedding | --freeze first=33: `llama3-8b` has 32 such blocks
        llama3-8b dgx-h100 --freeze tower | `llama3-8b` has no vision tower
        llama3-8b dgx-h100 --images 2 | --images 2: `llama3-8b` has no vision tower
    """):
        answer = told(capsys, "estimate", *job.split(), *shlex.split(asked_for))
        assert (answer.code, why in answer.err) == (2, True), answer.err


LONG = 1024


def of_documents(lengths: LengthsSpec | None, *, batch: int = 64, **model: Any) -> Question:
    shape = catalog.load_model("llama3-8b").model_copy(update=model)
    return ask(shape, "dgx-h100", stack="fsdp", global_batch=batch, sequence_length=LONG, lengths=lengths)


def test_sequences_are_filled_best() -> None:
    drawn = sequences_of(LengthsSpec(documents=(700, 600, 400, 300)), LONG)
    assert set(np.bincount(drawn.places, weights=drawn.documents)) == {1000.0}
    assert drawn.documents.sum() == 1000 * drawn.number
    assert drawn.mean == 500


def test_attention_by_document() -> None:
    """Four documents of 256 tokens a sequence: a token has 128 keys on average; padding has them all."""
    for packing, keys in [("pack", 128), ("bucket", 128 * 256 / LONG), ("pad", LONG / 2)]:
        question = of_documents(LengthsSpec(packing=packing, documents=(256,)))
        assert attended_keys(question.model, question.training).computed == pytest.approx(keys)


def test_documents_of_whole_sequences_change_nothing() -> None:
    whole, packed = of_documents(None), of_documents(LengthsSpec(documents=(LONG,)))
    layout = parse_layout("tp2 cp2 dp2 mbs1 zero3")
    assert estimate(packed, layout).step_seconds == estimate(whole, layout).step_seconds
    for flops in (model_flops, causal_flops):
        assert flops(packed.model, packed.training) == pytest.approx(flops(whole.model, whole.training))


@pytest.mark.parametrize(("dp", "batch", "zero"), [(8, 8, 0), (8, 64, 0), (8, 64, 3), (4, 2048, 0)])
def test_waits_are_those_of_drawn_steps(dp: int, batch: int, zero: int) -> None:
    question = of_documents(LengthsSpec(lognormal=(400, 1.0)), batch=batch)
    drawn = sequences_of(question.training.lengths, LONG)  # type: ignore[arg-type]
    scores = np.bincount(drawn.places, weights=drawn.documents.astype(float) ** 2 / 2)
    each = 1 if zero == 3 else batch // dp
    steps = np.random.default_rng(1).choice(scores, (4000, dp, each)).mean(axis=2).max(axis=1)
    rows = LayoutColumns.of([parse_layout(f"dp{dp} mbs1 zero{zero}")])
    found = straggler_excess(question, rows, data_parallel=True)
    assert found == pytest.approx(steps.mean() / scores.mean() - 1, rel=0.05, abs=2e-3)
    assert straggler_excess(question, rows, data_parallel=False) <= found


def test_pieces_are_counted_token_by_token() -> None:
    question = of_documents(LengthsSpec(lognormal=(300, 1.0)))
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
