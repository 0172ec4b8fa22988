"""Families of Hugging Face configs: what each says of its blocks, with the parameters of the published checkpoints.

Logits of small models of every family here are those of `transformers`, with its weights (docs/log.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.files.models import LoadedModel, resolve_model
from cost_models.operators.parameters import total_parameters
from cost_models.specs.blocks import Rotary


def sizes(layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
    }


GPTJ_6B = {
    "model_type": "gptj",
    "activation_function": "gelu_new",
    "n_embd": 4096,
    "n_head": 16,
    "n_inner": None,
    "n_layer": 28,
    "n_positions": 2048,
    "rotary": True,
    "rotary_dim": 64,
    "tie_word_embeddings": False,
    "vocab_size": 50400,
}
FALCON_7B = {
    "model_type": "falcon",
    "alibi": False,
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192,
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
}
FALCON_11B = FALCON_40B | {
    "ffn_hidden_size": 16384,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_ln_in_parallel_attn": 1,
    "tie_word_embeddings": False,
}
PHI_2 = sizes(32, 2560, 32, 32, 10240, 51200) | {
    "model_type": "phi",
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
}
COMMAND_R = sizes(40, 8192, 64, 64, 22528, 256000) | {"model_type": "cohere", "logit_scale": 0.0625}
COMMAND_R_PLUS = sizes(64, 12288, 96, 8, 33792, 256000) | {"model_type": "cohere", "use_qk_norm": True}
COMMAND_R7B = sizes(32, 4096, 32, 8, 14336, 256000) | {
    "model_type": "cohere2",
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
STABLELM_3B = sizes(32, 2560, 32, 32, 6912, 50304) | {"model_type": "stablelm", "partial_rotary_factor": 0.25}
STARCODER2_3B = sizes(30, 3072, 24, 2, 12288, 49152) | {"model_type": "starcoder2", "sliding_window": 4096}
SMOLLM3_3B = sizes(36, 2048, 16, 4, 11008, 128256) | {
    "model_type": "smollm3",
    "no_rope_layers": [1, 1, 1, 0] * 9,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}
GEMMA2_9B = sizes(42, 3584, 16, 8, 14336, 256000) | {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model"},
}
OLMO2_32B = sizes(64, 5120, 40, 8, 27648, 100352) | {"model_type": "olmo2", "rope_theta": 500000}

GLM45 = sizes(92, 5120, 96, 8, 12288, 151552) | {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 3,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "topk_group": 1,
    "use_qk_norm": True,
}
GPT_OSS_20B = sizes(24, 2880, 64, 8, 2880, 201088) | {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn"},
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        **sizes(48, 5120, 40, 8, 8192, 202048),
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 1048576,
        "num_experts_per_tok": 1,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "use_qk_norm": False,
    },
}
KIMI_K2 = sizes(61, 7168, 64, 64, 18432, 163840) | {
    "model_type": "kimi_k2",
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
}

PUBLISHED = {
    "gptj-6b": (GPTJ_6B, 6_050_882_784),
    "falcon-7b": (FALCON_7B, 6_921_720_704),
    "falcon-40b": (FALCON_40B, 41_303_293_952),
    "falcon-11b": (FALCON_11B, 11_102_822_400),
    "phi-2": (PHI_2, 2_779_683_840),
    "command-r": (COMMAND_R, 34_980_831_232),
    "command-r-plus": (COMMAND_R_PLUS, 103_810_674_688),
    "command-r7b": (COMMAND_R7B, 8_028_033_024),
    "stablelm-3b": (STABLELM_3B, 2_795_443_200),
    "starcoder2-3b": (STARCODER2_3B, 3_030_371_328),
    "smollm3-3b": (SMOLLM3_3B, 3_075_098_624),
    "gemma2-9b": (GEMMA2_9B, 9_241_705_984),
    "gemma3-4b": (GEMMA3_4B, 3_880_263_168),  # its text part
    "olmo2-32b": (OLMO2_32B, 32_234_279_936),
}


def load(folder: Path, config: dict[str, Any]) -> LoadedModel:
    (folder / "config.json").write_text(json.dumps(config))
    return resolve_model(str(folder))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    config, published = PUBLISHED[name]
    assert total_parameters(load(tmp_path, config).spec) == published


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (GEMMA2_9B | {"max_position_embeddings": 8192}, "gemma2-9b"),
        (GEMMA3_4B, "gemma3-4b"),
        (OLMO2_32B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-06}, "olmo2-32b"),
        (GLM45, "glm-4.5"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (MAVERICK, "llama4-maverick"),
        (KIMI_K2, "kimi-k2"),
    ],
)
def test_a_published_config_is_the_catalogue_entry(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    known = load_model(name)
    told = {"name": name, "source": known.source}
    assert load(tmp_path, config).spec.model_copy(update=told) == known


def test_a_phi_block_by_hand(tmp_path: Path) -> None:
    """4h² + 4h of attention, 8h² + 5h of MLP, a norm of 2h: 12h² + 11h. Ends: twice V x h, V of bias, 2h of a norm."""
    h, v = 2560, 51200
    assert total_parameters(load(tmp_path, PHI_2).spec) == 32 * (12 * h**2 + 11 * h) + 2 * v * h + v + 2 * h


@pytest.mark.parametrize(
    ("config", "norms"),
    [
        (GPTJ_6B, 1),
        (FALCON_7B, 1),
        (FALCON_40B, 2),
        (FALCON_11B, 1),
        (PHI_2, 1),
        (COMMAND_R, 1),
        (COMMAND_R7B, 1),
        (STABLELM_3B | {"use_parallel_residual": True}, 1),
    ],
)
def test_halves_side_by_side(tmp_path: Path, config: dict[str, Any], norms: int) -> None:
    loaded = load(tmp_path, config)
    assert (loaded.spec.parallel_block, loaded.spec.parallel_norms) == (True, norms)
    assert not loaded.spec.left_out


@pytest.mark.parametrize("config", [STABLELM_3B, FALCON_7B | {"parallel_attn": False}])
def test_halves_one_after_the_other(tmp_path: Path, config: dict[str, Any]) -> None:
    spec = load(tmp_path, config).spec
    assert (spec.parallel_block, spec.norm_placement) == (False, "before")


def test_command_r7b_turns_heads_where_it_has_a_window(tmp_path: Path) -> None:
    spec = load(tmp_path, COMMAND_R7B).spec
    assert [spec.window_of(layer) for layer in range(4)] == [4096, 4096, 4096, None]
    assert spec.rotary == Rotary(pattern=(True, True, True, False))
    assert load(tmp_path, SMOLLM3_3B).spec.rotary == Rotary(base=5e6, pattern=(True, True, True, False))


def test_gemmas_have_norms_around_and_blocks_in_turns(tmp_path: Path) -> None:
    second, third = load(tmp_path, GEMMA2_9B).spec, load(tmp_path, GEMMA3_4B).spec
    assert (second.window_pattern, third.window_pattern) == (("window", "full"), ("window",) * 5 + ("full",))
    assert (second.norm_placement, third.norm_placement) == ("around", "around")
    assert (second.qk_norm, third.qk_norm) == (False, True)
    assert second.attention_scale is None  # 1/√256, and heads are 256 wide
    assert second.embedding_scale == 3584**0.5
    assert third.windowed_share == 29 / 34
    assert third.rotary is not None
    assert (third.rotary.base, third.rotary.windowed_base) == (1e6, 1e4)
    larger = GEMMA2_9B | {"head_dim": 128, "query_pre_attn_scalar": 144}
    assert load(tmp_path, larger).spec.attention_scale == pytest.approx(1 / 12)


def test_a_config_of_text_and_images_is_read_for_its_text(tmp_path: Path) -> None:
    """Google's file of the 4B leaves out what its class assumes; each of that is said."""
    said = load(tmp_path, GEMMA3_4B).assumptions
    assert said[0] == "the part for text alone (text_config)"
    assert "num_attention_heads 8 (model_type gemma3_text)" in said
    broken = {**GEMMA3_4B, "text_config": GEMMA3_4B["text_config"] | {"hidden_size": "wide"}}
    with pytest.raises(
        InputError, match=r"config.json  text_config.hidden_size: `wide` is not a whole number"
    ):
        load(tmp_path, broken)


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        (GEMMA2_9B, ("soft-capped attention scores", "soft-capped logits")),
        (GEMMA2_9B | {"attn_logit_softcapping": None}, ("soft-capped logits",)),
        (GEMMA3_4B, ()),
        (COMMAND_R_PLUS, ("norms of every query and key head with gains of its own",)),
        (GPT_OSS_20B, ("clamped expert gates", "yarn scaling of rotary positions")),
        (MAVERICK, ("router weights that multiply what experts read", "attention temperature")),
        (KIMI_K2, ()),
        (FALCON_7B | {"alibi": True}, ("ALiBi slopes divided by the root of a head's width",)),
        (
            OLMO2_32B | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            ("yarn scaling of rotary positions",),
        ),
        (OLMO2_32B | {"rope_scaling": {"rope_type": "default"}}, ()),
        (OLMO2_32B | {"rope_scaling": {"type": "linear", "factor": 4.0}}, ()),
    ],
)
def test_what_blocks_here_do_not_compute_is_left_out_and_said(
    tmp_path: Path, config: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    loaded = load(tmp_path, config)
    assert loaded.spec.left_out == left_out
    said = [one for one in loaded.assumptions if "`run` refuses" in one]
    every = ", ".join(loaded.spec.untrained)
    assert said == ([f"a model without {every}, for prices; `run` refuses it"] if left_out else [])


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (PHI_2 | {"qk_layernorm": True}, "it has layer norms of queries and keys"),
        (PHI_2 | {"partial_rotary_factor": "half"}, "rotary.dim: `half` is not a whole number"),
        (GPTJ_6B | {"rotary_dim": 63}, "rotary.dim 63 is no even part of head_dim 256"),
        (FALCON_40B | {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn"),
        (COMMAND_R | {"logit_scale": 0.0}, "logit_scale: must be above zero"),
        (SMOLLM3_3B | {"no_rope_layers": [1] * 39 + [0]}, "names 40 blocks, and num_layers is 36"),
    ],
)
def test_what_no_model_can_be_is_refused(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        load(tmp_path, config)
