"""Families of Hugging Face configs: what each says of its blocks, with the parameters of the published checkpoints.

Logits of small models of every family here are those of `transformers`, with its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from configs import CONFIGS, PARAMETERS, load
from tables import rows

from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.operators.parameters import total_parameters
from cost_models.specs.transformer import Rotary


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    assert total_parameters(load(tmp_path, CONFIGS[name]).spec) == PARAMETERS[name]


AS_CATALOGUE: dict[str, dict[str, Any]] = {
    "gemma2-9b": {"max_position_embeddings": 8192},
    "olmo2-32b": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-06},
}
NAMES = """
    gemma2-9b olmo2-32b gemma3-4b glm-4.5 gpt-oss-20b llama4-maverick kimi-k2 llama3-8b mistral-7b qwen2-7b qwen3-32b
    gpt2-small gpt-neox-20b bloom-176b mixtral-8x7b qwen3-30b-a3b deepseek-v3
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_a_published_config_is_the_catalogue_entry(tmp_path: Path, name: str) -> None:
    """But for DeepSeek-V3's load balance, which its paper has for training."""
    known, loaded = load_model(name), load(tmp_path, CONFIGS[name] | AS_CATALOGUE.get(name, {}))
    told = {"name": name, "source": known.source} | (
        {"load_balance": 0.0001} if name == "deepseek-v3" else {}
    )
    assert loaded.spec.model_copy(update=told) == known
    assert loaded.assumptions


def test_halves_side_by_side(tmp_path: Path) -> None:
    names = ("gptj-6b", "falcon-7b", "falcon-40b", "falcon-11b", "phi-2", "command-r", "command-r7b")
    configs = {name: CONFIGS[name] for name in names}
    configs["stablelm"] = CONFIGS["stablelm-3b"] | {"use_parallel_residual": True}
    for name, config in configs.items():
        spec = load(tmp_path, config).spec
        assert (spec.parallel_block, spec.parallel_norms) == (True, 2 if name == "falcon-40b" else 1), name
        assert not spec.left_out


def test_command_r7b_turns_heads_where_it_has_a_window(tmp_path: Path) -> None:
    spec = load(tmp_path, CONFIGS["command-r7b"]).spec
    assert [spec.window_of(layer) for layer in range(4)] == [4096, 4096, 4096, None]
    assert spec.rotary == Rotary(pattern=(True, True, True, False))
    smollm = load(tmp_path, CONFIGS["smollm3-3b"]).spec
    assert smollm.rotary == Rotary(base=5e6, pattern=(True, True, True, False))


def test_a_config_of_text_and_images_is_read_for_its_text(tmp_path: Path) -> None:
    """Google's file of the 4B leaves out what its class assumes; each of that is said."""
    said = load(tmp_path, CONFIGS["gemma3-4b"]).assumptions
    assert said[0] == "the part for text alone (text_config)"
    assert "num_attention_heads 8 (model_type gemma3_text)" in said
    wide = CONFIGS["gemma3-4b"]["text_config"] | {"hidden_size": "wide"}
    with pytest.raises(InputError, match=r"config.json  text_config.hidden_size: `wide` is not a whole"):
        load(tmp_path, CONFIGS["gemma3-4b"] | {"text_config": wide})


LEFT_OUT = """
    gemma2-9b | {} | soft-capped attention scores; soft-capped logits
    gemma2-9b | {attn_logit_softcapping: null} | soft-capped logits
    gemma3-4b | {} | -
    command-r-plus | {} | norms of every query and key head with gains of its own
    gpt-oss-20b | {} | clamped expert gates; yarn scaling of rotary positions
    llama4-maverick | {} | router weights that multiply what experts read; attention temperature
    kimi-k2 | {} | -
    falcon-7b | {alibi: true} | ALiBi slopes divided by the root of a head's width
    olmo2-32b | {rope_scaling: {rope_type: yarn, factor: 4.0}} | yarn scaling of rotary positions
    olmo2-32b | {rope_scaling: {rope_type: default}} | -
    olmo2-32b | {rope_scaling: {type: linear, factor: 4.0}} | -
"""


@pytest.mark.parametrize(("name", "more", "words"), rows(LEFT_OUT))
def test_what_blocks_here_do_not_compute_is_left_out_and_said(
    tmp_path: Path, name: str, more: str, words: str
) -> None:
    left_out = tuple(filter(None, words.split("; ")))
    loaded = load(tmp_path, CONFIGS[name] | yaml.safe_load(more))
    assert loaded.spec.left_out == left_out
    said = [one for one in loaded.assumptions if "`run` refuses" in one]
    without, priced = (", ".join(one) for one in (left_out, loaded.spec.not_in_executor))
    assert said == [
        *([f"a model without {without}, for prices; `run` refuses it"] if without else []),
        *([f"`run` refuses its {priced}, which prices know"] if priced else []),
    ]


def test_what_no_model_can_be_is_refused(tmp_path: Path) -> None:
    turned = [1] * 39 + [0]
    for name, more, what in rows(f"""
        phi-2 | {{qk_layernorm: true}} | it has layer norms of queries and keys
        phi-2 | {{partial_rotary_factor: half}} | rotary.dim: `half` is not a whole number
        gptj-6b | {{rotary_dim: 63}} | rotary.dim 63 is no even part of head_dim 256
        falcon-40b | {{num_ln_in_parallel_attn: 3}} | num_ln_in_parallel_attn
        command-r | {{logit_scale: 0.0}} | logit_scale: must be above zero
        smollm3-3b | {{no_rope_layers: {turned}}} | names 40 blocks, and num_layers is 36
    """):
        with pytest.raises(InputError, match=what):
            load(tmp_path, CONFIGS[name] | yaml.safe_load(more))
