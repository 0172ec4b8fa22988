"""Words for precision, recomputation, ZeRO and kernels that other people's tables use."""

from __future__ import annotations

from typing import Any

import pytest
from printed_rows import from_printed

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Offload
from cost_models.axes.words import EVERY
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import fit_families, pair_of
from cost_models.measured.runs.cases import Case, read_case
from cost_models.measured.runs.conversion import printed_case
from cost_models.measured.runs.printed import (
    Notes,
    PrintedRow,
    cluster_of,
    is_suspect,
    precision_of,
    recompute_of,
    stack_of,
    zero_of,
)
from cost_models.memory.states import state_bytes
from cost_models.pipeline.pricing import estimate

ROW = {
    "row_id": "lab-1", "framework": "PyTorch FSDP", "model_name": "Llama-3-8B", "layers": "32",
    "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn_hidden": "14336", "ffn_kind": "swiglu",
    "vocab": "128256", "seq_len": "4096", "gpu": "H100-SXM-80GB", "num_gpus": "64", "micro_batch": "1",
    "global_batch": "256", "zero_stage": "3", "recompute": "full", "precision": "bf16",
}  # fmt: skip
GPT = {"ffn_kind": "gelu", "model_name": "GPT"}


def read(**cells: str) -> Case:
    return printed_case(PrintedRow(ROW | cells))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("bf16-mixed", "bf16"),
        ("bf16 (fp32 master)", "bf16"),
        ("float16", "fp16"),
        ("float8 (rowwise)", "fp8"),
        ("mxfp8", "fp8"),
        ("nvfp4", "fp8"),
        ("TF32", "tf32"),
        ("32-true", "fp32"),
        ("mixed", "bf16"),
    ],
)
def test_precisions(words: str, wanted: str) -> None:
    row, notes = PrintedRow({"precision": words}), Notes()
    assert precision_of(row, cluster_of(row, "h100-sxm", 8, notes), notes) == wanted


def test_a_precision_nobody_knows_is_said() -> None:
    assert any("int8" in words for words in read(precision="int8").row.assumptions)


def test_tf32_runs_on_tensor_cores() -> None:
    question = read(precision="TF32").question
    assert question.training.precision == "tf32"
    assert question.cluster.gpu.peak["tf32"] == question.cluster.gpu.peak["bf16"] / 2


@pytest.mark.parametrize(
    ("words", "wanted", "said"),
    [
        ("none", "none", False),
        ("0", "none", False),
        ("disabled", "none", False),
        ("selective(op)", "selective", False),
        ("attention only", "selective", False),
        ("every_layer", "full", False),
        ("gradient checkpointing", "full", False),
        ("on", "full", False),
        ("True", "full", False),
        ("activation checkpointing: every 2nd layer", "full", True),
        ("12 of 32 layers", "full", True),
    ],
)
def test_recomputation(words: str, wanted: str, said: bool) -> None:
    notes = Notes()
    assert recompute_of(PrintedRow({"recompute": words}), catalog.load_stack("fsdp"), notes) == wanted
    assert bool(notes) is said


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "policy", "drops"),
    [
        (
            "Nemotron_3_Nano",
            "H100-SXM-80GB",
            "fp8-cs",
            "selective",
            {"experts", "norms", "core", "expert-activations"},
        ),
        ("Nemotron_3_Nano", "GB300", "fp8-mx", "none", {"core"}),
        ("GPT OSS 120B", "GB200", "bf16", "selective", {"norms", "expert-activations"}),
        ("GPT OSS 120B", "GB300", "bf16", "none", {"core"}),
        ("GPT OSS 120B", "GB200", "fp8-mx", "none", {"core"}),
    ],
)
def test_blank_tables_of_recipes_that_recompute(
    model: str, gpu: str, precision: str, policy: str, drops: set[str]
) -> None:
    cells = {"framework": "Megatron-Bridge, NeMo container 26.04", "model_name": model}
    row, notes = PrintedRow(cells | {"gpu": gpu, "precision": precision, "moe_experts": "128"}), Notes()
    stack = stack_of(row, None, notes)
    assert recompute_of(row, stack, notes) == policy
    assert stack.drops == drops
    stated = PrintedRow(dict(row.cells) | {"recompute": "full"})
    assert recompute_of(stated, stack_of(stated, None, notes), notes) == "full"


