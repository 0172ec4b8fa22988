"""Models read from Hugging Face configurations."""

from __future__ import annotations

import contextlib
import csv
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from calling import refusal
from tables import rows

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.gemm import device_of
from cost_models.compute.mixing import flash_seconds
from cost_models.defaults import complete_question
from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files.catalog import load_model
from cost_models.files.loading import LoadedModel, resolve_cluster, resolve_model
from cost_models.hugging_face.config import config_of, read_config, stated_fields
from cost_models.memory.activations import activation_bytes
from cost_models.operators.flops import causal_flops, forward_flops, model_flops
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Rotary, TransformerSpec

_PUBLISHED = yaml.safe_load(Path(__file__).with_name("configs.yaml").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = {name: one["config"] for name, one in _PUBLISHED.items()}
PARAMETERS: dict[str, int] = {
    name: one["parameters"] for name, one in _PUBLISHED.items() if "parameters" in one
}


def load(folder: Path, config: dict[str, Any]) -> LoadedModel:
    """The model that the config describes, from a file of its own."""
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return resolve_model(str(folder))


def refused(folder: Path, config: dict[str, Any]) -> str:
    return refusal(load, folder, config).replace(f"{folder}/", "")


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
        assert "cannot be represented" in refused(tmp_path, CONFIGS["opt-125m"] | change)


def test_blocks_without_experts_are_counted(tmp_path: Path) -> None:
    sparse = CONFIGS["qwen3-30b-a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 2, 3]}
    spec = load(tmp_path, sparse).spec
    assert (spec.num_moe_layers, spec.moe_layers) == (24 - 2, tuple(range(5, 48, 2)))
    spec = load(tmp_path, CONFIGS["deepseek-v3"] | {"moe_layer_freq": 2}).spec
    assert (spec.num_moe_layers, spec.moe_layers[:2]) == (29, (4, 6))
    assert load(tmp_path, CONFIGS["deepseek-v3"]).spec.moe_layers == ()  # the last ones, as usual


def test_nonsense_about_experts_is_told_under_its_key(tmp_path: Path) -> None:
    text = refused(tmp_path, CONFIGS["deepseek-v3"] | {"kv_lora_rank": "wide", "moe_intermediate_size": -1})
    assert "`wide` is not a whole number" in text
    assert "config.json  moe_intermediate_size: must be at least 0, not `-1`" in text
    many = CONFIGS["deepseek-v3"] | {"num_experts_per_tok": 300}
    assert "experts_per_token 300 is not between" in refused(tmp_path, many)
    assert "mixture" in refused(tmp_path, CONFIGS["qwen3-30b-a3b"] | {"model_type": "dbrx_moe"})


def test_missing_sizes_are_listed_together(tmp_path: Path) -> None:
    text = refused(tmp_path, {"model_type": "llama", "hidden_size": 64, "vocab_size": None})
    assert text == (
        "config.json (model_type `llama`) does not say `num_hidden_layers`, `num_attention_heads`, "
        "`intermediate_size` or `vocab_size`\n"
        "hint: add them, or use a catalogue model: meshwright catalog models"
    )


def test_wrong_sizes_are_listed_under_the_keys_of_the_config(tmp_path: Path) -> None:
    wrong = {"n_layer": -1, "n_embd": "768", "tie_word_embeddings": "yes"}
    text = refused(tmp_path, CONFIGS["gpt2-small"] | wrong)
    assert "config.json  n_layer: must be above zero, not `-1`" in text
    assert "config.json  n_embd: `768` is not a whole number" in text
    assert "config.json  tie_word_embeddings: `yes` is not `true` or `false`" in text


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


def test_what_blocks_here_do_not_compute_is_left_out_and_said(tmp_path: Path) -> None:
    for name, more, words in rows(LEFT_OUT):
        left_out = tuple(filter(None, words.split("; ")))
        loaded = load(tmp_path, CONFIGS[name] | yaml.safe_load(more))
        assert loaded.spec.left_out == left_out
        said = [one for one in loaded.assumptions if "`run` refuses" in one]
        without, priced = (", ".join(one) for one in (left_out, loaded.spec.not_in_executor))
        assert said == [
            *([f"a model without {without}, for prices; `run` refuses it"] if without else []),
            *([f"`run` refuses its {priced}, which prices know"] if priced else []),
        ]


BASE: dict[str, Any] = yaml.safe_load("""
    {hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12, intermediate_size: 3072, vocab_size: 30522,
    max_position_embeddings: 512, type_vocab_size: 2}
""")
ROBERTA = {"vocab_size": 50265, "pad_token_id": 1}
COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    name: (BASE | (ROBERTA if "roberta" in name and count > 120e6 else {}) | more, count)
    for name, (count, more) in yaml.safe_load("""
        bert: [109514298, {}]
        ernie: [109514298, {}]
        camembert: [109514298, {}]
        xlm-roberta: [109514298, {}]
        data2vec-text: [109514298, {}]
        roberta: [124696665, {}]
        roberta-prelayernorm: [124698201, {}]
        electra: [17519674, {hidden_size: 256, embedding_size: 256, num_attention_heads: 4, intermediate_size: 1024}]
        distilbert: [66985530, {dim: 768, n_layers: 6, n_heads: 12, hidden_dim: 3072}]
        megatron-bert: [333671808, {hidden_size: 1024, num_hidden_layers: 24, num_attention_heads: 16,
            intermediate_size: 4096, vocab_size: 29056}]
        xlm-roberta-xl: [3482741760, {hidden_size: 2560, num_hidden_layers: 36, num_attention_heads: 32,
            intermediate_size: 10240, vocab_size: 250880, max_position_embeddings: 514, type_vocab_size: 1}]
    """).items()
}
"""By `AutoModelForMaskedLM` of transformers 5.24 on the meta device."""


def read(model_type: str, config: dict[str, Any]) -> TransformerSpec:
    fields, _ = read_config(Document(source="config.json", value={"model_type": model_type} | config))
    return TransformerSpec.model_validate(fields.value)


@pytest.mark.parametrize("model_type", COUNTED)
def test_configs_have_every_parameter(model_type: str) -> None:
    config, count = COUNTED[model_type]
    assert total_parameters(read(model_type, config)) == count


@pytest.mark.parametrize("model_type", ["bert", "roberta", "megatron-bert", "roberta-prelayernorm"])
def test_a_model_is_written_as_it_was_read(model_type: str) -> None:
    spec = read(model_type, COUNTED[model_type][0])
    config = config_of(spec, "float32")
    assert stated_fields(read(config["model_type"], config)) == stated_fields(spec)


def test_flops_by_hand() -> None:
    """A block 24·s·h² + 4·s²·h; the head 2·s·h·V and a square matrix. Every token is attended to."""
    model, s, h = resolve_model("bert-large").spec, 512, 1024
    found = forward_flops(model, s)
    assert found.block == 24 * s * h**2 + 4 * s**2 * h
    assert found.head == 2 * s * h * 30522 + 2 * s * h**2
    training = TrainingSpec(global_batch=8, sequence_length=s)
    assert causal_flops(model, training) == model_flops(model, training)


def test_parameters_and_bytes_of_the_ends_by_hand() -> None:
    """Norms over sums leave none at the end; the square matrix, whole on every rank, keeps what it reads, what its
    activation reads and what its norm reads, and so does the output matrix."""
    model, h = resolve_model("bert-base").spec, 768
    one = parameters(model, np.array([2]))
    assert one.head_vectors[0] == h * h + h + 2 * h + 30522 / 2
    assert one.embedding[0] == 30522 * h / 2 + (512 + 2) * h + 2 * h
    training = TrainingSpec(global_batch=8, sequence_length=128, dropout=0.0)
    question = complete_question(model, resolve_cluster("dgx-a100-80gb", 8), training)
    kept = activation_bytes(question, LayoutColumns.of([Layout(mbs=4)]))
    assert kept.head[0] == 4 * 2 * (4 * 128) * h
    assert kept.embedding[0] == 2 * (4 * 128) * h


def test_attention_both_ways_is_twice_the_work() -> None:
    """Less what causal kernels do in vain."""
    model = resolve_model("bert-base").spec
    training = TrainingSpec(global_batch=8, sequence_length=4096)
    question = complete_question(model, resolve_cluster("dgx-a100-80gb", 8), training)
    one, device = LayoutColumns.of([Layout(mbs=8)]), device_of(question, uncast=True)
    causal = replace(question, model=model.model_copy(update={"encoder": None}))
    both, half = (flash_seconds(which, one, device)[0][0] for which in (question, causal))
    assert both / half == pytest.approx(2 / (1 + 600 / 4096))


def test_what_an_encoder_cannot_be() -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "encoder": {}}
    for more, why in (
        ({"attention_window": 8}, "attention_window is for decoders"),
        ({"further_tokens": 1}, "further_tokens is for decoders"),
        ({"positions": "alibi"}, "alibi positions are for decoders"),
        ({"encoder": {"mask_token": 256}}, "mask_token 256 is not below vocab_size 256"),
        ({"encoder": {"first_position": 9}, "max_positions": 8}, "first_position 9 is not below max_pos"),
    ):
        with pytest.raises(ValueError, match=why):
            TransformerSpec.model_validate(shape | more)


