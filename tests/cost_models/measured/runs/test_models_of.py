"""Shapes from incomplete rows."""

from __future__ import annotations

import pytest

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.measured.runs.conversion import model_of
from cost_models.measured.runs.printed import Notes, PrintedRow
from cost_models.specs.transformer import TransformerSpec


def read(notes: Notes | None = None, **cells: str) -> TransformerSpec:
    return model_of(
        PrintedRow({"seq_len": "4096"} | cells), catalog.load_stack("fsdp"), [] if notes is None else notes
    )


@pytest.mark.parametrize(
    ("name", "catalogued"),
    [
        ("Llama 3.1 8B", "llama3.1-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("Meta-Llama-3-70B-Instruct", "llama3-70b"),
        ("Llama3-405B", "llama3.1-405b"),
        ("Mistral-7B-v0.1", "mistral-7b"),
        ("Qwen2.5-7B", "qwen2-7b"),
    ],
)
def test_names_however_they_are_spelt(name: str, catalogued: str) -> None:
    assert read(model_name=name) == catalog.load_model(catalogued)


def test_a_name_nobody_knows_needs_a_shape() -> None:
    with pytest.raises(InputError, match="`layers` or `hidden`"):
        read(model_name="Frobnicator-9B")


def test_blank_cells_are_those_of_the_model_of_that_name_and_size() -> None:
    notes = Notes()
    found = read(notes, model_name="Llama-3-8B", layers="32", hidden="4096")
    known = catalog.load_model("llama3-8b")
    assert (found.num_kv_heads, found.ffn_hidden_size, found.vocab_size) == (8, 14336, 128256)
    assert found.gated_mlp
    assert not found.tied_embeddings
    assert found.norm == known.norm
    assert any("kv_heads" in words and "llama3-8b" in words for words in notes)


def test_what_the_row_says_goes_before_the_catalogue() -> None:
    found = read(
        model_name="Llama-3-8B", layers="32", hidden="4096", heads="64", vocab="32000", ffn_hidden="11008"
    )
    assert (found.num_heads, found.num_kv_heads, found.vocab_size) == (64, 64, 32000)
    assert found.ffn_hidden_size == 11008
    other = read(model_name="Llama-3-8B", layers="16", hidden="2048")
    assert other.vocab_size != 128256


def test_a_narrow_mlp_is_gated() -> None:
    assert read(layers="32", hidden="4096", ffn_hidden="11008").gated_mlp
    assert not read(layers="32", hidden="4096", ffn_hidden="16384").gated_mlp
    assert not read(layers="32", hidden="4096", ffn_hidden="11008", ffn_kind="gelu").gated_mlp


@pytest.mark.parametrize(
    ("name", "layers"),
    [("DeepSeekV3 (w/o MTP)", 61), ("DeepSeekV3 (tokendrop)", 61), ("deepseekv3 (4 layers)", 4)],
)
def test_words_in_parentheses_and_fewer_blocks_keep_latents(name: str, layers: int) -> None:
    """Tables give heads by the width of their values, 128; keys have 64 numbers more, and groups limit routing."""
    cells = {
        "model_name": name, "layers": str(layers), "hidden": "7168", "heads": "128", "head_dim": "128",
        "kv_heads": "128", "moe_experts": "256", "moe_top_k": "8", "moe_ffn_hidden": "2048", "seq_len": "4096",
        "moe_layers": str(layers - 3) if layers > 4 else "3",
    }  # fmt: skip
    whole = catalog.load_model("deepseek-v3")
    read = model_of(PrintedRow(cells), catalog.load_stack("nemo"), Notes())
    assert read.num_layers == layers
    assert (read.head_dim, read.latent_attention) == (whole.head_dim, whole.latent_attention)
    assert (read.expert_groups, read.shared_expert_ffn_hidden_size) == (whole.expert_groups, 2048)


def test_biases_and_windows_are_those_of_the_model_of_that_name() -> None:
    """No column says that GPT-OSS has biases, sinks, and a window in every other block."""
    known = catalog.load_model("gpt-oss-120b")
    found = read(model_name="GPT OSS 120B", layers="36", hidden="2880", heads="64", moe_experts="128")
    for name in ("mlp_bias", "attention_bias", "attention_sinks", "attention_window", "window_pattern"):
        assert getattr(found, name) == getattr(known, name)
        assert getattr(found, name)
