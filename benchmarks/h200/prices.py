"""What is predicted of a case, with every profile there is: the datasheet's, and the one that was calibrated here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import Case, Sweep

from cost_models.axes.layout import Layout, parse_layout
from cost_models.curves import measured_cluster
from cost_models.defaults import OWN_COMPILED, OWN_STACK
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.estimating import estimate
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec

BEST_TIER, OTHER_TIER = "measured", "datasheet"


def cluster_of(name: str, *, dry: bool) -> ClusterSpec:
    """One GPU of it, or of this machine a process."""
    return catalog.local_cluster(1) if dry else resolve_cluster(name, 1)


def layout_of(case: Case) -> Layout:
    """On one GPU."""
    return parse_layout(f"tp1 pp1 dp1 mbs{case.mbs} recompute={case.recompute}")


def questions(case: Case, cluster: ClusterSpec, profile: Path) -> dict[str, Question]:
    """Tier → question: the datasheet's always, the measured one where calibration came through."""
    model = catalog.load_model(case.model)
    if case.layers is not None:
        model = model.model_copy(update={"num_layers": case.layers})
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
        tier: Question(
            model=model,
            cluster=measured_cluster(hardware, cluster),
            training=training,
            stack=stack,
            hardware=hardware,
        )
        for tier, hardware in profiles.items()
    }


def priced(tier: str, estimated: Estimate) -> dict[str, Any]:
    """Columns of a row: step, MFU and parts of this tier, and memory, which all tiers have alike."""
    parts = {f"{tier}_{part}_seconds": seconds for part, seconds in estimated.time}
    memory = {f"predicted_{part}_bytes": size for part, size in estimated.rank_memory[0]}
    held = sum(size for part, size in estimated.rank_memory[0] if part != "reserved")
    step = {f"{tier}_step_seconds": estimated.step_seconds, f"{tier}_mfu": estimated.mfu}
    return {**step, **parts, **memory, "predicted_peak_bytes": held}


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
