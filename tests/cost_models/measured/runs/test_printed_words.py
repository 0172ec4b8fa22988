"""Words of other people's tables: hardware, models, policies, experts, stacks, and what blank cells stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from tables import from_printed, rows

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Offload
from cost_models.axes.words import EVERY
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import fit_families, pair_of
from cost_models.measured.runs.cases import Case, read_case
from cost_models.measured.runs.conversion import model_of, printed_case
from cost_models.measured.runs.printed import (
    Notes,
    PrintedRow,
    cluster_of,
    expert_changes,
    further_tokens,
    is_suspect,
    keeps_experts_whole,
    meaning,
    precision_of,
    recompute_of,
    spellings,
    stack_of,
    zero_of,
)
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.memory.states import state_bytes
from cost_models.pipeline.pricing import estimate
from cost_models.specs.transformer import TransformerSpec

SMALL = {
    "row_id": "lab-1", "framework": "PyTorch FSDP", "model_name": "Llama-3-8B", "layers": "32",
    "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn_hidden": "14336", "ffn_kind": "swiglu",
    "vocab": "128256", "seq_len": "4096", "gpu": "H100-SXM-80GB", "num_gpus": "64", "micro_batch": "1",
    "global_batch": "256", "zero_stage": "3", "recompute": "full", "precision": "bf16",
}  # fmt: skip
LARGE = {
    "row_id": "lab-1", "framework": "Megatron-Core", "model_name": "llama3.1-405b", "seq_len": "8192",
    "gpu": "H100-SXM-80GB", "gpus_per_node": "8", "num_gpus": "8192", "tp": "8", "pp": "16",
    "global_batch": "2048", "precision": "bf16", "recompute": "none",
}  # fmt: skip


def cells(text: str) -> dict[str, str]:
    """`name=value` pairs with ` & ` between them."""
    return dict(one.split("=", 1) for one in text.split(" & ")) if text else {}


def read(text: str = "", **more: str) -> Case:
    """The case of a small run with these cells."""
    return printed_case(PrintedRow(SMALL | cells(text) | more))


def large(text: str = "", **more: str) -> Case:
    """The case of a run of 405B on 8,192 GPUs with these cells."""
    return printed_case(PrintedRow(LARGE | cells(text) | more))


def predicted(**more: str) -> Prediction:
    (one,) = predict([from_printed(LARGE | more)])
    return one


def test_every_gpu_that_tables_name_is_in_the_catalogue_with_a_cluster() -> None:
    for gpu in {name for _, name in spellings()["gpus"]}:
        small = cluster_of(PrintedRow({}), gpu, 1, Notes())
        large = cluster_of(PrintedRow({"gpus_per_node": "8"}), gpu, 144, Notes())
        assert small.gpu.name == large.gpu.name == gpu
        assert (small.num_gpus, large.num_gpus) == (1, 144)


def test_names_of_gpus() -> None:
    for words, gpu in rows("""
        A100-SXM-80GB | a100-sxm-80gb
        NVIDIA A100 40GB PCIe | a100-pcie-40gb
        GH200 (Hopper) | gh200
        RTX A6000 (Ampere) | rtx-a6000
        RTX 6000 Ada | rtx-6000-ada
        AMD Instinct MI250X (GCD) | mi250x-gcd
        AWS p4d.24xlarge (A100) | a100-sxm-40gb
        Cerebras WSE-2 | -
    """):
        assert (meaning("gpus", words.lower()) or "") == gpu, words


def test_networks() -> None:
    for gpu, words, gigabits, kind in rows("""
        a100-sxm-80gb | 8x200Gb HDR IB per node | 200 | infiniband
        a100-sxm-80gb | 1600 Gb/s node-node (RoCE) | 200 | roce
        a100-sxm-80gb | 800 Gb/s per node (4x200Gb HDR IB), NVLink 150 GB/s | 100 | infiniband
        a100-sxm-80gb | - | 200 | infiniband
        h100-sxm | 25GbE management, 200 Gb/s HDR per GPU | 200 | infiniband
        a100-sxm-80gb | PCIe Gen4 x16 32 GB/s, 100 Gb/s IB per GPU | 100 | infiniband
        h100-sxm | EFA 3200 Gbps | 400 | ethernet
        h100-sxm | NVLink 900 GB/s + 8x NDR400 | 400 | infiniband
        h100-sxm | 1 x 100G | 12.5 | infiniband
        a100-sxm-80gb | EFA 400 Gb/s | 50 | roce
        mi250x-gcd | Slingshot-11 (25 GB/s per GPU) | 200 | ethernet
    """):
        row = PrintedRow({"interconnect": words, "gpus_per_node": "8"})
        network = cluster_of(row, gpu, 16, Notes()).links.inter_node
        assert network is not None, words
        assert (network.bandwidth * 8 / 1e9, network.kind) == (pytest.approx(float(gigabits)), kind), words


def test_clusters_of_rows() -> None:
    """PCIe in the place of NVLink; 16 trays of each rack; a board's own figures; EFA answers later than InfiniBand."""
    pcie = PrintedRow({"interconnect": "PCIe only", "gpus_per_node": "8"})
    assert cluster_of(pcie, "h100-sxm", 8, Notes()).links.intra_node.bandwidth == 64e9
    for gpus, per_rack, racks in ((64, 64, 1), (72, 72, 1), (144, 72, 2), (256, 64, 4), (512, 64, 8)):
        cluster = cluster_of(PrintedRow({"gpus_per_node": "4"}), "gb200", gpus, Notes())
        assert (cluster.gpus_per_node, cluster.nodes, cluster.num_gpus) == (per_rack, racks, gpus)
    board = PrintedRow({"gpu": "H100-SXM-96GB-HBM2e (500W, 2.4TB/s)"})
    gpu = cluster_of(board, "h100-sxm", 8, notes := Notes()).gpu
    assert gpu.memory == pytest.approx(94.9 * 2**30, rel=0.01)
    assert (gpu.tdp_watts, gpu.memory_bandwidth) == (500, 2.4e12)
    assert "memory, tdp watts, memory bandwidth as the GPU's cell says" in notes
    for words, name in (("H100-SXM-80GB (700W)", "h100-sxm"), ("MI250X-128GB", "mi250x-gcd")):
        assert cluster_of(PrintedRow({"gpu": words}), name, 8, Notes()).gpu == catalog.load_gpu(name)
    for words, latency in (("EFA 3200 Gb/s per node", 20e-6), ("8x400Gb NDR IB", 5e-6), ("RoCE", 5e-6)):
        farthest = cluster_of(PrintedRow({"interconnect": words}), "h100-sxm", 64, Notes()).links.farthest
        assert (farthest.bandwidth, farthest.latency) == (50e9, pytest.approx(latency)), words
    assert read(gpu="4 x A100 40GB", num_gpus="32").question.cluster.gpus_per_node == 4