FOLDER = Path(__file__).parents[3] / "benchmarks" / "hugging_face"
CONFIGS_PUBLISHED_CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (FOLDER / "published.json").read_text("utf-8")
)
DELTA = {"num_experts": 8, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
DELTA |= {"num_experts_per_tok": 2}
with (FOLDER / "published.csv").open(encoding="utf-8") as _file:
    BY_TRANSFORMERS = {row["model"]: int(row["parameters"]) for row in csv.DictReader(_file)}


@pytest.mark.parametrize("name", CONFIGS_PUBLISHED_CONFIGS)
def test_parameters_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS[name]).spec
    assert total_parameters(model) == pytest.approx(BY_TRANSFORMERS[name], rel=1e-3)


def test_windows_and_positions_are_read_block_by_block(tmp_path: Path) -> None:
    exaone = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["LGAI-EXAONE/EXAONE-4.0-32B"]).spec
    assert [exaone.window_of(layer) for layer in range(4)] == [4096, 4096, 4096, None]
    assert exaone.rotary.pattern == (True, True, True, False)
    ministral = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["mistralai/Ministral-8B-Instruct-2410"]).spec
    assert [ministral.window_of(layer) for layer in range(4)] == [None, 32768, 32768, 32768]
    ernie = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["baidu/ERNIE-4.5-300B-A47B-Base-PT"]).spec
    assert (ernie.num_moe_layers, ernie.is_mixture(2), ernie.is_mixture(3)) == (51, False, True)


