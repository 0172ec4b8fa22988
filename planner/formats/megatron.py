"""Megatron-LM: export of a plan to a script that starts `pretrain_gpt.py` with torchrun on every node, and
import from it.

Layout, model, training job and facts of the software stack are each written as arguments of Megatron Core and read
back; Megatron Bridge's recipes have the same names. Every setting is an argument of megatron/training/arguments.py by
the name of its value there; a test reads the arguments back with that parser. Sources: NVIDIA/Megatron-LM, August 2026
(core 0.20): megatron/training/arguments.py, core/model_parallel_config.py, core/optimizer/optimizer_config.py,
core/pipeline_parallel/, core/transformer/transformer_config.py, pipeline_parallel_layer_layout.py,
transformer_block.py, mlp.py, moe/router.py, core/distributed/distributed_data_parallel_config.py,
core/fusions/fused_bias_dropout.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.stages import first_in_full, mixes_of, number_in_full
from cost_models.axes.words import EVERY, MAX_STAGES
from cost_models.base import MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.specs.choices import Overlap
from cost_models.specs.stack import USER_BUFFERS, VOCABULARY_UNIT, StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import Rotary, TransformerSpec
from planner.formats.exporter import Job, JobExport, Target, Written
from planner.formats.launches import Launch, world_size
from planner.formats.megatron_arguments import (
    OFFLOADED,
    OFFLOADED_OF_EXPERTS,
    TABLE,
    Arguments,
    argument_words,
    read_arguments,
    unpriced_values,
    uses_fsdp,
)
from planner.formats.settings import Reading, unpriced
from planner.formats.torchrun import script, several_nodes, torchrun_words

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})", re.ASCII)
_MOST_TEXT = 20_000


def write_layout(export: JobExport) -> None:
    """Export the layout fields that Megatron Core's table of arguments does not write."""
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
    """Export the recompute policy."""
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
    """Export the offload of optimizer states and activations."""
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
    """Parallel layout that Megatron-LM arguments describe on `world` GPUs.

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
    """ZeRO stage of a Megatron-LM command, with FSDP or the distributed optimizer."""
    if args.get("use_torch_fsdp2"):
        return 3 if args.get("torch_fsdp2_reshard_after_forward") else 2
    if uses_fsdp(args):
        return int(args.plan_value("data_parallel_sharding_strategy"))
    return int(args.get("use_distributed_optimizer"))


def _recompute_of(args: Arguments, layers: tuple[int, ...]) -> tuple[str, ...]:
    """Recompute policies described by Megatron's granularity, method and number of blocks. In 2021 a method
    alone meant full recompute."""
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
    """Model chunks per pipeline rank (vpp), and number of blocks of every virtual stage in model order.

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
        extra = [args.get(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
        share, remainder = divmod(blocks + sum(extra), stages)
        if remainder:
            hint = "`--pipeline-model-parallel-layout` says uneven ones"
            raise InputError(f"`--num-layers {blocks}` does not divide by {stages} stages", hint=hint)
        stage_blocks = [share] * stages
        stage_blocks[0] -= extra[0]
        stage_blocks[-1] -= extra[1]
        return vpp, tuple(stage_blocks)
    ends = [end for end in (first, last) if end is not None]
    middle = [(blocks - sum(ends)) // max(1, pp - len(ends))] * (pp - len(ends))
    each_rank = [*ends, *middle] if last is None else [*ends[:-1], *middle, last]
    if len(each_rank) != pp or sum(each_rank) != blocks or any(rank % vpp for rank in each_rank):
        message = f"`--num-layers {blocks}` does not divide over `pp{pp}`"
        raise InputError(f"{message} with such first and last ranks")
    return vpp, tuple(rank // vpp for rank in each_rank) * vpp


def _chunks(args: Arguments, blocks: int, pp: int) -> int:
    """Number of model chunks per pipeline rank."""
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
    """Number of blocks of every stage in a pipeline layout such as `Ettt|(tt|)*6tttL`."""
    bare = re.sub(r"[,\s]", "", text)
    while (match := _REPEATED.search(bare)) is not None:
        inner, times, letter, count = match.groups()
        bare = bare[: match.start()] + (inner or letter) * int(times or count) + bare[match.end() :]
        if len(bare) > _MOST_TEXT:
            raise InputError(f"`{text[:40]}` names more blocks than any model has")
    if not re.fullmatch(r"[EtmL|]+", bare):
        raise InputError(f"`{text}` is no pipeline layout like `Ettt|tttt|tttL`")
    return tuple(stage.count("t") for stage in bare.split("|"))


_SCORED_BY = "two best"
"""Score by which Megatron Core selects groups of experts."""
_GPT2_WORDS = 50_257
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def _write_experts(export: JobExport) -> None:
    """Export the fields of a mixture of experts that Megatron Core's table of arguments does not write."""
    model, scores = export.job.model, export.job.model.router_scores
    if model.num_moe_layers != model.num_layers:
        mixtures = model.moe_layers or range(model.num_layers - model.num_moe_layers, model.num_layers)
        pattern = [int(layer in mixtures) for layer in range(model.num_layers)]
        export.sets("model.num_moe_layers", moe_layer_freq=pattern)
    if (groups := model.expert_groups) is not None:
        settings = {"moe_router_num_groups": groups.count, "moe_router_group_topk": groups.per_token}
        export.sets("model.expert_groups", settings)
        reason = "it scores a group by its two best experts"
        export.lacks("model.expert_groups", reason, when=groups.scored_by != _SCORED_BY)
    # with a balancing bias scores are fp32, as in DeepSeek-V3
    dtype = {"moe_router_dtype": "fp32"} if model.routing_bias else {}
    export.sets("model.router_scores", dtype, moe_router_score_function=scores)
    reason = "it balances experts by a bias beside sigmoid scores alone"
    export.lacks("model.router_scores", reason, when=model.routing_bias and scores != "sigmoid")
    reason = "it scales the weights of sigmoid scores to sum to one"
    unnormalized = not model.normalized_routing and scores != "softmax"
    export.lacks("model.normalized_routing", reason, when=unnormalized)
    coefficient = {"moe_aux_loss_coeff": model.load_balance} if model.load_balance else {}
    kind = "aux_loss" if model.load_balance else "none"
    export.sets("model.load_balance", coefficient, moe_router_load_balancing_type=kind)


def write_model(export: JobExport) -> None:
    """Export the model fields that Megatron Core's table of arguments does not write."""
    model, latent = export.job.model, export.job.model.latent_attention
    if model.has_experts:
        _write_experts(export)
    match model.gated_mlp, model.activation:
        case True, "silu":
            export.sets("model.activation", swiglu=True)
        case False, "squared-relu":
            export.sets("model.activation", squared_relu=True)
        case False, "gelu-tanh":
            difference = "its fused GELU is the one by tanh"
            export.sets("model.activation", differs=difference, bias_gelu_fusion=True)
        case gated, name if gated or name != "gelu":
            export.lacks("model.activation", f"it has no setting for {'a gated ' if gated else ''}{name}")
    unbiased = model.norm != "rmsnorm" and not model.norm_bias
    export.lacks("model.norm_bias", "its layer norms have biases", when=unbiased)
    positions = TABLE.arguments["position_embedding_type"]
    choices = {kind: {positions.name: name} for kind, name in positions.values.items()}
    export.choose("model.positions", model.positions, choices, "it has no such positions")
    longest = max(model.max_positions, export.job.training.sequence_length)
    export.sets("model.max_positions", max_position_embeddings=longest)
    if model.positions == "rotary":
        _write_rotary(export, model.rotary or Rotary())
    export.sets("model.attention_bias", add_qkv_bias=True, when=model.attention_bias)
    reason = "biases of the MLP come with those of queries, keys and values"
    export.lacks("model.attention_bias", reason, when=model.mlp_bias and not model.attention_bias)
    reason = "attention's output has a bias where the MLP has"
    export.lacks("model.attention_output_bias", reason, when=model.attention_output_bias != model.mlp_bias)
    over_all_heads = model.qk_norm and model.qk_norm_over != "head"
    export.lacks("model.qk_norm_over", "its norm is over each head", when=over_all_heads)
    export.sets("model.attention_sinks", softmax_type="learnable", when=model.attention_sinks)
    if (window := model.attention_window) is not None:
        export.lacks("model.window_kind", "its windows slide", when=model.window_kind != "sliding")
        export.sets("model.attention_window", window_size=(window - 1, 0))
        windows = [int(model.window_of(layer) is not None) for layer in range(model.num_layers)]
        export.sets("model.window_pattern", window_attn_skip_freq=windows, when=model.window_pattern)
    if latent is None:
        export.sets("model.head_dim", kv_channels=model.head_dim)
        groups = {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
        export.sets("model.num_kv_heads", groups, when=model.num_kv_heads != model.num_heads)
    else:
        # norms of latents, which all models with them have
        settings: dict[str, Any] = {"multi_latent_attention": True, "qk_layernorm": True}
        settings |= {"kv_lora_rank": latent.kv_rank, "qk_head_dim": model.head_dim - latent.position_dim}
        settings |= {"qk_pos_emb_head_dim": latent.position_dim, "v_head_dim": latent.value_dim}
        settings |= {} if latent.query_rank is None else {"q_lora_rank": latent.query_rank}
        export.sets("model.latent_attention", settings)
    unread = ", ".join(model.left_out)
    export.lacks("model.left_out", f"nobody read how: {unread}", when=unread)


def _write_rotary(export: JobExport, rotary: Rotary) -> None:
    """Export the rotary positions."""
    model, scaling, reason = export.job.model, rotary.scaling, ""
    settings: dict[str, Any] = {"rotary_base": int(rotary.base)}
    if rotary.dim is not None and model.latent_attention is None:
        settings["rotary_percent"] = rotary.dim / model.head_dim
    if rotary.pattern and not all(rotary.pattern):
        layers = range(model.num_layers)
        settings["no_rope_freq"] = [int(not rotary.pattern[at % len(rotary.pattern)]) for at in layers]
    if scaling is not None and scaling.kind == "llama3":
        settings |= {"use_rope_scaling": True, "rope_scaling_factor": scaling.factor}
    elif scaling is not None:
        settings["rotary_seq_len_interpolation_factor"] = int(scaling.factor)
        reason = "it divides frequencies by whole numbers" if scaling.factor % 1 else ""
    if rotary.windowed_base not in (None, rotary.base):
        reason = "it has one rotary base for all blocks"
    export.sets("model.rotary", settings)
    export.lacks("model.rotary", reason, when=reason)


def model_of(args: Arguments) -> TransformerSpec:
    """Model that Megatron-LM arguments describe; missing arguments have Megatron-LM's defaults.

    Raises:
        InputError: arguments are missing, or describe no model.
    """
    vocab, multiple = _vocabulary(args)
    missing = [name for name in _NEEDED if not args.has(name)] + ["vocab_size"] * (vocab is None)
    if missing:
        problems = [Problem(f"`--{name.replace('_', '-')}`", "is missing") for name in missing]
        hint = '`--also "--vocab-size 128256"` says what the command leaves to tokenizers or checkpoints'
        raise InputError("the command does not say its whole model", problems=problems, hint=hint)
    gated, biases = args.get("swiglu"), args.get("add_bias_linear")
    plain = "gelu-tanh" if args.values.get("bias_gelu_fusion") else "gelu"
    hidden = args.get("hidden_size")
    mlp_width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    fields = {
        **TABLE.fields("model", args.get),
        "name": "imported",
        "ffn_hidden_size": args.get("ffn_hidden_size", mlp_width),
        "gated_mlp": gated,
        "activation": "silu" if gated else "squared-relu" if args.get("squared_relu") else plain,
        "attention_output_bias": biases,
        "attention_bias": biases or args.get("add_qkv_bias"),
        "vocab_size": vocab,
        "vocab_multiple": multiple,
        "attention_sinks": args.get("softmax_type") in ("learnable", "off-by-one"),
        "max_positions": args.get("max_position_embeddings", args.get("seq_length")),
        "source": "arguments of pretrain_gpt.py",
        **_positions_of(args),
        **_attention_of(args),
    }
    if args.get("num_experts"):
        fields |= _experts_of(args, fields["ffn_hidden_size"])
    return TransformerSpec(**fields)


def _experts_of(args: Arguments, dense: int) -> dict[str, Any]:
    """Model fields of a mixture of experts that Megatron-LM arguments describe. `dense` is the MLP width of
    dense blocks.

    Raises:
        InputError: the load balance is no number.
    """
    mixtures = _pattern_of(args, args.get("moe_layer_freq"), last=False)
    layers = tuple(at for at, has_experts in enumerate(mixtures) if has_experts)
    balances = args.get("moe_router_load_balancing_type")[0] == "aux_loss"
    coefficient = args.get("moe_aux_loss_coeff")[0] if balances else 0.0
    try:
        load_balance = float(coefficient)
    except ValueError:
        raise InputError(f"`--moe-aux-loss-coeff {coefficient}` is no number") from None
    fields: dict[str, Any] = {
        **TABLE.fields("model", args.get, mixtures=True),
        "moe_ffn_hidden_size": args.get("moe_ffn_hidden_size", dense),
        "num_moe_layers": len(layers),
        "load_balance": load_balance,
    }
    if layers != tuple(range(len(mixtures) - len(layers), len(mixtures))):
        fields["moe_layers"] = layers
    if args.has("moe_router_num_groups"):
        count, per_token = args.get("moe_router_num_groups"), args.get("moe_router_group_topk")
        fields["expert_groups"] = {"count": count, "per_token": per_token, "scored_by": _SCORED_BY}
    return fields


def _vocabulary(args: Arguments) -> tuple[int | None, int]:
    """Size of the vocabulary, and the multiple (in addition to tp) to which the size is padded."""
    if (padded := args.get("padded_vocab_size")) is not None:
        return padded, 1
    words, multiple = args.get("vocab_size"), args.get("make_vocab_size_divisible_by")
    if words is None and args.tokenizer == "GPT2BPETokenizer":
        args.assume(f"{_GPT2_WORDS:,} words, those of GPT-2's tokenizer")
        words = _GPT2_WORDS
    default = TABLE.arguments["make_vocab_size_divisible_by"].default
    return words, 1 if words is not None and multiple == default and not words % default else multiple


def _positions_of(args: Arguments) -> dict[str, Any]:
    """Model fields of position embeddings that Megatron-LM arguments describe."""
    argument = TABLE.arguments["position_embedding_type"]
    kind = "rope" if args.get("use_rotary_position_embeddings") else args.get("position_embedding_type")
    if args.get("position_embedding") is False and kind == argument.default:
        kind = "none"
    rotary: dict[str, Any] = {}
    if kind == "rope":
        if (base := args.get("rotary_base")) != 10_000:
            rotary["base"] = float(base)
        if (share := args.get("rotary_percent")) != 1.0 and not args.get("multi_latent_attention"):
            default = args.get("hidden_size") // max(1, args.get("num_attention_heads"))
            rotary["dim"] = round(int(args.get("kv_channels", default)) * share)
        if (skipped := args.get("no_rope_freq")) is not None:
            rotary["pattern"] = tuple(not one for one in _pattern_of(args, skipped, last=True))
        if args.get("use_rope_scaling"):
            rotary["scaling"] = {"kind": "llama3", "factor": args.get("rope_scaling_factor")}
        elif (factor := args.get("rotary_seq_len_interpolation_factor")) is not None:
            rotary["scaling"] = {"kind": "linear", "factor": float(factor)}
    return {"positions": argument.plan_value(kind), "rotary": rotary or None}


def _attention_of(args: Arguments) -> dict[str, Any]:
    """Model fields of attention (windows, norms, grouped queries, ...) that Megatron-LM arguments describe."""
    fields: dict[str, Any] = {}
    if (window := args.get("window_size")) is not None:
        fields["attention_window"] = (window[0] if isinstance(window, tuple) else window) + 1
        if (pattern := args.get("window_attn_skip_freq")) is not None:
            marks, windowed = _pattern_of(args, pattern, last=True), not isinstance(pattern, int)
            # of a number N, every N-th block attends to all tokens
            fields["window_pattern"] = tuple("window" if mark == windowed else "full" for mark in marks)
    if args.get("multi_latent_attention"):
        unnormed = not args.get("qk_layernorm")
        args.assume("norms of latents, which `--qk-layernorm` would switch on", when=unnormed)
        position = args.get("qk_pos_emb_head_dim")
        latent = {"kv_rank": args.get("kv_lora_rank"), "query_rank": args.get("q_lora_rank")}
        latent |= {"position_dim": position, "value_dim": args.get("v_head_dim")}
        fields |= {"latent_attention": latent, "qk_norm": False}
        fields["head_dim"] = args.get("qk_head_dim") + position
        return fields
    if args.has("kv_channels"):
        fields["head_dim"] = args.get("kv_channels")
    if args.get("group_query_attention"):
        fields["num_kv_heads"] = args.get("num_query_groups")
    return fields


def _pattern_of(args: Arguments, pattern: Any, *, last: bool) -> tuple[int, ...]:
    """Mark (0 or 1) of every block, from a list of marks or from a period N that marks one of every N blocks.
    With `last` the last of N blocks is marked, else the first."""
    count = args.get("num_layers") or 0
    if count > MAX_LAYERS:
        raise InputError(f"`--num-layers {count}` are more blocks than any model has")
    if isinstance(pattern, int):
        return tuple(int((at + last) % max(1, pattern) == 0) for at in range(count))
    if len(pattern) != count:
        raise InputError(f"a pattern of {len(pattern)} blocks for `--num-layers {count}`")
    return tuple(pattern)


PRECISIONS: Mapping[str, Written] = {
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "fp4": {"bf16": True, "fp4": "e2m1"},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp32": {},
}
"""Arguments of each precision; the precision of a command is the first with an argument that the command sets."""


def write_training(export: JobExport) -> None:
    """Export the training-job fields that Megatron Core's table of arguments does not write."""
    job, training, precision = export.job, export.job.training, export.job.training.precision
    export.choose("training.precision", precision, PRECISIONS, "its products in fp32 are without TF32")
    export.argument(TABLE.arguments["optimizer"])
    decay = "its Adam decays weights apart from gradients, as AdamW"
    export.sets("training.optimizer", differs=decay, optimizer="adam", when=training.optimizer == "adamw")
    path, dtype = "training.gradient_dtype", training.gradient_dtype or job.stack.gradient_dtype
    export.sets(path, accumulate_allreduce_grads_in_fp32=True, when=dtype == "fp32" and precision != "fp32")
    export.sets(path, grad_reduce_in_bf16=True, when=dtype != "fp32" and precision not in ("fp16", "fp32"))
    if (training.moment_dtype or training.state_dtype) != "fp32":
        moments = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
        export.sets("training.moment_dtype", moments)
        reason = "only its distributed optimizer (zero1) keeps moments in bf16"
        export.lacks("training.moment_dtype", reason, when=job.layout.zero == 0)
    dropout = job.question.dropout
    export.sets("training.dropout", hidden_dropout=dropout, attention_dropout=dropout)
    if training.tokens is not None:
        samples = max(1, int(training.tokens // training.sequence_length))
        export.sets("training.tokens", differs="sequences", train_samples=samples)


def training_of(args: Arguments, layout: Layout, stack_named: bool) -> TrainingSpec:
    """Training job (batch, sequence length, precision, optimizer) that Megatron-LM arguments describe. Raises
    InputError for an optimizer that is not priced here."""
    batch, length = args.get("global_batch_size", layout.mbs * layout.dp), args.get("seq_length")
    batch_note = f"a global batch of {batch}: one microbatch on every replica"
    args.assume(batch_note, when=not args.has("global_batch_size"))
    args.assume("the batch as it is after its ramp", when=args.has("rampup_batch_size"))
    settings = ((name, args.values.get(name)) for name in PRECISIONS)
    precision = next((name for name, value in settings if value not in (None, False)), "fp32")
    args.assume("fp32: neither `--bf16` nor `--fp16` is there", when=precision == "fp32")
    hidden, attention = args.get("hidden_dropout"), args.get("attention_dropout")
    has_dropout = args.has("hidden_dropout")
    args.assume(f"dropout {hidden:g}, Megatron-LM's default of `--hidden-dropout`", when=not has_dropout)
    difference = f"attention's dropout ({attention:g}) as the hidden one ({hidden:g})"
    args.assume(difference, when=has_dropout and hidden != attention)
    samples = args.get("train_samples", args.get("train_iters") * batch)
    fields: dict[str, Any] = {
        "global_batch": batch,
        "sequence_length": length,
        "precision": precision,
        "optimizer": args.plan_value("optimizer"),
        "gradient_dtype": _gradients_of(args, stack_named),
        "moment_dtype": "bf16" if args.get("exp_avg_dtype") in ("bf16", "fp16") else None,
        "dropout": float(hidden),
        "tokens": float(samples * length) if samples else None,
    }
    return TrainingSpec(**fields)


def _gradients_of(args: Arguments, stack_named: bool) -> str | None:
    """Gradient dtype that Megatron-LM arguments describe. By default fp16 gradients are summed in 16 bits,
    others in fp32 (`validate_args`)."""
    if args.get("accumulate_allreduce_grads_in_fp32"):
        return "fp32" if stack_named else None
    if args.get("grad_reduce_in_bf16") or args.get("main_grads_dtype") == "bf16":
        return "bf16"
    return "bf16" if args.get("fp16") and not stack_named else None


STACK = "megatron-core"
"""Catalogue name of the software stack of core 0.20."""
_BACKENDS = {"cudnn": "auto", "unfused": "unfused", "flash2": "flash", "flash3": "flash"}
_KERNELS = {"unfused": "unfused", "local": "fused-softmax", "flash": "flash2", "fused": "cudnn"}
_SWITCHES = "deterministic_mode overlap_cpu_optimizer_d2h_h2d gradient_accumulation_fusion"
"""Arguments that each correspond to one fact of the software stack."""


FACTS = """
    attention pads_vocabulary gradient_dtype fused_elementwise master_remainders overlap_gradient_reduce
    overlap_parameter_gather overlap_tensor_parallel expert_dispatch selective_drops overlaps_host
    overlap_pipeline_sends transformer_engine
"""
"""Facts of the software stack that Megatron Core switches; `gradient_dtype` with the training job's, `selective_drops`
with the layout's `recompute`."""


def write_facts(export: JobExport) -> None:
    """Export the facts of the software stack that Megatron Core's arguments switch."""
    job, layout, stack, model = export.job, export.job.layout, export.job.stack, export.job.model
    backends = {kernel: {"attention_backend": name} for kernel, name in _BACKENDS.items()}
    reason = "its attention backends are unfused, flash and fused"
    export.choose("stack.attention", stack.attention, backends, reason)
    in_stack = model.vocab_multiple == 1 and stack.pads_vocabulary  # as in plans of earlier releases
    multiple = VOCABULARY_UNIT if in_stack else model.vocab_multiple
    export.sets("stack.pads_vocabulary", make_vocab_size_divisible_by=multiple)
    if not stack.fused_elementwise:
        fusions = ("bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion")
        export.sets("stack.fused_elementwise", dict.fromkeys(fusions, False))
        reason = "its GELU by tanh is fused with the bias"
        export.lacks("stack.fused_elementwise", reason, when=model.activation == "gelu-tanh")
    if stack.master_remainders and job.training.precision != "fp32":
        export.sets("stack.master_remainders", use_precision_aware_optimizer=True)
        reason = "only its distributed optimizer (zero1) keeps master weights so"
        export.lacks("stack.master_remainders", reason, when=layout.zero == 0)
    _write_overlaps(export)
    if model.has_experts:
        dispatcher = {"moe_token_dispatcher_type": "alltoall"}
        if stack.expert_dispatch != "copies" and layout.ep * layout.expert_tp > 1:
            dispatcher = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
        export.sets("stack.expert_dispatch", dispatcher, moe_grouped_gemm=True)
    hides_host = stack.overlaps_host and layout.offload.states
    export.sets("stack.overlaps_host", overlap_cpu_optimizer_d2h_h2d=True, when=hides_host)
    export.sets("stack.transformer_engine", transformer_impl="local", when=not stack.transformer_engine)


def _write_overlaps(export: JobExport) -> None:
    """Export the communication that overlaps compute: the layout's choice or, if it has none, the stack's."""
    layout, stack = export.job.layout, export.job.stack

    def overlaps(axis: Overlap, fact: str) -> bool:
        """Whether communication along an axis overlaps compute, by the layout or else by the stack's fact."""
        return getattr(stack, fact) > 0 if layout.overlap is None else axis in layout.overlap

    reduces = overlaps("dp", "overlap_gradient_reduce")
    export.sets("stack.overlap_gradient_reduce", overlap_grad_reduce=True, when=reduces)
    if overlaps("dp", "overlap_parameter_gather") and layout.zero:
        export.sets("stack.overlap_parameter_gather", overlap_param_gather=True)
        reason = "it gathers parameters behind compute only where it reduces gradients so"
        export.lacks("stack.overlap_parameter_gather", reason, when=not reduces)
    has_buffers = layout.tp > 1 and layout.sp and export.job.training.precision in USER_BUFFERS
    inside = has_buffers and overlaps("tp", "overlap_tensor_parallel")
    export.sets("stack.overlap_tensor_parallel", tp_comm_overlap=True, when=inside)
    sends_late = layout.vpp > 1 and not overlaps("pp", "overlap_pipeline_sends")
    export.sets("stack.overlap_pipeline_sends", overlap_p2p_comm=False, when=sends_late)


def stack_of(args: Arguments, base: StackSpec, stack_named: bool) -> StackSpec:
    """Copy of a software stack with the facts that Megatron-LM arguments switch. Missing switches are off,
    unless the user named the stack.

    Raises:
        InputError: an attention backend is not known.
    """
    zero, experts = zero_of(args), args.get("num_experts")
    dispatcher, backend = args.get("moe_token_dispatcher_type"), args.get("attention_backend")
    gathers = dispatcher == "allgather" and args.get("expert_model_parallel_size") > 1
    precise = args.get("use_precision_aware_optimizer") and not args.get("optimizer_cpu_offload")
    switches = {
        # FSDP overlaps both
        "overlap_grad_reduce": zero > 1 or args.get("overlap_grad_reduce"),
        "overlap_param_gather": zero == 3 if zero > 1 else args.get("overlap_param_gather"),
        "tp_comm_overlap": load_stack(STACK).overlap_tensor_parallel * args.get("tp_comm_overlap"),
        "use_precision_aware_optimizer": bool(precise),
        **({"moe_token_dispatcher_type": "tokens" if dispatcher == "flex" else "copies"} if experts else {}),
        **{name: args.get(name) for name in _SWITCHES.split()},
    }
    facts: dict[str, Any] = {
        TABLE.arguments[name].field.removeprefix("stack."): value
        for name, value in switches.items()
        if args.has(name) or not stack_named
    }
    tokens = "tokens go to experts one by one, not gathered everywhere (`allgather`)"
    args.assume(tokens, when="expert_dispatch" in facts and gathers)
    if zero > 1:  # core/distributed/fsdp: gradients are scattered, weights gathered for every microbatch
        facts |= {"zero_stages": (*base.zero_stages, zero), "unsharded_gradients_until_sync": False}
        facts["zero3_gathers_every_microbatch"] = True
    if args.has("make_vocab_size_divisible_by") or args.has("padded_vocab_size") or not stack_named:
        is_unit = args.get("make_vocab_size_divisible_by") == VOCABULARY_UNIT
        facts["pads_vocabulary"] = is_unit and not args.has("padded_vocab_size")
    if _is_unfused(args):
        facts["fused_elementwise"] = False
    if args.get("overlap_p2p_comm") is False:
        facts["overlap_pipeline_sends"] = False
    if args.get("cross_entropy_loss_fusion"):
        facts["extra_loss_copies"] = 1.0
    if args.get("recompute_granularity") == "selective":
        modules, argument = args.get("recompute_modules"), TABLE.arguments["recompute_modules"]
        drops = tuple(sorted(argument.plan_value(one) for one in modules))
        facts["selective_drops"] = drops[0] if len(drops) == 1 else drops or "core"
    if args.get("transformer_impl") == "local":
        facts |= {"transformer_engine": False, "attention": "fused-softmax"}
    if args.get("use_flash_attn"):
        facts["attention"] = "flash2"
    if backend not in (*_KERNELS, "auto"):
        raise InputError(f"`--attention-backend {backend}` is not known here")
    facts |= {"attention": _KERNELS[backend]} if backend in _KERNELS else {}
    return base.model_copy(update=facts)


def _is_unfused(args: Arguments) -> bool:
    """Whether the arguments switch off a fusion that would apply to this model (transformer/mlp.py,
    fused_bias_dropout.py)."""
    biases, gated = args.get("add_bias_linear"), args.get("swiglu")
    activation = "bias_swiglu_fusion" if gated else "bias_gelu_fusion"
    activates = (gated or (biases and not args.get("squared_relu"))) and args.get(activation) is False
    adds = (biases or args.get("hidden_dropout") > 0) and args.get("bias_dropout_fusion") is False
    return bool(activates or adds)


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "layout.zero": ("its distributed optimizer shards optimizer states (zero1)", 0, 1),
    "layout.schedule": ("it runs 1f1b, and interleaved where vpp is above 1", "1f1b", "interleaved"),
    "training.state_dtype": ("its master weights are in fp32 or fp16", "fp32"),
    "model.router_bias": ("its router has no bias", False),
    "model.norm_placement": ("its norms lie before attention and MLP", "before"),
    "model.embedding_norm": ("no norm follows its embedding", False),
    "model.head_bias": ("its head has no bias", False),
    "model.embedding_scale": ("it does not scale embeddings", 1.0),
    "model.residual_scale": ("it does not scale what blocks add", 1.0),
    "model.logit_scale": ("it does not scale logits", 1.0),
    "model.attention_scale": ("it scales scores by 1/√head_dim", None),
    "model.parallel_block": ("its attention and MLP follow one another", False),
}
"""Reason and supported values of each plan field for which Megatron Core does not support all values, by field."""


def write_core(export: JobExport) -> None:
    """Export all fields that Megatron Core's table of arguments does not write."""
    export.supports(_LIMITS)
    for write in (write_layout, write_training, write_model, write_facts):
        write(export)


def _file(job: Job, settings: Written, name: str) -> tuple[str, ...]:
    """Texts of the export: the bash script first, then remarks on its use."""
    lines = [
        *(f"export {key}={shlex.quote(value)}" for key, value in environment(job, settings).items()),
        "ARGUMENTS=(",
        *(f"  {shlex.join(words)}" for words in argument_words(settings)),
        ")",
        *torchrun_words(job),
        'exec torchrun "${LAUNCH[@]}" "${MEGATRON:-.}/pretrain_gpt.py" "${ARGUMENTS[@]}" "$@"',
    ]
    comment = f"{name} for Megatron-LM, as `meshwright export --to megatron` wrote it; run it on every node"
    return (
        script(comment, lines),
        "data, tokenizer, learning rate, checkpoints are yours to set: `bash run.sh --data-path .. --lr ..` adds them",
        f"set MEGATRON to the checkout{several_nodes(job)}",
    )


def environment(job: Job, settings: Written) -> dict[str, str]:
    """Environment variables that Megatron-LM needs for this job, with their values."""
    needed = {
        # validate_args asks for this before Blackwell, and for the next with Transformer Engine 2.10
        "CUDA_DEVICE_MAX_CONNECTIONS": job.layout.tp > 1 or job.layout.cp > 1,
        "NVTE_CPU_OFFLOAD_V1": settings.get("fine_grained_activation_offloading"),
        "CUDA_LAUNCH_BLOCKING": job.stack.launches_block,
    }
    return {variable: "1" for variable, is_needed in needed.items() if is_needed}


def _words(settings: Written) -> str:
    """Settings as one line of Megatron-LM arguments."""
    return " ".join(map(shlex.join, argument_words(settings)))


_FACTS = f"{FACTS} launches_block"  # the last in the environment
TARGET = Target("megatron", "Megatron-LM (core 0.20)", write_core, _FACTS, _file, spelled=_words)


def read_megatron(
    launch: Launch, *, gpus: int | None = None, stack: str | None = None, ignore: Sequence[str] = ()
) -> Reading:
    """Read a Megatron-LM command as model, training job, layout and stack. Missing arguments have the
    defaults of `pretrain_gpt.py` (core 0.20), or of the software stack that the user names; flags to `ignore`
    are left out.

    Raises:
        InputError: the command cannot be read, is incomplete, or contradicts itself.
    """
    args = read_arguments(launch.arguments, ignore)
    args.assumed += launch.assumptions
    world, base = world_size(launch, gpus), load_stack(stack or STACK)
    if launch.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        base = base.model_copy(update={"launches_block": True})
    return reading_of(args, world, base, stack_named=stack is not None)


def reading_of(args: Arguments, world: int, base: StackSpec, *, stack_named: bool = True) -> Reading:
    """Convert Megatron Core's arguments into model, training job, layout and stack; missing switches are off
    unless the user named the stack.

    Raises:
        InputError: they are incomplete, contradict one another, or change layout or memory as no price does.
    """
    unused = [*args.unpriced, *unpriced_values(args)]
    args.assumed += unpriced(one for one in unused if args.get("num_experts") or "moe" not in one.key)
    model = model_of(args)
    layout = layout_of(args, model, world, base)
    training, stack = training_of(args, layout, stack_named), stack_of(args, base, stack_named)
    return Reading(model, training, layout, stack, tuple(args.assumed))
