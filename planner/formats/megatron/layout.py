"""The layout of a run in Megatron Core's arguments, written and read; Megatron-LM's flags and the fields of Megatron
Bridge's recipes have the same names.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py, core/transformer/
transformer_config.py, core/model_parallel_config.py, core/optimizer/optimizer_config.py,
core/transformer/pipeline_parallel_layer_layout.py, core/transformer/transformer_block.py.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.stages import first_in_full, mixes_of, number_in_full
from cost_models.axes.words import EVERY, MAX_STAGES
from cost_models.errors import InputError
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.exporter import JobExport
from planner.formats.megatron.arguments import OFFLOADED, OFFLOADED_OF_EXPERTS, TABLE, Arguments, uses_fsdp

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})", re.ASCII)
_MOST_TEXT = 20_000


def write_layout(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of the layout that its table does not write."""
    job, layout = export.job, export.job.layout
    if len(set(layout.layers)) > 1:
        stages = "|".join("t" * blocks for blocks in layout.layers)
        export.sets("layout.layers", pipeline_model_parallel_layout=f"E{stages}L")
    elif layout.vpp > 1:
        export.sets("layout.vpp", num_layers_per_virtual_pipeline_stage=layout.layers[0])
    if job.context:
        export.sets("layout.context", cp_comm_type=[TABLE.arguments["cp_comm_type"].values[job.context]])
    export.sets("layout.etp", expert_tensor_parallel_size=layout.expert_tp, when=job.model.has_experts)
    export.sets("layout.zero", use_distributed_optimizer=True, when=layout.zero == 1)
    instances = layout.data_ranks // layout.shard_group
    settings = {"num_distributed_optimizer_instances": instances}
    difference = f"{instances} instances of the optimizer, each sharded"
    export.sets("layout.shard", settings, differs=difference, when=instances > 1 and layout.zero)
    orders = {"tp-cp-dp-pp": {}, "tp-cp-pp-dp": {"use_tp_pp_dp_mapping": True}}
    export.choose("layout.order", layout.order, orders, "it seats ranks tp-cp-dp-pp or tp-cp-pp-dp")
    _write_recompute(export)
    _write_offload(export)


def _write_recompute(export: JobExport) -> None:
    model, layout, path = export.job.model, export.job.layout, "layout.recompute"
    policies, blocks = {*layout.policies}, number_in_full(layout.layers, layout.stage_recompute)
    if policies == {"selective"}:
        drops, modules = set(export.job.stack.drops), TABLE.arguments["recompute_modules"].values
        drops -= {"latent-heads"} if model.latent_attention is None else set()
        drops -= {"expert-activations", "experts", "shared-experts"} if not model.has_experts else set()
        names = [name for drop, name in modules.items() if drop in drops]
        export.sets(path, recompute_granularity="selective", recompute_modules=names)
        unknown = ", ".join(sorted(drops.difference(modules)))
        reason = f"its modules to recompute are others than what the stack drops ({unknown})"
        export.lacks(path, reason, when=unknown)
    elif blocks is None:
        export.lacks(path, "it has one policy for all blocks, or `full` for as many blocks of every stage")
    elif blocks:
        method, count = ("uniform", 1) if policies == {"full"} else ("block", blocks)
        export.sets(path, recompute_granularity="full", recompute_method=method, recompute_num_layers=count)


def _write_offload(export: JobExport) -> None:
    layout, offload = export.job.layout, export.job.layout.offload
    settings: dict[str, Any] = {}
    differences = []
    if offload.states:
        blocks = min(layout.layers) * layout.vpp
        share = 1.0 if offload.states >= EVERY else min(1.0, offload.states / blocks)
        settings |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": round(share, 6)}
        settings["use_precision_aware_optimizer"] = True
        differences.append(f"states of {share:.0%} of a rank's parameters, in their order")
    if offload.activations:
        modules = OFFLOADED + (OFFLOADED_OF_EXPERTS if export.job.model.has_experts else ())
        settings |= {"fine_grained_activation_offloading": True, "offload_modules": list(modules)}
        differences.append(f"the inputs of {', '.join(modules)}")
    export.sets("layout.offload", settings, differs="; ".join(differences))
    missing = " and ".join(part for part in ("parked", "streamed", "drive") if getattr(offload, part))
    export.lacks("layout.offload", f"it keeps no {missing} blocks on the host", when=missing)