@pytest.mark.parametrize(
    ("words", "framework", "stage"),
    [
        ("FULL_SHARD", "FSDP", 3),
        ("HYBRID_SHARD", "FSDP", 3),
        ("SHARD_GRAD_OP", "FSDP", 2),
        ("_HYBRID_SHARD_ZERO2", "FSDP", 2),
        ("NO_SHARD", "FSDP", 0),
        ("DDP", "FSDP", 0),
        ("ZeRO-2", "DeepSpeed", 2),
        ("stage 1", "DeepSpeed", 1),
        ("distributed optimizer", "Megatron", 1),
        ("", "PyTorch FSDP", 3),
        ("", "nanoGPT DDP", 0),
    ],
)
def test_names_of_zero_stages(words: str, framework: str, stage: int) -> None:
    row = PrintedRow({"zero_stage": words, "framework": framework})
    assert zero_of(row, catalog.load_stack("fsdp"), 64, Notes()) == stage


def test_torchtitan_keeps_weights_gathered_in_a_pipeline() -> None:
    titan = {"framework": "torchtitan", "pp": "4", "tp": "2"}
    assert read(**titan).layout.zero == 2
    assert read(**titan | {"zero_stage": "1"}).layout.zero == 1
    assert read(**titan | {"pp": "1"}).layout.zero == 3


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


@pytest.mark.parametrize(
    "cells", [{"hybrid_shard": "HSDP"}, {"hybrid_shard": "yes"}, {"zero_stage": "HYBRID_SHARD"}]
)
def test_hybrid_sharding_of_no_size_is_a_node(cells: dict[str, str]) -> None:
    case = read(**cells)
    assert case.layout.shard == 8
    assert any("hybrid" in words for words in case.row.assumptions)
    assert read(hybrid_shard="16").layout.shard == 16
    assert read(hybrid_shard="no").layout.shard is None


@pytest.mark.parametrize(
    ("cells", "stack", "kernel"),
    [
        ({"framework": "Megatron-LM"}, "megatron-lm", "cudnn"),  # H100: not the Megatron of 2021
        ({"framework": "our own trainer", "tp": "2"}, "megatron-lm", "cudnn"),
        ({"framework": "Megatron-LM", "gpu": "A100-80GB"}, "megatron-2023", "flash1"),
        ({"framework": "Megatron-LM (2022)", "gpu": "A100-80GB"}, "megatron-2022", "fused-softmax"),
        (
            {"framework": "Megatron-LM 2023", "attention_kernel": "flash2", "assumed_fields": "attention kernel"},
            "megatron-2023",
            "flash1",
        ),
        (GPT | {"framework": "Megatron-LM", "gpu": "A100-80GB"}, "megatron-2021", "fused-softmax"),
        ({"framework": "DeepSpeed", "gpu": "V100-32GB"}, "deepspeed", "unfused"),
        ({"framework": "DeepSpeed", "gpu": "A100-40GB", "run_date": "2021"}, "deepspeed-v0.5", "unfused"),
        ({"framework": "DeepSpeed", "gpu": "A100-40GB"}, "deepspeed", "flash2"),
        ({"attention_kernel": "sdpa-math"}, "fsdp", "unfused"),
        ({"attention_kernel": "F.scaled_dot_product_attention"}, "fsdp", "flash2"),
        ({"attention_kernel": "naive"}, "fsdp", "unfused"),
        ({"attention_kernel": "torch"}, "fsdp", "flash2"),  # scaled_dot_product_attention
        ({"attention_kernel": "torch", "gpu": "V100-32GB"}, "fsdp", "unfused"),
        ({"attention_kernel": "torch", "framework": "torchtitan 2025-06"}, "torchtitan", "flash2"),
        ({"attention_kernel": "torch", "framework": "llm-foundry"}, "llm-foundry", "unfused"),
        ({"attention_kernel": "torch", "framework": "Megatron-Core r0.8"}, "megatron-core", "unfused"),
    ],
)  # fmt: skip
def test_stacks_and_kernels(cells: dict[str, Any], stack: str, kernel: str) -> None:
    case = read(**cells)
    assert (case.question.stack.name, case.question.stack.attention) == (stack, kernel)


