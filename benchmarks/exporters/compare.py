"""What a trainer's own parser read, in the words of a layout, beside what the plan says."""

from __future__ import annotations

from typing import Any

from cost_models.axes.layout import Layout
from cost_models.question import Question


def planned(question: Question, layout: Layout) -> dict[str, Any]:
    """Degrees, batch, ZeRO, recompute and stages of a plan, plainly."""
    replicas = layout.data_ranks
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


def torchtitan(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of torchtitan's `ConfigManager`."""
    mesh = {name.removeprefix("parallelism."): value for name, value in values.items()}
    pp, stages = mesh["pipeline_parallel_degree"], mesh["module_fqns_per_model_part"]
    replicate, shard = mesh["data_parallel_replicate_degree"], mesh["data_parallel_shard_degree"]
    cp, dp = mesh["context_parallel_degree"], replicate * shard
    local, batch = values["training.local_batch_size"], values["training.global_batch_size"]
    mbs = mesh["pipeline_parallel_microbatch_size"] if pp > 1 else local
    reshard = mesh["fsdp_reshard_after_forward"]
    is_sharded = shard * cp > 1 or reshard != "default"
    return {
        "tp": mesh["tensor_parallel_degree"],
        "pp": pp,
        "vpp": len(stages) // pp if pp > 1 else 1,
        "cp": cp,
        "dp": dp,
        "ep": mesh["expert_parallel_degree"],
        "etp": 1 if mesh["expert_parallel_degree"] > 1 else mesh["tensor_parallel_degree"],
        "mbs": mbs,
        "batch": batch,
        "microbatches": batch // (mbs * dp),
        "sequence": values["training.seq_len"],
        "zero": (2 if reshard == "never" else 3) if is_sharded else 0,
        "shard": shard * cp if is_sharded else dp * cp,
        "sp": mesh["enable_sequence_parallel"],
        "recompute": {None: "none", "FullAC": "full", "SelectiveAC": "selective"}[
            values["activation_checkpoint"]
        ],
        "layers": [sum(name.startswith("layers.") for name in stage) for stage in stages or []]
        or [values["layers"]],
    }


def deepspeed(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of `DeepSpeedConfig`; the model, and with it the length of sequences, is the program's."""
    stages = values["pipeline.stages"]
    tp = values["tensor_parallel.autotp_size"] or 1
    return {
        "tp": tp,
        "pp": 1 if stages == "auto" else stages,
        "vpp": 1,
        "cp": values["sequence_parallel_size"],
        "dp": values["world_size"],
        "ep": values["expert_parallel.autoep_size"] if values["expert_parallel.enabled"] else 1,
        "mbs": values["train_micro_batch_size_per_gpu"],
        "batch": values["train_batch_size"],
        "microbatches": values["gradient_accumulation_steps"],
        "zero": values["zero_optimization.stage"],
    }


def accelerate(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of `accelerate launch`; the model, its sequences and its batch are the program's."""
    return _fully_sharded(values, values["num_processes"])


def axolotl(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of axolotl's YAML; the model is the checkpoint's."""
    read = _fully_sharded(values, question.cluster.num_gpus)
    mbs, steps = values["micro_batch_size"], values["gradient_accumulation_steps"]
    return read | {
        "mbs": mbs,
        "batch": mbs * steps * read["dp"],
        "microbatches": steps,
        "sequence": values["sequence_len"],
    }


def _fully_sharded(values: dict[str, Any], gpus: int) -> dict[str, Any]:
    """What trainers over FSDP2 read alike: `fsdp` whether it is on, sizes of the mesh (None: all that is left)."""
    tp, cp, replicas = values["tp"] or 1, values["cp"] or 1, values["replicate"] or 1
    shard = values["shard"] or gpus // (tp * cp * replicas)
    dp = replicas * shard
    is_sharded = values["fsdp"] and dp * cp > 1
    return {
        "tp": tp,
        "cp": cp,
        "dp": dp,
        "zero": (3 if values["reshard"] else 2) if is_sharded else 0,
        "shard": shard * cp if is_sharded else dp * cp,
        "recompute": "full" if values["checkpointing"] else "none",
    }


def nemo(values: dict[str, Any], question: Question) -> dict[str, Any]:
    """Of a recipe of Megatron Bridge."""
    of_model = {
        name.removeprefix("model."): value for name, value in values.items() if name.startswith("model.")
    }
    gpus = question.cluster.num_gpus
    tp, pp = of_model["tensor_model_parallel_size"], of_model["pipeline_model_parallel_size"]
    cp = of_model["context_parallel_size"]
    dp = gpus // (tp * pp * cp)
    mbs, batch = values["train.micro_batch_size"], values["train.global_batch_size"]
    recompute = {
        name: of_model.get(name)
        for name in ("recompute_granularity", "recompute_method", "recompute_num_layers")
    }
    stages = {
        "pipeline_model_parallel_layout": of_model.get("pipeline_model_parallel_layout"),
        "virtual_pipeline_model_parallel_size": of_model.get("virtual_pipeline_model_parallel_size"),
        "pipeline_model_parallel_size": pp,
        "num_layers": of_model["num_layers"],
    }
    return {
        "tp": tp,
        "pp": pp,
        "vpp": stages["virtual_pipeline_model_parallel_size"] or 1,
        "cp": cp,
        "dp": dp,
        "ep": of_model.get("expert_model_parallel_size", 1),
        "etp": of_model.get("expert_tensor_parallel_size", tp),
        "mbs": mbs,
        "batch": batch,
        "microbatches": batch // (mbs * dp),
        "sequence": of_model["seq_length"],
        "zero": int(values.get("ddp.use_distributed_optimizer", False)),
        "shard": dp * cp // values.get("ddp.num_distributed_optimizer_instances", 1),
        "sp": of_model.get("sequence_parallel", False),
        "recompute": _megatron_recompute(recompute),
        "layers": _megatron_layers(stages, question),
    }