def layout_of(args: Arguments, model: TransformerSpec, world: int, stack: StackSpec) -> Layout:
    """The parallel layout that Megatron-LM arguments describe on `world` GPUs.

    Raises:
        InputError: degrees do not divide the GPUs, blocks do not divide into stages, or a value is not known.
    """
    degrees = TABLE.fields("layout", args.get)
    tp, pp, cp, ep, sp = (degrees[axis] for axis in ("tp", "pp", "cp", "ep", "sp"))
    if min(tp, pp, cp, ep) < 1 or world % (tp * pp * cp):
        hint = "the number of nodes is often a variable, or the launcher's: write it in"
        raise InputError(f"{world} GPUs do not divide by tp{tp} × pp{pp} × cp{cp} of the command", hint=hint)
    dp = world // (tp * pp * cp)
    (vpp, layers), zero = stages_of(args, model.num_layers, pp), zero_of(args)
    fields: dict[str, Any] = {**degrees, "vpp": vpp, "dp": dp, "zero": zero, "layers": layers}
    fields["order"] = "tp-cp-pp-dp" if args.get("use_tp_pp_dp_mapping") else "tp-cp-dp-pp"
    fields["sp"] = sp and tp > 1
    args.assume("`--sequence-parallel` says nothing without tensor parallelism", when=sp and tp == 1)
    fields["recompute"] = _recompute_of(args, layers)
    share = args.get("optimizer_offload_fraction") if args.get("optimizer_cpu_offload") else 0.0
    states = EVERY if share >= 1 else round(share * (model.num_layers // pp))
    activations = EVERY if args.get("fine_grained_activation_offloading") else 0
    fields["offload"] = Offload(states=states, activations=activations)
    args.assume("microbatches of one sequence", when=not args.has("micro_batch_size"))
    idle = "`--data-parallel-sharding-strategy` says nothing without `--use-megatron-fsdp`"
    args.assume(idle, when=args.has("data_parallel_sharding_strategy") and not uses_fsdp(args))
    instances = args.get("num_distributed_optimizer_instances")
    if zero and instances > 1:
        fields["shard"] = dp * cp // instances
    if model.has_experts and (etp := args.get("expert_tensor_parallel_size", tp)) != tp:
        fields["etp"] = etp
    if cp > 1:
        context = TABLE.arguments["cp_comm_type"].plan_value(args.get("cp_comm_type")[0])
        fields["context"] = None if context == stack.context_parallel else context
    return Layout(**fields)


def zero_of(args: Arguments) -> int:
    """ZeRO stage of a Megatron-LM command, by FSDP or the distributed optimizer."""
    if args.get("use_torch_fsdp2"):
        return 3 if args.get("torch_fsdp2_reshard_after_forward") else 2
    if uses_fsdp(args):
        return int(args.plan_value("data_parallel_sharding_strategy"))
    return int(args.get("use_distributed_optimizer"))


def _recompute_of(args: Arguments, layers: tuple[int, ...]) -> tuple[str, ...]:
    """Recompute policies by Megatron's granularity, method and number of blocks; in 2021 a method alone meant
    full recompute."""
    method, count = args.get("recompute_method"), args.get("recompute_num_layers")
    default = "full" if method or args.get("checkpoint_activations") else None
    match args.get("recompute_granularity", default), method:
        case (None | "selective") as granularity, _:
            return (granularity or "none",)
        case "full", "block":
            return mixes_of(first_in_full(np.array(layers), count))
        case "full", "uniform" | None:
            args.assume(f"one checkpoint a block, not one for {count}", when=count > 1)
            return ("full",)
    raise InputError(f"`{args.flags.get('recompute_granularity', method)}` is not known here")


def stages_of(args: Arguments, blocks: int, pp: int) -> tuple[int, tuple[int, ...]]:
    """Chunks of a pipeline rank (vpp), and number of blocks of every virtual stage in model order.

    Raises:
        InputError: blocks that do not divide, or a layout that cannot be read.
    """
    text = args.get("pipeline_model_parallel_layout")
    layers = () if text is None else _stage_blocks(text)
    vpp = len(layers) // pp if layers else _chunks(args, blocks, pp)
    if (stages := len(layers) or pp * vpp) > MAX_STAGES:
        raise InputError(f"{stages:,} stages are more than any model has blocks for")
    if layers and (stages % pp or sum(layers) != blocks):
        words = args.flags["pipeline_model_parallel_layout"]
        message = f"`{words}` has {stages} stages with {sum(layers)} blocks"
        raise InputError(f"{message}: `pp{pp}` and `--num-layers {blocks}` do not go with it")
    if layers:
        return vpp, layers
    first, last = (args.get(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    if first is None and last is None:
        before, behind = (args.get(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss"))
        share, rest = divmod(blocks + before + behind, stages)
        if rest:
            hint = "`--pipeline-model-parallel-layout` says uneven ones"
            raise InputError(f"`--num-layers {blocks}` does not divide by {stages} stages", hint=hint)
        stage_blocks = [share] * stages
        stage_blocks[0] -= before
        stage_blocks[-1] -= behind
        return vpp, tuple(stage_blocks)
    ends = [end for end in (first, last) if end is not None]
    middle = [(blocks - sum(ends)) // max(1, pp - len(ends))] * (pp - len(ends))
    each_rank = [*ends, *middle] if last is None else [*ends[:-1], *middle, last]
    if len(each_rank) != pp or sum(each_rank) != blocks or any(rank % vpp for rank in each_rank):
        message = f"`--num-layers {blocks}` does not divide over `pp{pp}`"
        raise InputError(f"{message} with such first and last ranks")
    return vpp, tuple(rank // vpp for rank in each_rank) * vpp


def _chunks(args: Arguments, blocks: int, pp: int) -> int:
    if (chunks := args.get("num_virtual_stages_per_pipeline_rank")) is not None:
        return max(1, int(chunks))
    chunk_blocks = args.get("num_layers_per_virtual_pipeline_stage")
    if chunk_blocks is None or pp == 1:
        return 1
    if chunk_blocks < 1 or blocks % (pp * chunk_blocks):
        words = args.flags["num_layers_per_virtual_pipeline_stage"]
        raise InputError(f"`{words}` does not divide the {blocks / pp:g} blocks of a rank with `pp{pp}`")
    return int(blocks // pp // chunk_blocks)


def _stage_blocks(text: str) -> tuple[int, ...]:
    """Number of blocks of every stage in a pipeline layout text such as `Ettt|(tt|)*6tttL`."""
    bare = re.sub(r"[,\s]", "", text)
    while (match := _REPEATED.search(bare)) is not None:
        inner, times, letter, count = match.groups()
        bare = bare[: match.start()] + (inner or letter) * int(times or count) + bare[match.end() :]
        if len(bare) > _MOST_TEXT:
            raise InputError(f"`{text[:40]}` names more blocks than any model has")
    if not re.fullmatch(r"[EtmL|]+", bare):
        raise InputError(f"`{text}` is no pipeline layout like `Ettt|tttt|tttL`")
    return tuple(stage.count("t") for stage in bare.split("|"))