@pytest.mark.parametrize(
    ("cells", "wanted", "said"),
    [
        ({"offload": "none"}, Offload(), ""),
        ({"offload": "CPU"}, Offload(streamed=EVERY), "weights, gradients"),  # FSDP's CPUOffload
        ({"offload": "cpu (optimizer)"}, Offload(states=EVERY), "optimizer states in host memory"),
        (
            {"offload": "cpu", "framework": "DeepSpeed"},
            Offload(states=EVERY),
            "optimizer states in host memory",
        ),
        (
            {"offload": "params + optimizer to NVMe", "framework": "DeepSpeed"},
            Offload(streamed=EVERY),
            "NVMe",
        ),
        ({"offload": "activations"}, Offload(activations=EVERY), "activations"),
        (
            {"offload": "cpu (see notes)", "notes": "fine-grained-activation-offloading"},
            Offload(),
            "activations",
        ),
    ],
)
def test_offloading(cells: dict[str, str], wanted: Offload, said: str) -> None:
    case = read(**cells)
    assert case.layout.offload == wanted
    assert said in "; ".join(case.row.assumptions)


def test_a_box_written_before_the_gpu_is_the_node() -> None:
    assert read(gpu="4 x A100 40GB", num_gpus="32").question.cluster.gpus_per_node == 4


@pytest.mark.parametrize(
    ("said", "tp", "moments", "bytes_each"),
    [
        ({}, "8", None, 4 + 12 / 8),
        ({"notes": "precision-aware optimizer, bf16 main grads"}, "8", None, 2 + 10 / 8),
        ({"assumed_fields": "bf16 Adam moments"}, "8", "bf16", 4 + 6 / 8),
        ({"assumed_fields": "fp32 Adam moments"}, "1", None, 4 + 12 / 64),
        ({"assumed_fields": "bf16 moments when tp*pp>1"}, "8", "bf16", 4 + 6 / 8),
        ({"assumed_fields": "bf16 moments when tp*pp>1"}, "1", None, 4 + 12 / 64),
    ],
)
def test_a_precision_aware_optimizer(
    said: dict[str, str], tp: str, moments: str | None, bytes_each: float
) -> None:
    """Gradient and states a parameter beside bf16 weights: master copies are the 16 bits that these lack."""
    case = read(framework="Megatron-LM core 0.16", zero_stage="1", tp=tp, dp=str(64 // int(tp)), **said)
    assert case.question.training.moment_dtype == moments
    states = state_bytes(case.question, LayoutColumns.of([case.layout]))
    assert states.gradients[0] + states.optimizer[0] == pytest.approx(bytes_each)


@pytest.mark.parametrize(
    ("framework", "compiled"),
    [
        ("torchtitan 2024-11", True),
        ("torchtitan 2024-12", False),
        ("torchtitan 2025-06", True),
        ("torchtitan", True),
        ("PyTorch FSDP", False),
    ],
)
def test_compile_takes_in_the_loss_where_the_release_does(framework: str, compiled: bool) -> None:
    stack = read(framework=framework, compile="1").question.stack
    assert stack.fused_loss == compiled
    assert stack.fused_norms


@pytest.mark.parametrize(
    ("notes", "wanted"),
    [
        ("recompute norm, act; moe_dev", ("expert-activations", "norms")),
        ("forced; recompute modules layernorm moe", ("experts", "norms")),
        ("dropless; recompute modules layernorm moe_act", ("expert-activations", "norms")),
        ("recompute-modules=[layernorm mla_up_proj mlp]", ("dense-mlp", "latent-heads", "norms")),
        ("--recompute-modules core_attn moe_act", ("core", "expert-activations")),
        ("text: selective recompute on everywhere", "core"),
        ("", "core"),
    ],
)
def test_modules_that_a_row_names_are_what_its_stack_drops(notes: str, wanted: tuple[str, ...] | str) -> None:
    case = read(framework="Megatron-LM core 0.16", recompute="selective", notes=notes)
    assert (case.question.stack.selective_drops, case.layout.recompute) == (wanted, ("selective",))
    other = read(framework="torchtitan", recompute="selective", notes=notes).question.stack
    assert other.selective_drops == "all-but-every-other-product"


def test_doubtful_rows_take_no_part_in_fits() -> None:
    timed = ROW | {"framework": "nobody's", "step_time_best_s": "10"}
    cells = [timed | {"row_id": f"lab-{i}", "num_gpus": str(8 * i)} for i in range(1, 7)]
    sound, noisy = (
        [read_case(from_printed(one | {"flags": flags})) for one in cells] for flags in ("", "NOISY")
    )
    pairs = {pair_of(sound[0])}
    assert not fit_families([*sound[:3], *noisy], pairs)
    assert is_suspect(PrintedRow({"flags": "HOST_OR_FABRIC_BOUND"}))
    assert not is_suspect(PrintedRow({"flags": "UNEVEN_PP"}))