def test_factors_are_read_and_what_blocks_lack_is_named(tmp_path: Path) -> None:
    granite = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["ibm-granite/granite-3.3-8b-base"]).spec
    assert (granite.embedding_scale, granite.attention_scale) == (12.0, 0.0078125)
    assert granite.logit_scale == 1 / 16
    assert (granite.residual_scale, granite.left_out) == (0.22, ())
    clipped = load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["allenai/OLMo-7B-hf"] | {"clip_qkv": 8.0}).spec
    assert "clipped queries, keys and values" in clipped.left_out
    assert any(
        "xIELU" in what
        for what in load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["swiss-ai/Apertus-8B-2509"]).spec.left_out
    )


FEATURES = """
    hidden_size_per_layer_input altup_num_inputs laurel_rank num_kv_shared_layers global_head_dim
    attention_k_eq_v enable_moe_block cross_attention_layers compress_ratios index_topk o_lora_rank
    hc_mult num_hash_layers num_experts num_local_experts relative_attention
"""


def test_a_feature_that_a_file_turns_off_is_no_reason_to_refuse_it(tmp_path: Path) -> None:
    """With all of them off a config is refused for its type alone; each that is on is named."""
    usual = CONFIGS_PUBLISHED_CONFIGS["Qwen/Qwen3-8B"]
    types = "gemma4_text gemma3n mllama_text_model deberta deepseek_v4 newer"
    for off, model_type in product((0, False, None, []), types.split()):
        said = refused(tmp_path, usual | dict.fromkeys(FEATURES.split(), off) | {"model_type": model_type})
        assert said.splitlines()[0].endswith(f"has model_type `{model_type}`, which cannot be represented")
    on = {"model_type": "gemma4_text", "num_kv_shared_layers": 3}
    said = refused(tmp_path, usual | dict.fromkeys(FEATURES.split()) | on)
    assert "keys and values of others" in said
    assert "of their own in every block" not in said


KEYS = """
    attention_bias qk_layernorm word_embed_proj_dim moe_latent_size num_nextn_predict_layers
    embedding_size position_embedding_type sinusoidal_pos_embds use_task_id is_decoder
    apply_residual_connection_post_layernorm index_topk_freq indexer_types num_shared_expert
"""


@pytest.mark.parametrize("off", [0, None], ids=str)
def test_what_a_known_family_would_refuse_may_be_turned_off(tmp_path: Path, off: Any) -> None:
    for name, config in CONFIGS_PUBLISHED_CONFIGS.items():
        with contextlib.suppress(InputError):
            usual = load(tmp_path, config).spec
            for key in (key for key in KEYS.split() if not config.get(key)):
                spec = load(tmp_path, config | {key: off}).spec
                assert spec.num_layers == usual.num_layers, (name, key)


def test_a_key_that_nothing_reads_is_said(tmp_path: Path) -> None:
    def said(**more: Any) -> str:
        return "; ".join(load(tmp_path, CONFIGS_PUBLISHED_CONFIGS["Qwen/Qwen3-8B"] | more).assumptions)

    assert "not read" not in said(bos_token_id=1, torch_dtype="bfloat16", use_mup=False, extra=None)
    assert "nothing of memory_slots 16, rope_style new: not read" in said(memory_slots=16, rope_style="new")


