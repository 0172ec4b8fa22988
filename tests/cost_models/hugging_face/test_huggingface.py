"""Hugging Face configs as they are published → our shapes, with every assumption in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from configs import CONFIGS, load
from tables import rows

from cost_models.errors import InputError
from cost_models.files.loading import resolve_model


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, config)
    return str(caught.value).replace(f"{folder}/", "")


def test_catalogue_and_own_yaml_assume_nothing(tmp_path: Path) -> None:
    assert resolve_model("gpt2-small").assumptions == ()
    file = tmp_path / "model.yaml"
    file.write_text("num_layers: 2\nhidden_size: 64\nnum_heads: 4\nvocab_size: 256\n")
    assert resolve_model(str(file)).assumptions == ()


def test_folder_and_file_are_the_same_model(tmp_path: Path) -> None:
    by_folder = load(tmp_path, CONFIGS["llama3-8b"] | {"_name_or_path": "meta-llama/Meta-Llama-3-8B"})
    assert by_folder == resolve_model(str(tmp_path / "config.json"))
    assert by_folder.spec.name == "Meta-Llama-3-8B"


def test_every_assumption_is_said(tmp_path: Path) -> None:
    silent = {key: value for key, value in CONFIGS["llama3-8b"].items() if key in {
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


QWEN2_ROUND = {"use_sliding_window": True, "sliding_window": 4096, "num_hidden_layers": 28}


def test_windows_of_attention(tmp_path: Path) -> None:
    silent = {key: value for key, value in CONFIGS["mistral-7b"].items() if key != "sliding_window"}
    turns = {"layer_types": ["sliding_attention", "full_attention"] * 16}
    cases: list[tuple[dict[str, Any], int | None, range]] = [
        (silent, 4096, range(32)),
        (CONFIGS["mistral-7b"] | turns, 4096, range(0, 32, 2)),
        (CONFIGS["qwen3-32b"] | {"layer_types": ["full_attention"] * 64}, None, range(0)),
        (CONFIGS["qwen2-7b"] | QWEN2_ROUND, None, range(0)),  # max_window_layers is 28 unless said
    ]
    cases += [
        (
            CONFIGS[name] | yaml.safe_load(more),
            int(window) if window else None,
            range(*map(int, blocks.split())),
        )
        for name, more, window, blocks in rows("""
            mistral-7b | {} | 4096 | 32
            mistral-7b | {sliding_window: null} | - | 0
            mistral-7b | {model_type: phi3, sliding_window: 2047} | 2047 | 32
            qwen2-7b | {} | - | 0
            qwen2-7b | {use_sliding_window: true, max_window_layers: 21} | 131072 | 21 28
            qwen2-7b | {use_sliding_window: true, max_window_layers: 0} | 131072 | 28
        """)
    ]
    for config, window, windowed in cases:
        spec = load(tmp_path, config).spec
        assert spec.attention_window == window
        assert [at for at in range(spec.num_layers) if spec.window_of(at) is not None] == list(windowed)


def test_opt_by_hand(tmp_path: Path) -> None:
    spec = load(tmp_path, CONFIGS["opt-125m"]).spec
    assert (spec.activation, spec.positions) == ("relu", "learned")
    assert (spec.tied_embeddings, spec.mlp_bias) == (True, True)
    for change in ({"word_embed_proj_dim": 512}, {"do_layer_norm_before": False}):
        assert "cannot be represented" in refusal(tmp_path, CONFIGS["opt-125m"] | change)


def test_blocks_without_experts_are_counted(tmp_path: Path) -> None:
    sparse = CONFIGS["qwen3-30b-a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 2, 3]}
    spec = load(tmp_path, sparse).spec
    assert (spec.num_moe_layers, spec.moe_layers) == (24 - 2, tuple(range(5, 48, 2)))
    spec = load(tmp_path, CONFIGS["deepseek-v3"] | {"moe_layer_freq": 2}).spec
    assert (spec.num_moe_layers, spec.moe_layers[:2]) == (29, (4, 6))
    assert load(tmp_path, CONFIGS["deepseek-v3"]).spec.moe_layers == ()  # the last ones, as usual


def test_nonsense_about_experts_is_told_under_its_key(tmp_path: Path) -> None:
    text = refusal(tmp_path, CONFIGS["deepseek-v3"] | {"kv_lora_rank": "wide", "moe_intermediate_size": -1})
    assert "`wide` is not a whole number" in text
    assert "config.json  moe_intermediate_size: must be at least 0, not `-1`" in text
    many = CONFIGS["deepseek-v3"] | {"num_experts_per_tok": 300}
    assert "experts_per_token 300 is not between" in refusal(tmp_path, many)
    assert "mixture" in refusal(tmp_path, CONFIGS["qwen3-30b-a3b"] | {"model_type": "dbrx_moe"})


def test_missing_sizes_are_listed_together(tmp_path: Path) -> None:
    text = refusal(tmp_path, {"model_type": "llama", "hidden_size": 64, "vocab_size": None})
    assert text == (
        "config.json (model_type `llama`) does not say `num_hidden_layers`, `num_attention_heads`, "
        "`intermediate_size` or `vocab_size`\n"
        "hint: add them, or use a catalogue model: meshwright catalog models"
    )


def test_wrong_sizes_are_listed_under_the_keys_of_the_config(tmp_path: Path) -> None:
    wrong = {"n_layer": -1, "n_embd": "768", "tie_word_embeddings": "yes"}
    text = refusal(tmp_path, CONFIGS["gpt2-small"] | wrong)
    assert "config.json  n_layer: must be above zero, not `-1`" in text
    assert "config.json  n_embd: `768` is not a whole number" in text
    assert "config.json  tie_word_embeddings: `yes` is not `true` or `false`" in text


def test_what_cannot_be_planned_is_refused_clearly(tmp_path: Path) -> None:
    kinds = "`layer_types` does not name each of its 32 blocks"
    assert kinds in refusal(tmp_path, CONFIGS["llama3-8b"] | {"layer_types": ["full_attention"] * 3})
    kinds = "it has blocks of `linear_attention` (`layer_types`)"
    assert kinds in refusal(tmp_path, CONFIGS["llama3-8b"] | {"layer_types": ["linear_attention"] * 32})
    for change, message in rows("""
        {model_type: mixtral, num_local_experts: 8} | does not say `num_experts_per_tok`
        {model_type: qwen3_moe} | does not say `num_experts_per_tok`, `num_experts` or `moe_inter
        {model_type: deepseek_v3, n_routed_experts: 256} | `kv_lora_rank`, `qk_nope_head_dim`
        {num_local_experts: 8} | (model_type `llama`) is a mixture of experts that cannot be represented
        {model_type: newmoe} | (model_type `newmoe`) is a mixture of experts that cannot be represented
        {model_type: gemma4} | has model_type `gemma4`, which cannot be represented\\n
        {model_type: zamba2} | it has state spaces in every block
        {model_type: bart} | it has norms over sums in two stacks
        {model_type: marian} | model_type `marian`, which cannot be represented
        {model_type: mistral, sliding_window: far} | sliding_window: `far` is not a whole number
        {model_type: null} | does not say its `model_type`
        {model_type: [llama]} | does not say its `model_type`
        {hidden_act: mish} | hidden_act: `mish` is not one of
        {hidden_act: 3} | hidden_act: `3` is not one of
        {num_key_value_heads: 5} | num_heads 32 is not a multiple of num_kv_heads 5
    """):
        config = CONFIGS["llama3-8b"] | yaml.safe_load(change)
        assert message in refusal(tmp_path, config)