def model(notes: Notes | None = None, **more: str) -> TransformerSpec:
    stack = catalog.load_stack("fsdp")
    return model_of(PrintedRow({"seq_len": "4096"} | more), stack, Notes() if notes is None else notes)


def test_names_of_models_however_they_are_spelt() -> None:
    for name, known in rows("""
        Llama 3.1 8B | llama3.1-8b
        meta-llama/Llama-2-7b-hf | llama2-7b
        Llama3-405B | llama3.1-405b
        Qwen2.5-7B | qwen2-7b
    """):
        assert model(model_name=name) == catalog.load_model(known)
    with pytest.raises(InputError, match="`layers` or `hidden`"):
        model(model_name="Frobnicator-9B")


def test_blank_cells_are_those_of_the_model_of_that_name_and_size() -> None:
    notes, known = Notes(), catalog.load_model("llama3-8b")
    found = model(notes, model_name="Llama-3-8B", layers="32", hidden="4096")
    assert (found.num_kv_heads, found.ffn_hidden_size, found.vocab_size) == (8, 14336, 128256)
    assert (found.gated_mlp, found.tied_embeddings, found.norm) == (True, False, known.norm)
    assert any("kv_heads" in words and "llama3-8b" in words for words in notes)
    said = {"layers": "32", "hidden": "4096", "heads": "64", "vocab": "32000", "ffn_hidden": "11008"}
    found = model(model_name="Llama-3-8B", **said)
    shape = (found.num_heads, found.num_kv_heads, found.vocab_size, found.ffn_hidden_size)
    assert shape == (64, 64, 32000, 11008)
    assert model(model_name="Llama-3-8B", layers="16", hidden="2048").vocab_size != 128256
    for width, kind, gated in (("11008", "", True), ("16384", "", False), ("11008", "gelu", False)):
        assert model(layers="32", hidden="4096", ffn_hidden=width, ffn_kind=kind).gated_mlp == gated
    known = catalog.load_model("gpt-oss-120b")  # no column says that it has biases, sinks, windows in turns
    found = model(model_name="GPT OSS 120B", layers="36", hidden="2880", heads="64", moe_experts="128")
    for name in ("mlp_bias", "attention_bias", "attention_sinks", "attention_window", "window_pattern"):
        assert getattr(found, name) == getattr(known, name)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("DeepSeekV3 (w/o MTP)", 61), ("DeepSeekV3 (tokendrop)", 61), ("deepseekv3 (4 layers)", 4)],
)
def test_words_in_parentheses_and_fewer_blocks_keep_latents(name: str, layers: int) -> None:
    """Tables give heads by the width of their values, 128; keys have 64 numbers more, and groups limit routing."""
    shape = {
        "model_name": name, "layers": str(layers), "hidden": "7168", "heads": "128", "head_dim": "128",
        "kv_heads": "128", "moe_experts": "256", "moe_top_k": "8", "moe_ffn_hidden": "2048", "seq_len": "4096",
        "moe_layers": str(layers - 3) if layers > 4 else "3",
    }  # fmt: skip
    whole, found = catalog.load_model("deepseek-v3"), model(**shape)
    assert found.num_layers == layers
    assert (found.head_dim, found.latent_attention) == (whole.head_dim, whole.latent_attention)
    assert (found.expert_groups, found.shared_expert_ffn_hidden_size) == (whole.expert_groups, 2048)