def test_keys_of_transformers_5_are_not_said_to_be_unread(tmp_path: Path) -> None:
    config = {
        **CONFIGS_PUBLISHED_CONFIGS["Qwen/Qwen3-8B"],
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    }
    config = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    loaded = load(tmp_path, config)
    assert loaded.spec.rotary.base == 1e6
    assert not any("not read" in one for one in loaded.assumptions)


def test_what_no_model_here_can_be_is_refused(tmp_path: Path) -> None:
    configs = CONFIGS | CONFIGS_PUBLISHED_CONFIGS | {"encoder": BASE}
    lists = {"FULL": ["full_attention"] * 3, "LINEAR": ["linear_attention"] * 32, "TURNED": [1] * 39 + [0]}
    lists |= {"RING": ["ring_attention"] * 36, "UNLIKE": [8] * 31 + [4]}
    for name, change, message in rows("""
        llama3-8b | {layer_types: FULL} | `layer_types` does not name each of its 32 blocks
        llama3-8b | {layer_types: LINEAR} | it has blocks of `linear_attention` (`layer_types`)
        llama3-8b | {model_type: mixtral, num_local_experts: 8} | does not say `num_experts_per_tok`
        llama3-8b | {model_type: qwen3_moe} | does not say `num_experts_per_tok`, `num_experts` or `moe_inter
        llama3-8b | {model_type: deepseek_v3, n_routed_experts: 256} | `kv_lora_rank`, `qk_nope_head_dim`
        llama3-8b | {num_local_experts: 8} | (model_type `llama`) is a mixture of experts that cannot be represented
        llama3-8b | {model_type: newmoe} | (model_type `newmoe`) is a mixture of experts that cannot be represented
        llama3-8b | {model_type: gemma4} | has model_type `gemma4`, which cannot be represented\\n
        llama3-8b | {model_type: zamba2} | it has state spaces in every block, which has no price here
        llama3-8b | {model_type: bart} | it has norms over sums in two stacks
        llama3-8b | {model_type: marian} | model_type `marian`, which cannot be represented
        llama3-8b | {model_type: mistral, sliding_window: far} | sliding_window: `far` is not a whole number
        llama3-8b | {model_type: null} | does not say its `model_type`
        llama3-8b | {model_type: [llama]} | does not say its `model_type`
        llama3-8b | {hidden_act: mish} | hidden_act: `mish` is not one of
        llama3-8b | {hidden_act: 3} | hidden_act: `3` is not one of
        llama3-8b | {num_key_value_heads: 5} | num_heads 32 is not a multiple of num_kv_heads 5
        phi-2 | {qk_layernorm: true} | it has layer norms of queries and keys
        phi-2 | {partial_rotary_factor: half} | rotary.dim: `half` is not a whole number
        gptj-6b | {rotary_dim: 63} | rotary.dim 63 is no even part of head_dim 256
        falcon-40b | {num_ln_in_parallel_attn: 3} | num_ln_in_parallel_attn
        command-r | {logit_scale: 0.0} | logit_scale: must be above zero
        smollm3-3b | {no_rope_layers: TURNED} | names 40 blocks, and num_layers is 36
        encoder | {model_type: bert, is_decoder: true} | it is a decoder
        encoder | {model_type: bert, position_embedding_type: relative_key} | positions of its own in attention
        encoder | {model_type: electra, embedding_size: 128} | embeddings are narrower
        encoder | {model_type: modernbert} | a first block without a norm
        Qwen/Qwen3-8B | {model_type: gemma3n} | embeddings of their own in every block
        Qwen/Qwen3-8B | {model_type: longcat_flash} | two attentions a block
        Qwen/Qwen3-8B | {model_type: qwen3_next, layer_types: RING, EXPERTS} | blocks of `ring_attention`
        tencent/Hunyuan-A13B-Pretrain | {moe_topk: UNLIKE} | its blocks differ in `moe_topk`
        tencent/Hunyuan-A13B-Pretrain | {num_shared_expert: 2} | several shared experts
        tencent/Hunyuan-A13B-Pretrain | {moe_intermediate_size: 1024} | not as wide as `intermediate_size`
        tencent/Hunyuan-A13B-Pretrain | {moe_topk: []} | moe_topk
    """):
        experts = json.dumps(DELTA)[1:-1]
        change = change.replace("EXPERTS", experts)
        for word, values in lists.items():
            change = change.replace(word, json.dumps(values))
        assert message in refused(tmp_path, configs[name] | yaml.safe_load(change)), (name, change)
