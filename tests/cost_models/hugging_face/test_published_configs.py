"""Configs as they are published: their parameters are those that `transformers` counts, and nothing is passed over."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from configs import load

from cost_models.errors import InputError
from cost_models.operators.parameters import total_parameters

FOLDER = Path(__file__).parents[3] / "benchmarks" / "hugging_face"
CONFIGS: dict[str, dict[str, Any]] = json.loads((FOLDER / "published.json").read_text("utf-8"))
DELTA = {"num_experts": 8, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
DELTA |= {"num_experts_per_tok": 2}
with (FOLDER / "published.csv").open(encoding="utf-8") as _file:
    COUNTED = {row["model"]: int(row["parameters"]) for row in csv.DictReader(_file)}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = load(tmp_path, CONFIGS[name]).spec
    assert total_parameters(model) == pytest.approx(COUNTED[name], rel=1e-3)


def test_windows_and_positions_are_read_block_by_block(tmp_path: Path) -> None:
    exaone = load(tmp_path, CONFIGS["LGAI-EXAONE/EXAONE-4.0-32B"]).spec
    assert [exaone.window_of(layer) for layer in range(4)] == [4096, 4096, 4096, None]
    assert exaone.rotary is not None
    assert exaone.rotary.pattern == (True, True, True, False)
    ministral = load(tmp_path, CONFIGS["mistralai/Ministral-8B-Instruct-2410"]).spec
    assert [ministral.window_of(layer) for layer in range(4)] == [None, 32768, 32768, 32768]
    ernie = load(tmp_path, CONFIGS["baidu/ERNIE-4.5-300B-A47B-Base-PT"]).spec
    assert (ernie.num_moe_layers, ernie.is_mixture(2), ernie.is_mixture(3)) == (51, False, True)


def test_factors_are_read_and_what_blocks_lack_is_named(tmp_path: Path) -> None:
    granite = load(tmp_path, CONFIGS["ibm-granite/granite-3.3-8b-base"]).spec
    assert (granite.embedding_scale, granite.attention_scale) == (12.0, 0.0078125)
    assert granite.logit_scale == 1 / 16
    assert (granite.residual_scale, granite.left_out) == (0.22, ())
    clipped = load(tmp_path, CONFIGS["allenai/OLMo-7B-hf"] | {"clip_qkv": 8.0}).spec
    assert "clipped queries, keys and values" in clipped.left_out
    assert any("xIELU" in what for what in load(tmp_path, CONFIGS["swiss-ai/Apertus-8B-2509"]).spec.left_out)


FEATURES = """
    hidden_size_per_layer_input altup_num_inputs laurel_rank num_kv_shared_layers global_head_dim
    attention_k_eq_v enable_moe_block cross_attention_layers compress_ratios index_topk o_lora_rank
    hc_mult num_hash_layers num_experts num_local_experts relative_attention
"""


@pytest.mark.parametrize(
    "model_type", ["gemma4_text", "gemma3n", "mllama_text_model", "deberta", "deepseek_v4", "newer"]
)
@pytest.mark.parametrize("off", [0, False, None, []], ids=str)
def test_a_feature_that_a_file_turns_off_is_no_reason_to_refuse_it(
    tmp_path: Path, model_type: str, off: Any
) -> None:
    """With all of them off a config is refused for its type alone; each that is on is named."""
    config = CONFIGS["Qwen/Qwen3-8B"] | dict.fromkeys(FEATURES.split(), off) | {"model_type": model_type}
    with pytest.raises(InputError) as caught:
        load(tmp_path, config)
    assert caught.value.headline.endswith(f"has model_type `{model_type}`, which cannot be represented")
    with pytest.raises(InputError, match="keys and values of others") as named:
        load(tmp_path, config | {"model_type": "gemma4_text", "num_kv_shared_layers": 3})
    assert "of their own in every block" not in str(named.value)


KEYS = """
    attention_bias qk_layernorm word_embed_proj_dim moe_latent_size num_nextn_predict_layers
    embedding_size position_embedding_type sinusoidal_pos_embds use_task_id is_decoder
    apply_residual_connection_post_layernorm index_topk_freq indexer_types num_shared_expert
"""


@pytest.mark.parametrize("off", [0, None], ids=str)
def test_what_a_known_family_would_refuse_may_be_turned_off(tmp_path: Path, off: Any) -> None:
    for name, config in CONFIGS.items():
        with contextlib.suppress(InputError):
            usual = load(tmp_path, config).spec
            for key in (key for key in KEYS.split() if not config.get(key)):
                spec = load(tmp_path, config | {key: off}).spec
                assert spec.num_layers == usual.num_layers, (name, key)


def test_a_key_that_nothing_reads_is_said(tmp_path: Path) -> None:
    def said(**more: Any) -> str:
        return "; ".join(load(tmp_path, CONFIGS["Qwen/Qwen3-8B"] | more).assumptions)

    assert "not read" not in said(bos_token_id=1, torch_dtype="bfloat16", use_mup=False, extra=None)
    assert "nothing of memory_slots 16, rope_style new: not read" in said(memory_slots=16, rope_style="new")


def test_blocks_without_a_price_and_mixtures_whose_blocks_differ_are_refused(tmp_path: Path) -> None:
    ring = {"model_type": "qwen3_next", "layer_types": ["ring_attention"] * 36} | DELTA
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("Qwen/Qwen3-8B", {"model_type": "zamba2"}, "state spaces in every block, which has no price here"),
        ("Qwen/Qwen3-8B", {"model_type": "gemma3n"}, "embeddings of their own in every block"),
        ("Qwen/Qwen3-8B", {"model_type": "longcat_flash"}, "two attentions a block"),
        ("Qwen/Qwen3-8B", ring, "blocks of `ring_attention`"),
        ("tencent/Hunyuan-A13B-Pretrain", {"moe_topk": [8] * 31 + [4]}, "its blocks differ in `moe_topk`"),
        ("tencent/Hunyuan-A13B-Pretrain", {"num_shared_expert": 2}, "several shared experts"),
        (
            "tencent/Hunyuan-A13B-Pretrain",
            {"moe_intermediate_size": 1024},
            "not as wide as `intermediate_size`",
        ),
        ("tencent/Hunyuan-A13B-Pretrain", {"moe_topk": []}, "experts_per_token|moe_topk"),
    ]
    for name, change, told in cases:
        with pytest.raises(InputError, match=told):
            load(tmp_path, CONFIGS[name] | change)


def test_keys_of_transformers_5_are_not_said_to_be_unread(tmp_path: Path) -> None:
    config = {**CONFIGS["Qwen/Qwen3-8B"], "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    config = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    loaded = load(tmp_path, config)
    assert loaded.spec.rotary is not None
    assert loaded.spec.rotary.base == 1e6
    assert not any("not read" in one for one in loaded.assumptions)
