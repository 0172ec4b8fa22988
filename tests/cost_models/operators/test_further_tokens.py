"""Models that predict further tokens: a block, a projection and the head once more for each, with the head."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.stages import layers_in_turn
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

DEEPSEEK = catalog.load_model("deepseek-v3")
TRAINING = TrainingSpec(global_batch=256, sequence_length=4096)


def predicting(times: int, model: TransformerSpec = DEEPSEEK) -> TransformerSpec:
    return model.model_copy(update={"further_tokens": times})


def asked(model: TransformerSpec, gpus: int = 256, **training: Any) -> Question:
    spec = TRAINING.model_copy(update=training)
    return complete_question(model, resolve_cluster("dgx-h100", gpus), spec, stack="megatron-core")


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
    columns = LayoutColumns.of([parse_layout("pp8 dp32 ep8 zero1"), parse_layout("pp1 dp256 ep8 zero1")])
    plain, further = stage_costs(asked(DEEPSEEK), columns), stage_costs(asked(predicting(2)), columns)
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


def test_a_last_stage_with_few_blocks_sets_the_pace_no_longer() -> None:
    """Recipes of 16 stages leave DeepSeek-V3's last one a single block; without the further token that is waste."""
    few = layers_in_turn(61, 16)
    assert few == (4,) * 15 + (1,)
    assert layers_in_turn(61, 32) == (2,) * 30 + (1, 0)
    even = parse_layout(f"pp16 dp16 ep8 zero1 layers={','.join(map(str, (4,) * 13 + (3,) * 3))}")
    led = parse_layout(f"pp16 dp16 ep8 zero1 layers={','.join(map(str, few))}")
    question = asked(predicting(1), global_batch=1024)
    assert estimate(question, led).step_seconds < estimate(question, even).step_seconds
