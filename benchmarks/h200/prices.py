"""What is predicted of a case, with every profile there is: the datasheet's, and the one that was calibrated here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Sweep

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.compute.block import block_seconds
from cost_models.compute.gemm import Device, device_of, gemm_seconds, matrix_seconds
from cost_models.defaults import OWN_COMPILED, OWN_STACK, complete_question
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

BEST_TIER, OTHER_TIER = "measured", "datasheet"

_NARROW = {
    "hidden_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "ffn_hidden_size": 128,
    "vocab_size": 256,
}
_FEW_EXPERTS = {"num_experts": 8, "experts_per_token": 2, "moe_ffn_hidden_size": 32}


def cluster_of(name: str, *, dry: bool) -> ClusterSpec:
    """One GPU of it, or of this machine a process, which rounds to fp8 and multiplies in fp32."""
    if not dry:
        return resolve_cluster(name, 1)
    here = catalog.local_cluster(1)
    peak = {**here.gpu.peak, "fp8": here.gpu.peak["fp32"]}
    return here.model_copy(update={"gpu": here.gpu.model_copy(update={"peak": peak})})


def layout_of(case: Case) -> Layout:
    """On one GPU."""
    return parse_layout(f"tp1 pp1 dp1 mbs{case.mbs} recompute={case.recompute} {case.offload}")


def questions(case: Case, cluster: ClusterSpec, profile: Path) -> dict[str, Question]:
    """Tier → question: the datasheet's always, the measured one where calibration came through."""
    model = catalog.load_model(case.model)
    shape: dict[str, Any] = {} if case.layers is None else {"num_layers": case.layers}
    if model.has_experts and case.layers is not None:
        shape["num_moe_layers"] = case.layers - (model.num_layers - model.num_moe_layers)
    if case.narrow:
        shape |= _NARROW | (_FEW_EXPERTS if model.has_experts else {})
    model = TransformerSpec.model_validate(model.model_dump() | shape)
    stack = catalog.load_stack(OWN_COMPILED if case.compile else OWN_STACK).model_copy(
        update={"loss_chunk": case.loss_chunk}
    )
    plain = "datasheet-cpu" if cluster.gpu.kind == "cpu" else "datasheet-gpu"
    profiles: dict[str, HardwareProfile] = {OTHER_TIER: catalog.load_profile(plain)}
    if profile.exists():
        profiles[BEST_TIER] = catalog.load_profile(str(profile))
    training = TrainingSpec.model_validate(
        {
            "global_batch": case.global_batch or 2 * case.mbs,
            "sequence_length": case.sequence,
            "precision": case.precision,
            "optimizer": case.optimizer,
        }
    )
    return {
        tier: complete_question(model, cluster, training, stack=stack, profile=hardware)
        for tier, hardware in profiles.items()
    }


def priced(tier: str, estimated: Estimate) -> dict[str, Any]:
    """Columns of a row: step, MFU and parts of this tier, and memory, which all tiers have alike."""
    parts = {f"{tier}_{part}_seconds": seconds for part, seconds in estimated.time.items()}
    memory = {f"predicted_{part}_bytes": size for part, size in estimated.rank_memory[0].items()}
    held = sum(size for part, size in estimated.rank_memory[0].items() if part != "reserved")
    step = {f"{tier}_step_seconds": estimated.step_seconds, f"{tier}_mfu": estimated.mfu}
    return {**step, **parts, **memory, "predicted_peak_bytes": held}


def kernels(tier: str, question: Question, layout: Layout) -> dict[str, Any]:
    """Columns of a row: seconds of a step's products and attention cores; none where some are recomputed."""
    if layout.stage_recompute[0] != "none":
        return {}
    columns, device = LayoutColumns.of([layout]), device_of(question)
    forward, backward, *_ = matrix_seconds(question, columns, device)
    block, ends = block_seconds(question, columns, device), end_products(question, columns, device)
    microbatches = float(columns.microbatches(question.training.global_batch)[0])
    blocks = microbatches * question.model.num_layers
    found = {
        "products": blocks * float((forward + backward)[0]) + microbatches * ends,
        "attention": blocks * float((block.core_forward + block.core_backward)[0]),
    }
    return {f"{tier}_{kind}_seconds": seconds for kind, seconds in found.items()}


def end_products(question: Question, columns: LayoutColumns, device: Device) -> float:
    """Seconds of the output matrix's three products."""
    wide = np.array([float(question.model.hidden_size)])
    rows, words = (
        columns.tokens(question.training.sequence_length),
        np.array([float(question.model.vocab_size)]),
    )
    sides = ((rows, words, wide), (rows, wide, words))
    weight = gemm_seconds(wide, words, rows, device, over_rows=True)
    return float(sum((gemm_seconds(*each, device) for each in sides), weight)[0])


def planned(sweep: Sweep, question: Question) -> tuple[Case, str]:
    """The planner's choice, and who chose: the search or, where its solver is not installed, the prices of all
    choices of one policy, among which the search would choose alike."""
    try:
        from planner.search.search import search
    except ImportError:
        options = [(estimate(question, layout_of(case)), case) for case in sweep.choices]
        fitting = [pair for pair in options if pair[0].fits] or options
        return min(fitting, key=lambda pair: pair[0].step_seconds)[1], "the price of each choice"
    layout = search(question, top=1).best.layout
    return replace(sweep.job, mbs=layout.mbs, recompute=layout.stage_recompute[0]), "the search"
