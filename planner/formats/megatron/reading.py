"""Megatron-LM: what a command that starts `pretrain_gpt.py` trains, in our words.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/optimizer/optimizer_config.py, core/distributed/distributed_data_parallel_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.axes.offload import Offload
from cost_models.axes.words import EVERY
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from planner.formats.megatron.arguments import Arguments, read_arguments
from planner.formats.megatron.launches import Launch, world_size
from planner.formats.megatron.shape import shape_of
from planner.formats.megatron.stages import stages_of
from planner.formats.reading.run import Reading

STACK = "megatron-core"
_PADDING = 128
_DROPOUT = 0.1
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}
_CONTEXT = {"p2p": "ring", "all_gather": "all-gather", "a2a": "all-to-all"}
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd"}
_DROPS = {("core_attn",): "core", ("moe",): "experts"}


def read_megatron(launch: Launch, *, gpus: int | None = None, stack: str | None = None) -> Reading:
    """The run of a command line. What it does not say is as `pretrain_gpt.py` has it now (core 0.20); with a software
    stack named, facts that it does not say are that one's.

    Raises:
        InputError: the command cannot be read, does not say all, or contradicts itself.
    """
    said = read_arguments(launch.arguments)
    assumed = list(launch.assumptions)
    world = world_size(launch, gpus)
    if said.unread:
        shown = ", ".join(f"`{words}`" for words in said.unread.values())
        assumed.append(f"nothing of a step from arguments that are not known here: {shown}")
    base = load_stack(stack or STACK)
    reading = reading_of(said, world, launch.tokenizer, base, stack is not None, assumed)
    if launch.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        blocking = reading.stack.model_copy(update={"launches_block": True})
        return replace(reading, stack=blocking)
    return reading


def reading_of(
    said: Arguments, world: int, tokenizer: str | None, base: StackSpec, stack_named: bool, assumed: list[str]
) -> Reading:
    """The run of settings by Megatron-LM's names; unless its stack was named, what they leave out is off.

    Raises:
        InputError: they do not say all, or contradict themselves.
    """
    model = shape_of(said, _PADDING, assumed, tokenizer)
    layout = _layout(said, model.num_layers, model.has_experts, world, base, assumed)
    return Reading(
        model=model,
        training=_training(said, layout, base, stack_named, assumed),
        layout=layout,
        stack=_stack(said, base, stack_named, assumed),
        assumptions=tuple(assumed),
    )


def _layout(
    said: Arguments, blocks: int, has_experts: bool, world: int, stack: StackSpec, assumed: list[str]
) -> Layout:
    tp, pp = (said.get(f"{axis}_model_parallel_size", 1) for axis in ("tensor", "pipeline"))
    cp, ep = said.get("context_parallel_size", 1), said.get("expert_model_parallel_size", 1)
    if min(tp, pp, cp, ep) < 1 or world % (tp * pp * cp):
        raise InputError(
            f"{world} GPUs do not divide by tp{tp} × pp{pp} × cp{cp} of the command",
            hint="the number of nodes is often a variable, or the launcher's: write it in",
        )
    dp = world // (tp * pp * cp)
    vpp, layers = stages_of(said, blocks, pp)
    zero = int(said.get("use_distributed_optimizer", False))
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "vpp": vpp,
        "cp": cp,
        "dp": dp,
        "ep": ep,
        "mbs": said.get("micro_batch_size", 1),
        "zero": zero,
        "sp": _splits_sequence(said, tp, assumed),
        "order": "tp-cp-pp-dp" if said.get("use_tp_pp_dp_mapping") else "tp-cp-dp-pp",
        "recompute": (_recompute(said, max(layers), assumed),),
        "layers": layers,
        "offload": _offload(said, blocks // pp),
    }
    if not said.has("micro_batch_size"):
        assumed.append("microbatches of one sequence")
    instances = said.get("num_distributed_optimizer_instances", 1)
    if zero and instances > 1:
        fields["shard"] = dp * cp // instances
    if has_experts and (etp := said.get("expert_tensor_parallel_size", tp)) != tp:
        fields["etp"] = etp
    if cp > 1:
        kind = said.get("cp_comm_type", ("p2p",))[0]
        if kind not in _CONTEXT:
            raise InputError(f"`--cp-comm-type {kind}` is not known here")
        if _CONTEXT[kind] != stack.context_parallel:
            fields["context"] = _CONTEXT[kind]
    return Layout(**fields)


def _splits_sequence(said: Arguments, tp: int, assumed: list[str]) -> bool:
    if said.get("sequence_parallel") and tp == 1:
        assumed.append("`--sequence-parallel` says nothing without tensor parallelism")
        return False
    return bool(said.get("sequence_parallel", False))


def _recompute(said: Arguments, most: int, assumed: list[str]) -> str:
    """Megatron's granularity, method and count; in 2021 a method alone meant whole blocks."""
    method, count = said.get("recompute_method"), said.get("recompute_num_layers", 1)
    usual = "full" if method or said.get("checkpoint_activations") else None
    match said.get("recompute_granularity", usual), method:
        case None, _:
            return "none"
        case "selective", _:
            return "selective"
        case "full", "block":
            return f"full:{count}" if count < most else "full"
        case "full", "uniform" | None:
            if count > 1:
                assumed.append(f"one checkpoint a block, not one for {count}")
            return "full"
    raise InputError(f"`{said.flags.get('recompute_granularity', method)}` is not known here")