def test_precisions() -> None:
    for words, wanted in rows("""
        bf16-mixed | bf16
        bf16 (fp32 master) | bf16
        float8 (rowwise) | fp8
        nvfp4 | fp8
        TF32 | tf32
        mixed | bf16
    """):
        row, notes = PrintedRow({"precision": words}), Notes()
        assert precision_of(row, cluster_of(row, "h100-sxm", 8, notes), notes) == wanted, words
    assert any("int8" in words for words in read(precision="int8").row.assumptions)


def test_recomputation() -> None:
    for words, wanted, said in rows("""
        0 | none | -
        selective(op) | selective | -
        attention only | selective | -
        gradient checkpointing | full | -
        activation checkpointing: every 2nd layer | full | said
        12 of 32 layers | full | said
    """):
        found = recompute_of(PrintedRow({"recompute": words}), catalog.load_stack("fsdp"), notes := Notes())
        assert (found, bool(notes)) == (wanted, bool(said)), words


def test_blank_tables_of_recipes_that_recompute() -> None:
    for name, gpu, precision, policy, drops in rows("""
        Nemotron_3_Nano | H100-SXM-80GB | fp8-cs | selective | experts norms core expert-activations
        Nemotron_3_Nano | GB300 | fp8-mx | none | core
        GPT OSS 120B | GB200 | bf16 | selective | norms expert-activations
        GPT OSS 120B | GB300 | bf16 | none | core
        GPT OSS 120B | GB200 | fp8-mx | none | core
    """):
        said = {"framework": "Megatron-Bridge, NeMo container 26.04", "model_name": name, "gpu": gpu}
        row, notes = PrintedRow(said | {"precision": precision, "moe_experts": "128"}), Notes()
        stack = stack_of(row, None, notes)
        assert (recompute_of(row, stack, notes), stack.drops) == (policy, set(drops.split())), name
        stated = PrintedRow(dict(row.cells) | {"recompute": "full"})
        assert recompute_of(stated, stack_of(stated, None, notes), notes) == "full"


def test_names_of_zero_stages() -> None:
    for words, framework, stage in rows("""
        FULL_SHARD | FSDP | 3
        SHARD_GRAD_OP | FSDP | 2
        _HYBRID_SHARD_ZERO2 | FSDP | 2
        NO_SHARD | FSDP | 0
        ZeRO-2 | DeepSpeed | 2
        distributed optimizer | Megatron | 1
        - | PyTorch FSDP | 3
        - | nanoGPT DDP | 0
    """):
        row = PrintedRow({"zero_stage": words, "framework": framework})
        assert zero_of(row, catalog.load_stack("fsdp"), 64, Notes()) == int(stage), (words, framework)
    for more, stage in (("", 2), (" & zero_stage=1", 1), (" & pp=1", 3)):  # a pipeline keeps weights gathered
        assert read(f"framework=torchtitan & pp=4 & tp=2{more}").layout.zero == stage
    for said in ("hybrid_shard=HSDP", "hybrid_shard=yes", "zero_stage=HYBRID_SHARD"):
        assert read(said).layout.shard == 8
        assert any("hybrid" in words for words in read(said).row.assumptions)
    assert [read(hybrid_shard=words).layout.shard for words in ("16", "no")] == [16, None]


