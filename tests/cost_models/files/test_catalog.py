"""Every catalogue entry meets its contract, and the shapes are the published ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_models.errors import InputError, UnknownNameError
from cost_models.files import catalog
from cost_models.operators.parameters import parameters as on_rank
from cost_models.operators.parameters import total_parameters
from cost_models.specs.transformer import TransformerSpec


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_loads_and_says_where_its_shape_was_read(name: str) -> None:
    model = catalog.load_model(name)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize("name", catalog.names("gpus"))
def test_every_gpu_is_a_datasheet_in_full(name: str) -> None:
    gpu = catalog.load_gpu(name)
    assert gpu.name == name
    assert gpu.source
    assert gpu.sm_count > 1
    assert gpu.l2_cache
    assert gpu.tdp_watts
    assert gpu.host_bandwidth
    assert gpu.host_bandwidth < gpu.memory_bandwidth
    assert gpu.vector_rate == gpu.peak["fp32"]
    # twice at least: boards for players accumulate at half rate
    assert gpu.peak["fp16"] >= 1.9 * gpu.peak["fp32"]
    if "fp8" in gpu.peak:  # dense for dense, fp8 is twice bf16 on every GPU that has it
        assert gpu.peak["fp8"] == pytest.approx(2 * gpu.peak["bf16"], rel=1e-3)


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_every_cluster_loads_as_one_node_with_its_gpu_written_out(name: str) -> None:
    cluster = catalog.load_cluster(name)
    assert cluster.name == name
    assert cluster.nodes == 1
    assert cluster.source
    assert cluster.links.intra_node.bandwidth > 0
    if network := cluster.links.inter_node:
        assert network.bandwidth < cluster.links.intra_node.bandwidth
        assert network.latency > cluster.links.intra_node.latency
    restored = type(cluster).model_validate_json(cluster.model_dump_json())
    assert restored == cluster


def test_every_stack_and_profile_loads_under_its_file_name() -> None:
    for name in catalog.names("stacks"):
        assert catalog.load_stack(name).name == name
    for name in catalog.names("profiles"):
        profile = catalog.load_profile(name)
        assert (profile.name, sum(one.runs for one in profile.timed)) == (name, profile.validated_runs)


def parameters(model: TransformerSpec) -> int:
    """By hand: attention h(q + 2kv) + qh, MLP 2 or 3 h·f, norms, biases; embeddings V·h (once: tied)."""
    h, q, kv, f = model.hidden_size, model.query_size, model.kv_size, model.ffn_hidden_size
    norm = 2 * h if model.norm == "layernorm" and model.norm_bias else h
    norms = model.parallel_norms if model.parallel_block else 4 if model.norm_placement == "around" else 2
    attention = h * (q + 2 * kv) + q * h
    attention += (q + 2 * kv) * model.attention_bias + h * model.attention_output_bias
    attention += (2 * model.head_dim if model.qk_norm_over == "head" else q + kv) * model.qk_norm
    mlp = (3 if model.gated_mlp else 2) * h * f + (f + h) * model.mlp_bias
    embeddings = model.vocab_size * h * (1 if model.tied_embeddings else 2)
    embeddings += model.max_positions * h if model.positions == "learned" else 0
    embeddings += norm * model.embedding_norm
    return model.num_layers * (attention + mlp + norms * norm) + embeddings + norm


# parameter counts of the released checkpoints, as their safetensors headers state them
COUNTS = """
    gpt2-small 124439808 gpt2-medium 354823168 gpt2-large 774030080 gpt2-xl 1557611200 llama2-7b
    6738415616 llama2-13b 13015864320 llama2-70b 68976648192 llama3-8b 8030261248 llama3-70b 70553706496
    llama3.1-405b 405853388800 llama3.2-1b 1235814400 llama3.2-3b 3212749824 mistral-7b 7241732096
    gpt-neox-20b 20554567680 bloom-176b 176247271424 qwen2-0.5b 494032768 qwen2-1.5b 1543714304 qwen2-7b
    7615616512 qwen2-72b 72706203648 qwen3-0.6b 596049920 qwen3-8b 8190735360 qwen3-32b 32762123264
    gemma2-2b 2614341888 gemma2-9b 9241705984 gemma2-27b 27227128320 gemma3-270m 268098176 gemma3-1b
    999885952 olmo2-1b 1484916736 olmo2-7b 7298617344 olmo2-13b 13716198400 olmo2-32b 32234279936