def _offload(said: Arguments, blocks: int) -> Offload:
    states = 0
    if said.get("optimizer_cpu_offload"):
        share = said.get("optimizer_offload_fraction", 1.0)
        states = EVERY if share >= 1 else round(share * blocks)
    return Offload(states=states, activations=EVERY if said.get("fine_grained_activation_offloading") else 0)


def _training(
    said: Arguments, layout: Layout, stack: StackSpec, stack_named: bool, assumed: list[str]
) -> TrainingSpec:
    batch = said.get("global_batch_size")
    if batch is None:
        batch = layout.mbs * layout.dp
        assumed.append(f"a global batch of {batch}: one microbatch on every replica")
    if said.has("rampup_batch_size"):
        assumed.append("the batch as it is after its ramp")
    length = said.get("seq_length")
    samples = said.get("train_samples", said.get("train_iters", 0) * batch)
    optimizer = said.get("optimizer", "adam")
    if optimizer not in _OPTIMIZERS:
        raise InputError(f"`--optimizer {optimizer}` is not priced here", hint="adam and sgd are")
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": _precision(said, assumed),
        "optimizer": _OPTIMIZERS[optimizer],
        "gradient_dtype": _gradients(said, stack_named),
        "dropout": _dropout(said, assumed),
        **({"tokens": float(samples * length)} if samples else {}),
    }
    if said.get("exp_avg_dtype") in ("bf16", "fp16"):
        fields["moment_dtype"] = "bf16"
    return TrainingSpec(**fields)


def _precision(said: Arguments, assumed: list[str]) -> str:
    if said.has("fp8"):
        return "fp8"
    if said.has("fp4"):
        return "fp4"
    wide = "bf16" if said.get("bf16") else "fp16" if said.get("fp16") else "fp32"
    if wide == "fp32":
        assumed.append("fp32: neither `--bf16` nor `--fp16` is there")
    return wide


def _gradients(said: Arguments, stack_named: bool) -> str | None:
    """fp16 gradients are summed in 16 bits unless asked otherwise, all others in fp32 (`validate_args`)."""
    if said.get("accumulate_allreduce_grads_in_fp32"):
        return "fp32" if stack_named else None
    if said.get("grad_reduce_in_bf16") or said.get("main_grads_dtype") == "bf16":
        return "bf16"
    return "bf16" if said.get("fp16") and not stack_named else None


def _dropout(said: Arguments, assumed: list[str]) -> float:
    hidden, attention = (said.get(f"{part}_dropout", _DROPOUT) for part in ("hidden", "attention"))
    if not said.has("hidden_dropout"):
        assumed.append(f"dropout {_DROPOUT:g}, Megatron-LM's default of `--hidden-dropout`")
    elif hidden != attention:
        assumed.append(f"attention's dropout ({attention:g}) as the hidden one ({hidden:g})")
    return float(hidden)


