"""What a trainer's own parser read, in the words of a layout, beside what the plan says."""

from __future__ import annotations

from typing import Any

from cost_models.axes.layout import Layout
from cost_models.question import Question


def planned(question: Question, layout: Layout) -> dict[str, Any]:
    """Degrees, batch, ZeRO, recompute and stages of a plan, plainly."""
    replicas = layout.replicas
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "vpp": layout.vpp,
        "cp": layout.cp,
        "dp": layout.dp,
        "ep": layout.ep,
        "etp": layout.expert_tp if question.model.has_experts else layout.tp,
        "mbs": layout.mbs,
        "batch": question.training.global_batch,
        "microbatches": layout.microbatches(question.training.global_batch),
        "sequence": question.training.sequence_length,
        "zero": layout.zero,
        "shard": layout.shard_group if layout.zero else replicas,
        "sp": layout.sp,
        "recompute": layout.recompute[0],
        "layers": list(layout.layers),
    }


def megatron(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of `validate_args` of Megatron-LM."""
    replicas = values["data_parallel_size"] * values["context_parallel_size"]
    batch = values["global_batch_size"]
    return {
        "tp": values["tensor_model_parallel_size"],
        "pp": values["pipeline_model_parallel_size"],
        "vpp": values["virtual_pipeline_model_parallel_size"] or 1,
        "cp": values["context_parallel_size"],
        "dp": values["data_parallel_size"],
        "ep": values["expert_model_parallel_size"],
        "etp": values["expert_tensor_parallel_size"],
        "mbs": values["micro_batch_size"],
        "batch": batch,
        "microbatches": batch // (values["micro_batch_size"] * values["data_parallel_size"]),
        "sequence": values["seq_length"],
        "zero": int(values["use_distributed_optimizer"]),
        "shard": replicas // values["num_distributed_optimizer_instances"],
        "sp": values["sequence_parallel"],
        "recompute": _megatron_recompute(values),
        "layers": _megatron_layers(values, question),
    }


def _megatron_recompute(values: dict[str, Any]) -> str:
    match values["recompute_granularity"], values["recompute_method"]:
        case None, _:
            return "none"
        case "selective", _:
            return "selective"
        case "full", "uniform":
            return "full"
    return f"full:{values['recompute_num_layers']}"


def _megatron_layers(values: dict[str, Any], question: Question) -> list[int]:
    if (said := values["pipeline_model_parallel_layout"]) is not None:
        return [stage.count("t") for stage in said.split("|")]
    stages = values["pipeline_model_parallel_size"] * (values["virtual_pipeline_model_parallel_size"] or 1)
    return [values["num_layers"] // stages] * stages
