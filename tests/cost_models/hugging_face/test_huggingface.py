"""Hugging Face configs as they are published → our shapes, with every assumption in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.models import LoadedModel, resolve_model

LLAMA3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL_7B = LLAMA3_8B | {
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
QWEN2_7B = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN3_32B = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "max_position_embeddings": 40960,
    "num_attention_heads": 64,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
GPT2 = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
NEOX_20B = {
    "model_type": "gpt_neox",
    "hidden_act": "gelu_fast",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "vocab_size": 50432,
}
BLOOM = {
    "model_type": "bloom",
    "hidden_size": 14336,
    "n_head": 112,
    "n_layer": 70,
    "seq_length": 2048,
    "vocab_size": 250880,
}
OPT_125M = {
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
GEMMA_7B = {
    "model_type": "gemma",
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "max_position_embeddings": 8192,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "vocab_size": 256000,
}

MIXTRAL_8X7B = LLAMA3_8B | {
    "model_type": "mixtral",
    "max_position_embeddings": 32768,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3_30B_A3B = QWEN3_32B | {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.001,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "aux_loss_alpha": 0.001,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}

TRAINED_WITH: dict[str, dict[str, Any]] = {"deepseek-v3": {"load_balance": 0.0001}}
"""Where the paper says otherwise than the config, which serves those who run the model."""


def load(folder: Path, config: dict[str, Any]) -> LoadedModel:
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return resolve_model(str(folder))


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, config)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA3_8B, "llama3-8b"),
        (MISTRAL_7B, "mistral-7b"),
        (QWEN2_7B, "qwen2-7b"),
        (QWEN3_32B, "qwen3-32b"),
        (GPT2, "gpt2-small"),
        (NEOX_20B, "gpt-neox-20b"),
        (BLOOM, "bloom-176b"),
        (MIXTRAL_8X7B, "mixtral-8x7b"),
        (QWEN3_30B_A3B, "qwen3-30b-a3b"),
        (DEEPSEEK_V3, "deepseek-v3"),
    ],
)
def test_a_published_config_is_the_catalogue_entry(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    loaded = load(tmp_path, config)
    known = catalog.load_model(name)
    told = {"name": name, "source": known.source} | TRAINED_WITH.get(name, {})
    assert loaded.spec.model_copy(update=told) == known
    assert loaded.assumptions


def test_catalogue_and_own_yaml_assume_nothing(tmp_path: Path) -> None:
    assert resolve_model("gpt2-small").assumptions == ()
    file = tmp_path / "model.yaml"
    file.write_text("num_layers: 2\nhidden_size: 64\nnum_heads: 4\nvocab_size: 256\n")
    assert resolve_model(str(file)).assumptions == ()


def test_folder_and_file_are_the_same_model(tmp_path: Path) -> None:
    by_folder = load(tmp_path, LLAMA3_8B | {"_name_or_path": "meta-llama/Meta-Llama-3-8B"})
    assert by_folder == resolve_model(str(tmp_path / "config.json"))
    assert by_folder.spec.name == "Meta-Llama-3-8B"


def test_every_assumption_is_said(tmp_path: Path) -> None:
    silent = {key: value for key, value in LLAMA3_8B.items() if key in {
        "model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"
    }}  # fmt: skip
    loaded = load(tmp_path, silent)
    assert loaded.assumptions == (
        "gated MLP, rmsnorm, rotary positions (model_type llama)",
        "as many key/value heads as heads (no num_key_value_heads)",
        "head_dim = hidden size / heads (no head_dim)",
        "sequences of up to 2048 tokens (no max_position_embeddings)",
        "untied embeddings (no tie_word_embeddings)",
        "norm epsilon 1e-06 (no rms_norm_eps)",
        "no attention biases (no attention_bias)",
        "no MLP biases (no mlp_bias)",
        "activation silu (no hidden_act)",
    )
    assert loaded.spec.num_kv_heads == loaded.spec.num_heads
    assert not loaded.spec.attention_output_bias


QWEN2_ROUND = {"use_sliding_window": True, "sliding_window": 4096, "num_hidden_layers": 28}


@pytest.mark.parametrize(
    ("config", "window", "windowed"),
    [
        (MISTRAL_7B, 4096, range(32)),
        (MISTRAL_7B | {"sliding_window": None}, None, range(0)),
        ({key: value for key, value in MISTRAL_7B.items() if key != "sliding_window"}, 4096, range(32)),
        (MISTRAL_7B | {"model_type": "phi3", "sliding_window": 2047}, 2047, range(32)),
        (QWEN2_7B, None, range(0)),
        (QWEN2_7B | {"use_sliding_window": True, "max_window_layers": 21}, 131072, range(21, 28)),
        (QWEN2_7B | {"use_sliding_window": True, "max_window_layers": 0}, 131072, range(28)),
        (QWEN2_7B | QWEN2_ROUND, None, range(0)),  # max_window_layers is 28 unless said
        (QWEN3_32B | {"layer_types": ["full_attention"] * 64}, None, range(0)),
        (
            MISTRAL_7B | {"layer_types": ["sliding_attention", "full_attention"] * 16},
            4096,
            range(0, 32, 2),
        ),
    ],
)
def test_windows_of_attention(
    tmp_path: Path, config: dict[str, Any], window: int | None, windowed: range
) -> None:
    spec = load(tmp_path, config).spec
    assert spec.attention_window == window
    found = [layer for layer in range(spec.num_layers) if spec.window_of(layer) is not None]
    assert found == list(windowed)


def test_blocks_in_turns_are_said(tmp_path: Path) -> None:
    """Prices know one block, the mean of all."""
    config = MISTRAL_7B | {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8}
    loaded = load(tmp_path, config)
    assert loaded.spec.window_pattern == ("window", "window", "window", "full")
    assert loaded.assumptions[-1] == (
        "every block is the mean of those with a window and without (3 window, 1 full), for prices"
    )


def test_gemma_is_gated_gelu_with_tied_embeddings_and_wide_heads(tmp_path: Path) -> None:
    spec = load(tmp_path, GEMMA_7B).spec
    assert (spec.gated_mlp, spec.activation, spec.tied_embeddings) == (True, "gelu", True)
    assert spec.query_size == 16 * 256


def test_opt_by_hand(tmp_path: Path) -> None:
    spec = load(tmp_path, OPT_125M).spec
    assert (spec.activation, spec.positions, spec.tied_embeddings, spec.mlp_bias) == (
        "relu",
        "learned",
        True,
        True,
    )
    for change in ({"word_embed_proj_dim": 512}, {"do_layer_norm_before": False}):
        assert "cannot be represented" in refusal(tmp_path, OPT_125M | change)


def test_blocks_without_experts_are_counted(tmp_path: Path) -> None:
    sparse = QWEN3_30B_A3B | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 2, 3]}
    spec = load(tmp_path, sparse).spec
    assert (spec.num_moe_layers, spec.moe_layers) == (24 - 2, tuple(range(5, 48, 2)))
    spec = load(tmp_path, DEEPSEEK_V3 | {"moe_layer_freq": 2}).spec
    assert (spec.num_moe_layers, spec.moe_layers[:2]) == (29, (4, 6))
    assert load(tmp_path, DEEPSEEK_V3).spec.moe_layers == ()  # the last ones, as usual


def test_nonsense_about_experts_is_told_under_its_key(tmp_path: Path) -> None:
    text = refusal(tmp_path, DEEPSEEK_V3 | {"kv_lora_rank": "wide", "moe_intermediate_size": -1})
    assert "`wide` is not a whole number" in text
    assert "config.json  moe_intermediate_size: must be at least 0, not `-1`" in text
    assert "experts_per_token 300 is not between" in refusal(
        tmp_path, DEEPSEEK_V3 | {"num_experts_per_tok": 300}
    )
    assert "mixture" in refusal(tmp_path, QWEN3_30B_A3B | {"model_type": "dbrx_moe"})


def test_missing_sizes_are_listed_together(tmp_path: Path) -> None:
    text = refusal(tmp_path, {"model_type": "llama", "hidden_size": 64, "vocab_size": None})
    assert text == (
        "config.json (model_type `llama`) does not say `num_hidden_layers`, `num_attention_heads`, "
        "`intermediate_size` or `vocab_size`\n"
        "hint: add them, or use a catalogue model: meshwright catalog models"
    )


def test_wrong_sizes_are_listed_under_the_keys_of_the_config(tmp_path: Path) -> None:
    text = refusal(tmp_path, GPT2 | {"n_layer": -1, "n_embd": "768", "tie_word_embeddings": "yes"})
    assert "config.json  n_layer: must be above zero, not `-1`" in text
    assert "config.json  n_embd: `768` is not a whole number" in text
    assert "config.json  tie_word_embeddings: `yes` is not `true` or `false`" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "does not say `num_experts_per_tok`"),
        ({"model_type": "qwen3_moe"}, "does not say `num_experts_per_tok`, `num_experts` or `moe_inter"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "`kv_lora_rank`, `qk_nope_head_dim`"),
        ({"num_local_experts": 8}, "(model_type `llama`) is a mixture of experts that cannot be represented"),
        (
            {"model_type": "jetmoe"},
            "(model_type `jetmoe`) is a mixture of experts that cannot be represented",
        ),
        ({"model_type": "gemma4"}, "cannot be represented; did you mean `gemma`?"),
        ({"model_type": "qwen3_next", "num_experts": 512}, "it has gated delta nets in three of four blocks"),
        ({"model_type": "t5"}, "model_type `t5`, which cannot be represented"),
        ({"layer_types": ["full_attention"] * 3}, "`layer_types` does not name each of its 32 blocks"),
        ({"layer_types": ["linear_attention"] * 32}, "it has blocks of `linear_attention` (`layer_types`)"),
        ({"model_type": "mistral", "sliding_window": "far"}, "sliding_window: `far` is not a whole number"),
        ({"model_type": None}, "does not say its `model_type`"),
        ({"model_type": ["llama"]}, "does not say its `model_type`"),
        ({"hidden_act": "mish"}, "hidden_act: `mish` is not one of"),
        ({"hidden_act": 3}, "hidden_act: `3` is not one of"),
        ({"num_key_value_heads": 5}, "num_heads 32 is not a multiple of num_kv_heads 5"),
    ],
)
def test_what_cannot_be_planned_is_refused_clearly(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    assert message in refusal(tmp_path, LLAMA3_8B | change)