def _stack(said: Arguments, base: StackSpec, stack_named: bool, assumed: list[str]) -> StackSpec:
    """The software stack with what the arguments switch; unless it was named, what they leave out is off."""
    inside = load_stack(STACK).overlap_tensor_parallel
    offloads = said.get("optimizer_cpu_offload", False)
    precise = bool(said.get("use_precision_aware_optimizer") and not offloads)
    switches: dict[str, tuple[str, Any]] = {
        "overlap_grad_reduce": ("overlap_gradient_reduce", bool(said.get("overlap_grad_reduce"))),
        "overlap_param_gather": ("overlap_parameter_gather", bool(said.get("overlap_param_gather"))),
        "tp_comm_overlap": ("overlap_tensor_parallel", inside * said.get("tp_comm_overlap", False)),
        "use_precision_aware_optimizer": ("master_remainders", precise),
        "deterministic_mode": ("deterministic", bool(said.get("deterministic_mode"))),
        "overlap_cpu_optimizer_d2h_h2d": (
            "overlaps_host",
            bool(said.get("overlap_cpu_optimizer_d2h_h2d")),
        ),
    }
    changes: dict[str, Any] = {
        fact: value for name, (fact, value) in switches.items() if said.has(name) or not stack_named
    }
    if said.has("make_vocab_size_divisible_by") or not stack_named:
        changes["pads_vocabulary"] = said.get("make_vocab_size_divisible_by", _PADDING) == _PADDING
    if said.has("padded_vocab_size"):
        changes["pads_vocabulary"] = False
    if said.has("gradient_accumulation_fusion"):
        changes["fused_gradient_accumulation"] = said.get("gradient_accumulation_fusion")
    if _is_unfused(said):
        changes["fused_elementwise"] = False
    if said.get("overlap_p2p_comm") is False:
        changes["overlap_pipeline_sends"] = False
    if said.get("cross_entropy_loss_fusion"):
        changes["extra_loss_copies"] = 1.0
    if said.get("num_experts") and (said.has("moe_token_dispatcher_type") or not stack_named):
        kind = said.get("moe_token_dispatcher_type", "allgather")
        changes["expert_dispatch"] = "tokens" if kind == "flex" else "copies"
        if kind == "allgather" and said.get("expert_model_parallel_size", 1) > 1:
            assumed.append("tokens go to experts one by one, not gathered everywhere (`allgather`)")
    changes |= _attention(said)
    if said.get("recompute_granularity") == "selective":
        modules = said.get("recompute_modules", ("core_attn",))
        if modules not in _DROPS:
            assumed.append(f"of what is recomputed ({', '.join(modules)}) only attention's core")
        changes["selective_drops"] = _DROPS.get(modules, "core")
    return base.model_copy(update=changes)


def _is_unfused(said: Arguments) -> bool:
    """Whether a fusion that is switched off would have fused something (transformer/mlp.py, fused_bias_dropout.py)."""
    biases, gated = said.get("add_bias_linear", True), said.get("swiglu", False)
    activates = gated or (biases and not said.get("squared_relu", False))
    adds = biases or said.get("hidden_dropout", _DROPOUT) > 0
    off = {part: said.get(f"bias_{part}_fusion") is False for part in ("gelu", "swiglu", "dropout")}
    return (activates and off["swiglu" if gated else "gelu"]) or (adds and off["dropout"])


def _attention(said: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if said.get("transformer_impl") == "local":
        found = {"transformer_engine": False, "attention": "fused-softmax"}
    if said.get("use_flash_attn"):
        found["attention"] = "flash2"
    backend = said.get("attention_backend", "auto")
    if backend in _KERNELS:
        found["attention"] = _KERNELS[backend]
    elif backend != "auto":
        raise InputError(f"`--attention-backend {backend}` is not known here")
    return found