"""
EXACT = dict(zip(COUNTS.split()[::2], map(int, COUNTS.split()[1::2]), strict=True))
# less 416 866 032 of what sees, and h x 1152 + 1152 that lead from it
EXACT["gemma3-4b"] = 4_300_079_472 - 416_866_032 - 2561 * 1152
EXACT["gemma3-12b"] = 12_187_325_040 - 416_866_032 - 3841 * 1152
EXACT["gemma3-27b"] = 27_432_406_640 - 416_866_032 - 5377 * 1152


# parameters as the safetensors headers state them (DeepSeek: less the block that predicts a second token and the
# router's bias) and billions active for each token as reports print them, within a tolerance. As `transformers` builds
# them from Llama 4 on: Llama 4 for text alone, GLM-4.5 without what predicts a second token, and none with a router's
# bias; active as printed, gpt-oss and GLM-4.5 without their embedding, which is added here
MIXTURES = """
    mixtral-8x7b 46702792704 12.9 0.05  mixtral-8x22b 140630071296 39.1 0.1
    qwen3-30b-a3b 30532122624 3.3 0.06  qwen3-235b-a22b 235093634560 22 0.3
    deepseek-v2-lite 15706484224 2.7 0.3  deepseek-v2 235741434880 21 0.5
    deepseek-v3 671026404352 37 0.6  llama4-scout 107769861120 17 0.2
    llama4-maverick 400711848960 17 0.2  gpt-oss-20b 20914757184 4.189 0.005
    gpt-oss-120b 116829156672 5.709 0.005  glm-4.5 352797814784 32.776 0.9
    glm-4.5-air 106852245504 12.621 0.9  kimi-k2 1026408209408 32.6 0.3
    qwen3-next-80b 79674391296 3.9 0.1  nemotron3-nano 31577937344 3.6 0.05
    jamba-52b 51570323328 12 0.2  deepseek-v3.2 671877929216 37.9 0.6
"""


@pytest.mark.parametrize(
    "words", [*zip(*[iter(MIXTURES.split())] * 4, strict=True)], ids=lambda words: words[0]
)
def test_mixtures_have_the_published_parameters(words: tuple[str, ...]) -> None:
    model = catalog.load_model(words[0])
    total, active, tolerance = int(words[1]), float(words[2]), float(words[3])
    assert total_parameters(model) == total
    experts = model.num_layers * on_rank(model, np.array([1])).experts[0]
    passed_by = (1 - model.experts_per_token / model.num_experts) * experts
    assert (total - passed_by) / 1e9 == pytest.approx(active, abs=tolerance)


@pytest.mark.parametrize(("name", "published"), EXACT.items())
def test_parameters_match_the_released_checkpoint(name: str, published: int) -> None:
    assert parameters(catalog.load_model(name)) == total_parameters(catalog.load_model(name)) == published


# billions, as the papers print them: LLaMA Table 2, SC21 Table 1, Nemotron-4 reports
ROUNDED = {
    0.05: """
        llama-7b 6.7 llama-13b 13.0 llama-30b 32.5 megatron-1.7b 1.7 megatron-3.6b 3.6 megatron-7.5b 7.5
        megatron-18b 18.4 megatron-39b 39.1 megatron-76b 76.1 megatron-145b 145.6 megatron-310b 310.1
        megatron-530b 529.6 megatron-1t 1008.0 gpt3-175b 174.6 nemotron4-15b 15.6
    """,
    0.1: """
        llama-65b 65.2 nemotron4-340b 341.0
    """,
    1e-4: """
        mpt-30b 29.9752 mpt-70b 64.8624
    """,
}
"""Tolerance → names and billions of parameters."""


@pytest.mark.parametrize("tolerance", ROUNDED)
def test_parameters_match_the_paper(tolerance: float) -> None:
    words = ROUNDED[tolerance].split()
    for name, billions in zip(words[::2], words[1::2], strict=True):
        count = parameters(catalog.load_model(name)) / 1e9
        assert count == pytest.approx(float(billions), abs=tolerance), name


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown model `lama3-70b`; did you mean `llama3-70b`"):
        catalog.load_model("lama3-70b")
    with pytest.raises(UnknownNameError) as caught:
        catalog.load_gpu("h100-smx")
    assert "did you mean `h100-sxm`?" in caught.value.headline
    assert "meshwright catalog gpus" in caught.value.hint


def test_stacks_and_profiles_may_be_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("kind: stack\nname: mine\nattention: flash2\n")
    assert catalog.load_stack(str(file)).name == "mine"
    file.write_text("kind: stack\nname: other\nattention: fast\n")
    with pytest.raises(InputError, match="is a `stack`; a `profile` is needed"):
        catalog.load_profile(str(file))