def test_torchtitan_keeps_every_other_product() -> None:
    """Per token of q (4096), v (1024), the core's output, gate (14336) and down (4096), beside the block's input."""
    kept, seconds = [], []
    for policy in ("full", "selective", "none"):
        case = read(framework="torchtitan", recompute=policy)
        priced = estimate(case.question, case.layout)
        kept.append(priced.rank_memory[0]["activations"])
        seconds.append(priced.step_seconds)
    products = 2 * (4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32  # and a row of sums for each head
    assert kept[1] - kept[0] == pytest.approx(32 * 4096 * products)
    assert kept == sorted(kept)
    assert seconds == sorted(seconds, reverse=True)


def test_stacks_and_kernels() -> None:
    for said, stack, kernel in rows("""
        framework=Megatron-LM | megatron-lm | cudnn
        framework=our own trainer & tp=2 | megatron-lm | cudnn
        framework=Megatron-LM & gpu=A100-80GB | megatron-2023 | flash1
        framework=Megatron-LM (2022) & gpu=A100-80GB | megatron-2022 | fused-softmax
        framework=Megatron-LM 2023 & attention_kernel=flash2 & assumed_fields=attention kernel | megatron-2023 | flash1
        ffn_kind=gelu & model_name=GPT & framework=Megatron-LM & gpu=A100-80GB | megatron-2021 | fused-softmax
        framework=DeepSpeed & gpu=V100-32GB | deepspeed | unfused
        framework=DeepSpeed & gpu=A100-40GB & run_date=2021 | deepspeed-v0.5 | unfused
        framework=DeepSpeed & gpu=A100-40GB | deepspeed | flash2
        attention_kernel=sdpa-math | fsdp | unfused
        attention_kernel=F.scaled_dot_product_attention | fsdp | flash2
        attention_kernel=torch | fsdp | flash2
        attention_kernel=torch & gpu=V100-32GB | fsdp | unfused
        attention_kernel=torch & framework=torchtitan 2025-06 | torchtitan | flash2
        attention_kernel=torch & framework=llm-foundry | llm-foundry | unfused
        attention_kernel=torch & framework=Megatron-Core r0.8 | megatron-core | unfused
    """):
        found = read(said).question.stack
        assert (found.name, found.attention) == (stack, kernel), said


def test_a_dated_row_ran_the_release_of_its_time() -> None:
    row = {"row_id": "lab-1", "framework": "nanotron", "gpu": "H100"}
    for said, name, behind in rows("""
        run_date=2024-07-03 | nanotron-v0.5 | False
        framework=nanotron (2024-03) | nanotron-v0.5 | False
        run_date=2024-08-01 | nanotron | True
        - | nanotron | True
        framework=DeepSpeed ZeRO-3 (2021) | deepspeed-v0.5 | False
        framework=DeepSpeed & run_date=2022-03-10 | deepspeed | False
        notes=tp_linear_async_communication=false; seq 4096 | nanotron | False
        assumed_fields=1f1b, no async TP | nanotron | False
    """):
        found = stack_of(PrintedRow(row | cells(said)), None, Notes())
        assert found.name == name, said
        assert name != "nanotron" or found.reduces_behind_weight_products == (behind == "True"), said


def test_offloading() -> None:
    for said, part, noted in rows("""
        offload=none | - | -
        offload=CPU | streamed | weights, gradients
        offload=cpu (optimizer) | states | optimizer states in host memory
        offload=cpu & framework=DeepSpeed | states | optimizer states in host memory
        offload=params + optimizer to NVMe & framework=DeepSpeed | streamed | NVMe
        offload=activations | activations | activations
        offload=cpu (see notes) & notes=fine-grained-activation-offloading | - | activations
    """):
        case = read(said)
        assert case.layout.offload == (Offload(**{part: EVERY}) if part else Offload()), said
        assert noted in "; ".join(case.row.assumptions)


def test_a_precision_aware_optimizer() -> None:
    """Gradient and states a parameter beside bf16 weights: master copies are the 16 bits that these lack."""
    for said, tp, moments, bytes_each in rows("""
        - | 8 | - | 5.5
        notes=precision-aware optimizer, bf16 main grads | 8 | - | 3.25
        assumed_fields=bf16 Adam moments | 8 | bf16 | 4.75
        assumed_fields=fp32 Adam moments | 1 | - | 4.1875
        assumed_fields=bf16 moments when tp*pp>1 | 8 | bf16 | 4.75
        assumed_fields=bf16 moments when tp*pp>1 | 1 | - | 4.1875
    """):
        megatron = {"framework": "Megatron-LM core 0.16", "zero_stage": "1"}
        case = read(said, tp=tp, dp=str(64 // int(tp)), **megatron)
        assert (case.question.training.moment_dtype or "") == moments, said
        states = state_bytes(case.question, LayoutColumns.of([case.layout]))
        assert states.gradients[0] + states.optimizer[0] == pytest.approx(float(bytes_each)), said


def test_compile_takes_in_the_loss_where_the_release_does() -> None:
    for framework, compiled in (
        ("torchtitan 2024-11", True),
        ("torchtitan 2024-12", False),
        ("torchtitan", True),
        ("PyTorch FSDP", False),
    ):
        stack = read(framework=framework, compile="1").question.stack
        assert (stack.fused_loss, stack.fused_norms) == (compiled, True), framework


def test_modules_that_a_row_names_are_what_its_stack_drops() -> None:
    for notes, wanted in rows("""
        recompute norm, act; moe_dev | expert-activations norms
        forced; recompute modules layernorm moe | experts norms
        dropless; recompute modules layernorm moe_act | expert-activations norms
        recompute-modules=[layernorm mla_up_proj mlp] | dense-mlp latent-heads norms
        --recompute-modules core_attn moe_act | core expert-activations
        text: selective recompute on everywhere | core
        - | core
    """):
        case = read(framework="Megatron-LM core 0.16", recompute="selective", notes=notes)
        drops = case.question.stack.selective_drops
        assert (drops if isinstance(drops, str) else " ".join(drops)) == wanted, notes
        assert case.layout.recompute == ("selective",)


def test_doubtful_rows_take_no_part_in_fits() -> None:
    timed = SMALL | {"framework": "nobody's", "step_time_best_s": "10"}
    runs = [timed | {"row_id": f"lab-{i}", "num_gpus": str(8 * i)} for i in range(1, 7)]
    sound, noisy = (
        [read_case(from_printed(one | {"flags": flags})) for one in runs] for flags in ("", "NOISY")
    )
    assert not fit_families([*sound[:3], *noisy], {pair_of(sound[0])})
    assert is_suspect(PrintedRow({"flags": "HOST_OR_FABRIC_BOUND"}))
    assert not is_suspect(PrintedRow({"flags": "UNEVEN_PP"}))


def test_experts_of_words_and_releases() -> None:
    for said, changes in rows("""
        framework=Megatron-Core & other_kernels=DeepEP | {expert_dispatch: tokens, weighs_inside_experts: true}
        framework=Megatron-Core & other_kernels=A2A | {expert_dispatch: copies}
        framework=Megatron-Core & notes=+1f1b overlap, main | {overlap_expert_exchange: 1.0}
        framework=NeMo 24.07 | {expert_dispatch: copies, weighs_inside_experts: false}
        framework=B 26.04 & precision=fp8-mxfp8 | {}
        framework=B 26.04 & model_name=Qwen3_235B_a22B & gpu=H100-SXM-80GB | {expert_dispatch: copies, overlap_expert_exchange: 1.0}
        framework=B 26.04 & model_name=GPT OSS 120B & gpu=B300-SXM-270GB | {expert_dispatch: copies}
        framework=B 26.06.01 & precision=fp8-mxfp8 & model_name=Qwen3_235B_a22B & gpu=GB200 | {overlap_expert_exchange: 1.0, experts_in_one_kernel: true}
        framework=B 26.06 & precision=fp8-mxfp8 & model_name=GPT OSS 120B & gpu=B300-SXM-270GB | {expert_dispatch: copies}
        framework=B 26.06 & precision=fp8-mxfp8 & model_name=Kimi_K2 & gpu=GB300 | {places_blocks: in-turn, recomputes_latent_heads: false}
        framework=B 26.04 & model_name=DeepSeekV3 & gpu=B200-SXM-180GB | {places_blocks: in-turn, recomputes_latent_heads: true}
    """):  # noqa: E501
        row = cells(said.replace("=B 26", "=Megatron-Bridge, NeMo container 26"))
        assert expert_changes(PrintedRow({"moe_experts": "128", **row})) == yaml.safe_load(changes), said
        assert expert_changes(PrintedRow({"moe_experts": "", **row})) == {}
    bridge = "Megatron-Bridge, NeMo container 26.04"
    for name, framework, times in (
        ("DeepSeekV3", bridge, 1),
        ("DeepSeekV3 (w/o MTP)", bridge, 0),
        ("DeepSeekV3 (w/ MTP)", "Megatron-Core", 1),
        ("DeepSeek-V3", "Megatron-Core", 0),
        ("Kimi_K2", bridge, 0),
    ):
        assert further_tokens(PrintedRow({"model_name": name, "framework": framework})) == times, name
    for framework, kernels, whole in (
        (bridge, "", True),
        ("mcore", "DeepEP", True),
        ("NeMo (DGXC recipe v24.11.1)", "", False),
    ):
        said = {"moe_experts": "128", "framework": framework, "other_kernels": kernels}
        assert keeps_experts_whole(PrintedRow(said)) == whole, framework


def test_a_current_megatron_splits_sequences_and_interleaves() -> None:
    layout = large().layout
    assert (layout.sp, layout.vpp, layout.mbs) == (True, 8, 1)
    assert layout.layers[0] == layout.layers[-1] == 0  # 126 blocks, embedding and head in 128 places
    for said, found in (
        ("framework=Megatron-LM 2021 & num_layers=128 & layers=128 & hidden=16384", (False, 1, 1)),
        ("sequence_parallel=0 & vp=1 & micro_batch=2", (False, 1, 2)),
        ("num_gpus=128", (True, 1, 1)),  # chunks are as few as keep the pipeline busy
        ("num_gpus=1024", (True, 2, 1)),
    ):
        layout = large(said).layout
        assert (layout.sp, layout.vpp, layout.mbs) == found, said
    assert large(task="sft (full parameters)").layout == large().layout


def test_a_blank_microbatch_is_the_smallest_that_costs_little() -> None:
    few = "model_name=qwen3-32b & tp=8 & pp=1 & global_batch=192"
    assert (
        large(f"{few} & num_gpus=384").layout.mbs > 1
    )  # gradients of one long backward pass hide their reduction
    assert large(f"{few} & num_gpus=8").layout.mbs == 1


def test_blank_recompute_and_degrees_leave_open_whether_it_fits() -> None:
    tight = {"num_gpus": "128", "global_batch": "128", "micro_batch": "4", "vp": "1"}
    assert predicted(**tight).fits is False
    assert predicted(**tight | {"recompute": ""}).fits is None
    assert predicted(**tight | {"recompute": ""}).step_seconds is not None
    assert predicted(recompute="").fits is (True if predicted().fits else None)
    blank = {"tp": "", "pp": "", "num_gpus": "8", "global_batch": "8", "micro_batch": "1"}
    assert "degrees are blank" in predicted(**blank).skipped
    assert not predicted(**blank | {"tp": "8"}).skipped
    assert not predicted(**blank | {"model_name": "llama3-8b", "zero_stage": "1"}).skipped


@pytest.mark.parametrize("said", ["task=sft (LoRA)", "task=PEFT", "model_name=llama3-70b qlora"])
def test_adapters_are_not_taken_for_pre_training(said: str) -> None:
    with pytest.raises(InputError, match="LoRA"):
        large(said)


def test_whether_tensor_parallelism_is_hidden() -> None:
    """As notes say; never in products of four bits."""
    hidden, shown = (
        large(notes=notes, framework="Megatron-LM core 0.12").question.stack
        for notes in ("--tp-comm-overlap", "")
    )
    assert hidden.overlap_tensor_parallel == large().question.stack.overlap_tensor_parallel > 0
    assert shown.overlap_tensor_parallel == 0
    narrow = "gpu=GB200 & gpus_per_node=72 & num_gpus=64 & pp=1 & tp=4 & global_batch=64 & micro_batch=1"
    case = large(f"{narrow} & model_name=llama3-70b & precision=nvfp4")
    stack = case.question.stack.model_copy(update={"overlap_tensor_parallel": 0.0})
    plain = replace(case.question, stack=stack)
    seconds = [estimate(one, case.layout).time["tp_comm"] for one in (case.question, plain)]
    assert seconds[0] == seconds[1]
