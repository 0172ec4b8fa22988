"""A vision tower before a decoder, and parts left frozen: what they cost, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import told as answered

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.documents import Document
from cost_models.files.loading import resolve_cluster
from cost_models.hugging_face.config import read_config
from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import block_weights, total_parameters
from cost_models.operators.record import boundary_elements
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, stage_costs
from cost_models.specs.kinds import frozen_parts, tower_of
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Tower, TransformerSpec

TEXT = {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4}
TEXT |= {"intermediate_size": 1024, "vocab_size": 1000}
VISION = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
NORM, BLOCK = 2 * 256, 12 * 256**2 + 13 * 256
"""Parameters of the tower's layer norm, and of its block."""
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, **VISION}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, **VISION}
QWEN = {"model_type": "qwen2_vl", "depth": 4, "embed_dim": 256, "num_heads": 4, "hidden_size": 512}
GEMMA = {"model_type": "gemma", "head_dim": 64}
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
LLAVA = {"model_type": "llava", "vision_feature_layer": -2}
ONEVISION = {"model_type": "llava_onevision", "vision_feature_layer": -1}
COUNTED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], int, int]] = [
    (LLAVA, {"model_type": "llama"}, CLIP, 11_958_272, BLOCK + NORM),
    (ONEVISION, {"model_type": "qwen2"}, SIGLIP, 12_000_256, NORM + 512),
    ({"model_type": "paligemma"}, GEMMA, SIGLIP | {"image_size": 224}, 11_100_928, 0),
    ({"model_type": "qwen2_vl"}, {"model_type": "qwen2_vl_text"}, QWEN, 13_143_552, 0),
    (
        {"model_type": "qwen2_5_vl"},
        QWEN_7B,
        {"depth": 32, "hidden_size": 1280, "num_heads": 16},
        8_292_166_656,
        0,
    ),
    ({"model_type": "gemma3"}, GEMMA_4B, SIGLIP | SO400M, 4_300_079_472, -1152),
]
"""Configs (outside, of the text, of the tower), parameters by `AutoModelForImageTextToText` of transformers 5.24 on the
meta device (Qwen2.5-VL-7B, Gemma 3 4B: headers of the checkpoints), and those of them that the decoder does not read: a
block and a norm, a vector behind rows of patches; Gemma's norm before its projector has no bias, ours has."""


@pytest.mark.parametrize(("outer", "text", "vision", "count", "unread"), COUNTED)
def test_configs_have_every_parameter(
    outer: dict[str, Any], text: dict[str, Any], vision: dict[str, Any], count: int, unread: int
) -> None:
    value = outer | {"text_config": TEXT | text, "vision_config": vision}
    fields, _ = read_config(Document(source="config.json", value=value))
    assert total_parameters(TransformerSpec.model_validate(fields.value)) == count - unread


def test_flops_by_hand() -> None:
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


@pytest.mark.parametrize(
    ("freeze", "still", "through"),
    [
        (("tower",), "xx---", "..---"),
        (("tower", "projector"), "xx---", "..---"),
        (("language",), "--xxx", "--ppp"),
        (("tower", "language"), "xxxxx", "..ppp"),
        (("tower", "projector", "embedding", "first=2"), "xxxx-", "....-"),
        (("tower", "projector", "first=2"), "xxxx-", "..pp-"),
    ],
)
def test_leading_frozen_blocks_run_forward_alone(freeze: tuple[str, ...], still: str, through: str) -> None:
    found = frozen_parts(model(), job(freeze=freeze))
    assert "".join("x" if one else "-" for one in found.blocks) == still
    states = ((frozen, found.trained_before(block)) for block, frozen in enumerate(found.blocks))
    assert "".join("-" if not frozen else "p" if moved else "." for frozen, moved in states) == through


@pytest.mark.parametrize(
    ("asked_for", "why"),
    [
        ("llava-1.5-7b --images 8", "8 images of 576 tokens leave no place for text in a sequence of 2,048"),
        ("llava-1.5-7b --freeze towr", "is not one of tower, projector, language, embedding, first=N"),
        ("llava-1.5-7b --freeze tower,projector,language", "leaves nothing to train"),
        ("llava-1.5-7b --freeze tower --task lora", "--freeze: is for --task full"),
        ("llava-1.5-7b --lengths lognormal(99,0.5)", "--lengths) have no price"),
        ("llama3-8b --freeze first=33,embedding", "--freeze first=33: `llama3-8b` has 32 such blocks"),
        ("llama3-8b --freeze tower", "`llama3-8b` has no vision tower"),
        ("llama3-8b --images 2", "--images 2: `llama3-8b` has no vision tower"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], asked_for: str, why: str) -> None:
    name, *flags = asked_for.split()
    frozen = [] if "--freeze" in flags or name == "llama3-8b" else ["--freeze", "tower"]
    common = ["dgx-a100-80gb", "--gpus", "8", "--layout", "dp8", "--global-batch", "64", "--sequence", "2048"]
    found = answered(capsys, "estimate", name, *common, *flags, *frozen)
    assert found.code == 2
    assert why in found.err
